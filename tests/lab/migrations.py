"""`ppmr migrate` between two nodes: the mounts, the commands, and the records of both nodes."""
import json
import os
import subprocess
import tempfile
from pathlib import Path

from .node import LabError, wait_until
from .pace import patience
from .ppmr import Mounts, find_ppmr


class Migrations(Mounts):
    """Both mounts on two nodes, with a state directory on each; the target accepts restarts of
    anything.

        with Migrations(nodes.source, nodes.target, lab.directory / "private") as migrations:
            done = migrations.migrate(pid)       # Done: code, events, summary, output
            migrations.records("source")         # the latest version of each record of that node
    """

    def __init__(
        self,
        source_at,
        target_at,
        directory,
        source_options=(),
        target_options=(),
        name="mnt",
        environment=None,
        accepts=("--allow-root-restart",),
        settles=False,
    ):
        """settles: the source's daemon settles interrupted migrations, as the target's always does.
        By default a test decides when that happens (recover)."""
        self.states = {
            "source": source_at.scratch(f"{name}-state"),
            "target": target_at.scratch(f"{name}-state"),
        }
        self.environment = dict(environment or {})
        # No thread of the target's daemon may have the pid of a program that moves there.
        target_at.keep_helpers_low()
        super().__init__(
            source_at,
            target_at,
            directory,
            [*source_options, *(["--state-dir", self.states["source"]] if settles else [])],
            [*accepts, "--state-dir", self.states["target"], *target_options],
            name=name,
            environment=self.environment,
        )

    def node(self, role):
        return self.source_at if role == "source" else self.target_at

    def _words(self, role, subcommand, options):
        return [subcommand, "--state-dir", self.states[role], "--json", *options]

    def _start(self, words, environment=None, through=()):
        environment = {**self.environment, **(environment or {})}
        ppmr = find_ppmr(environment)
        return Running(self.source_at, [*through, ppmr, *words], {**os.environ, **environment})

    def start_migrate(self, *pids, options=(), criu_options=(), environment=None, through=()):
        """through: words before those of ppmr, of a program that starts it (lab/filtered.py)."""
        self.target_at.keep_helpers_low()
        pid_options = [word for pid in pids for word in ("--pid", pid)]
        words = self._words("source", "migrate", ["--mount", self.out, *pid_options, *options])
        words += ["--", *criu_options] if criu_options else []
        return self._start(words, environment, through)

    def migrate(self, *pids, timeout=60, **options):
        return self.start_migrate(*pids, **options).wait(timeout)

    def evacuate(self, *options, timeout=60):
        words = self._words("source", "evacuate", ["--mount", self.out, *options])
        return self._start(words).wait(timeout)

    def recover(self, role="source", timeout=60, options=(), check=True):
        """Runs without `self.environment`, so neither pause points nor a faulty CRIU affect it."""
        words = self._words(role, "migrate", ["--recover", *options])
        done = Running(self.node(role), [find_ppmr(), *words]).wait(timeout)
        return done.ok() if check else done

    def records(self, role):
        """Returns the latest version of every record of a node, oldest first."""
        found, node = [], self.node(role)
        for name in node.names(self.states[role]):
            if not name.endswith(f".{role}"):
                continue
            directory = self.states[role] / name
            versions = [
                int(version.removesuffix(".json"))
                for version in node.names(directory)
                if version.endswith(".json")
            ]
            if versions:
                found.append(json.loads(node.read_text(directory / f"{max(versions)}.json")))
        return sorted(found, key=lambda record: record["history"][0][1])

    def paused(self, role, state):
        """Returns the marker files of the processes that are paused at this state."""
        return list(self.node(role).host_path(self.states[role]).glob(f"*.{role}/paused-{state}"))

    def wait_until_paused(self, role, state, running=None, timeout=20):
        def is_paused():
            ended = running and not running.running()
            if ended and not self.paused(role, state):
                raise LabError(
                    f"ppmr migrate ended before {role}:{state}: {running.wait(1).output}"
                )
            return self.paused(role, state)

        return wait_until(is_paused, timeout, f"the migration to pause at {role}:{state}")

    def go_on(self, role, state):
        for marker in self.paused(role, state):
            marker.unlink(missing_ok=True)

    def logs(self, newest=1000):
        """Returns the logs of CRIU and of the supervisors in the last migrations, to explain a
        failure.
        """
        texts = []
        for role in ("source", "target"):
            script = f"""
                cd {self.states[role]} || exit 0
                for log in $(ls -d -t -r *.{role} | tail -n {newest} | sed 's,$,/work-*/*.[lo][ou][gt],'); do
                  [ -e "$log" ] || continue
                  echo "--- {role} $(basename "$log")"
                  tail -c 1500 "$log"
                done"""
            texts.append(self.node(role).run(["sh", "-c", script], check=False).stdout)
        return "\n".join(texts)


class Running:
    """A ppmr command that runs in the background on a node."""

    def __init__(self, node, words, env=None):
        self.node = node
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = node.popen(words, stdout=self._out, stderr=self._err, env=env)

    def running(self):
        return self.process.poll() is None

    @property
    def host_pid(self):
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    def signal(self, number):
        """Has no effect if the command has ended."""
        try:
            self.node.signal_process(self.process, number)
        except (LabError, FileNotFoundError, ProcessLookupError):
            pass

    def events(self):
        """Returns the events so far, with --json."""
        lines = self._read()[0].splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def output(self):
        """Returns what the command has written so far, to both of its outputs."""
        return "".join(self._read())

    def wait(self, timeout=60):
        timeout = patience(timeout)
        try:
            self.process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise LabError(
                f"ppmr migrate did not end within {timeout:g} s; its output: {self._read()[1]}"
            ) from None
        out, err = self._read()
        return Done(self.process.returncode, out, err)

    def kill(self):
        if self.running():
            self.signal(9)
        self.process.wait(timeout=patience(20))

    def _read(self):
        texts = []
        for file in (self._out, self._err):  # the command writes where the file ends
            size = os.fstat(file.fileno()).st_size
            texts.append(os.pread(file.fileno(), size, 0).decode(errors="replace"))
        return texts


class Done:
    """The result of a ppmr command that has ended."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err
        self.events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    @property
    def output(self):
        return (self.err + self.out).strip()[-3000:]

    @property
    def summary(self):
        return next(event for event in self.events if event.get("event") == "summary")

    def ok(self):
        if self.code != 0:
            raise LabError(f"ppmr migrate ended with {self.code}; its output: {self.output}")
        return self


def write_hook(directory, name, body):
    """Writes a program for `--hook`."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
