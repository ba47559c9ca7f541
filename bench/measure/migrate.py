"""`ppmr migrate` as a way to move a tree."""
import json
import subprocess
import tempfile
import threading

from lab.move import Move, now
from lab.node import LabError
from lab.ppmr import find_ppmr

from .loads import mortal

MIGRATE_LIMIT_S = 300


def can_migrate(at):
    """True if this ppmr has the command `migrate`."""
    return "--allow-root-restart" in at.run([find_ppmr(), "target", "--help"], check=False).stdout


class MigrateMove(Move):
    """`ppmr migrate`: one command that never loses or duplicates the process. Both nodes record the
    state while CRIU waits, which costs time.

    After a move `summary` has the command's figures of the tree.
    """

    name = "ppmr migrate"

    def __init__(self, source, target, mounts, *options):
        super().__init__(source, target, lazily="--eager" not in options)
        self.mounts, self._options = mounts, list(options)
        self.when_running = lambda: None  # called when the command reports that the tree runs
        self.summary = None

    def prepare(self, label):
        self._state = self.source.scratch(f"{label}-state")
        self.target.keep_helpers_low()
        self.mounts.await_ready()

    def _transfer(self, pid, timeline, dump_options, restore_options):
        timeline.dump_began = now()
        when = self._migrate(
            [
                "migrate",
                "--mount",
                self.mounts.out,
                "--pid",
                pid,
                "--state-dir",
                self._state,
                "--json",
                *self._options,
                *(["--", *dump_options] if dump_options else []),
            ]
        )
        timeline.dump_done = timeline.arrived = when["sealed"]
        timeline.extra["held"] = self.summary["held_ns"] / 1e9
        timeline.extra["complete"] = when["complete"] if self.lazily else when["running"]

    def _migrate(self, words):
        """Runs the command and follows its events. Returns the time of each kind of event."""
        when, failed, findings = {}, None, []
        with tempfile.TemporaryFile("w+") as errors:
            process = self.source.popen(
                mortal([find_ppmr(), *words]), stdout=subprocess.PIPE, stderr=errors, text=True
            )
            limit = threading.Timer(MIGRATE_LIMIT_S, process.kill)
            limit.start()
            try:
                for line in process.stdout:
                    event = json.loads(line)
                    if "event" not in event:  # the command failed before the move began
                        failed = event.get("error", line)
                        continue
                    if event.get("stops"):
                        findings.append(event["sentence"])
                    when[event["event"]] = event["time_ns"] / 1e9
                    if event["event"] == "running":
                        self.when_running()
                    if event["event"] == "summary":
                        self.summary = event["trees"][0]
                process.wait()
            finally:
                limit.cancel()
                process.kill()
                process.wait()
                process.stdout.close()
            errors.seek(0)
            said = "; ".join(findings) or failed or errors.read().strip()[-2000:]
            if process.returncode != 0:
                raise LabError(f"ppmr migrate ended with {process.returncode}; its output: {said}")
        return when

    def clean(self):
        self.target.run(["sh", "-c", 'rm -rf "$0"/*', self.mounts.in_], check=False)
        self.source.drop_scratch(self._state)
