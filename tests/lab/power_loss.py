"""Plays one power loss of a virtual machine during a migration, and judges what follows.

After the boot the daemons are started and nothing else is done. The oracle checks, once both nodes
are up again and have had `--timeout` + 30 s:

- Neither record is open, and both say the same.
- Exactly one copy of the witness runs, where the records say. No copy may run in two cases only.
  The witness was on the node that lost power, and the records say that it is lost, or that it ran
  there after a finished or an aborted move. Or the source lost power before it had a record.
- The witness never ran twice, and its memory is right (Witness.check_log).
- `ppmr migrate`, if its node lived, has not reported success for a process that did not move.
- No program of the move and no checkpoint is left.
"""
import time
from dataclasses import dataclass
from pathlib import Path

from .migrations import Migrations
from .node import LabError, wait_until
from .witness import ABSENT, RUNS, Witness

SIDES = ["source", "target"]
LAZY, EAGER, POST_COPY = MODES = ["lazy", "eager", "post-copy"]
OPTIONS_OF = {LAZY: [], EAGER: ["--eager"], POST_COPY: ["--post-copy"]}
HOLD_LIMIT = 20  # seconds; --timeout of the migrations
SETTLED = HOLD_LIMIT + 30  # seconds after the start of the daemons
DISK = Path("/disk")
FINAL = ("finished", "aborted")
PROGRAMS_OF_A_MOVE = (
    "ppmr migrate |migration-relay|migration-restore|serve-pages|guard-pages|page-reader"
    "|criu (dump|restore)"
)
# Half of the losses strike at any time of a move, the others soon after one of these states.
STATES = [
    *(("source", state) for state in ("dumping", "frozen", "sealed", "committed")),
    *(("target", state) for state in ("restoring", "ready", "running")),
]
SOON = 1.0  # seconds


@dataclass
class Loss:
    side: str
    mode: str
    moment: str
    verdict: str
    settled_seconds: float  # from the start of the daemons until no record is open
    histories: dict  # role -> states
    dropped_bytes: int  # that the disk had not flushed

    def __str__(self):
        told = "; ".join(f"{role}: {' '.join(of) or '-'}" for role, of in self.histories.items())
        return (
            f"{self.side} {self.mode:9} lost power {self.moment}, {self.dropped_bytes >> 10} KiB "
            f"unflushed, settled in {self.settled_seconds:.1f} s: {self.verdict} [{told}]"
        )


class PowerLosses:
    """Migrations from machine a to machine b, with both state directories on their disks."""

    def __init__(self, machines):
        self._machines = machines
        self._witnesses = 0
        self._seconds = {}  # mode -> of an undisturbed move
        self.migrations = None

    def __enter__(self):
        for node in self._machines.nodes:
            node.mount_disk(DISK)
            node.private = DISK
        self.migrations = Migrations(
            *self._machines.nodes,
            DISK / "mounts",
            ["--pool-size", "16MiB", "--transport", "tcp"],
            ["--memory-limit", "256MiB", "--pool-size", "64MiB", "--transport", "tcp"],
            settles=True,
        )
        self.migrations.await_ready()
        for node in self._machines.nodes:
            node.run(["sync"])  # the key is older than the first loss
        return self

    def __exit__(self, *_):
        if self.migrations:
            self.migrations.close()

    def node(self, side):
        return self._machines.a if side == "source" else self._machines.b

    def measure(self, modes):
        """Moves a witness in each mode: the moments of the losses are drawn from this time."""
        for mode in modes:
            witness = self._new_witness()
            began = time.monotonic()
            self._start(witness, mode).wait(120).ok()
            self._seconds[mode] = time.monotonic() - began
            witness.end()

    def describe(self):
        return ", ".join(f"{mode} {seconds:.1f} s" for mode, seconds in self._seconds.items())

    def play(self, side, mode, generator, disk_lies=False):
        """disk_lies: the disk forgets what this migration flushes, which the oracle must notice."""
        witness = self._new_witness()
        disk = self.node(side).disk
        try:
            if disk_lies:
                self.node(side).run(["sync"])
            disk.forgets_flushes = disk_lies
            return self._play(witness, side, mode, generator)
        except LabError as error:
            raise LabError(f"{error}\n{self._evidence(witness)}") from error
        finally:
            disk.forgets_flushes = False
            witness.end()

    def start_again(self):
        """Boots both machines with what their disks have kept, after an objection."""
        for node in self._machines.nodes:
            if node.running():
                node.kill()
        for side in SIDES:
            self._boot(self.node(side))
        self.migrations.restart_dead()

    # -- one loss

    def _play(self, witness, side, mode, generator):
        running = self._start(witness, mode)
        moment = self._await_moment(witness, mode, running, generator)
        node = self.node(side)
        dropped = node.disk.dropped_bytes
        node.kill()
        node.disk.forgets_flushes = False
        self._boot(node)
        dropped = node.disk.dropped_bytes - dropped
        self.migrations.restart_dead()
        began = time.monotonic()
        wait_until(lambda: not self._open(witness), SETTLED, "both records to be final", 0.5)
        settled = time.monotonic() - began
        done = running.wait(HOLD_LIMIT + 30)
        verdict = self._judge(witness, side, done)
        histories = {role: self._history(self._record(role, witness)) for role in SIDES}
        return Loss(side, mode, moment, verdict, settled, histories, dropped)

    def _await_moment(self, witness, mode, running, generator):
        """Returns, in words, when the power is lost."""
        role, state = generator.choice(STATES)
        after = generator.uniform(0, self._seconds[mode] * 1.1)
        if generator.random() < 0.5:
            time.sleep(after)  # the moment is chosen by time
            return f"{after:.2f} s after the start"

        def reached():
            return state in self._history(self._record(role, witness)) or not running.running()

        wait_until(reached, 60, f"the {role} to be {state}", 0.01)
        after = generator.uniform(0, SOON)
        time.sleep(after)
        return f"{after:.2f} s after '{state}'"

    def _new_witness(self):
        self._witnesses += 1
        directory = self._machines.home / f"witness-{self._witnesses}"
        return Witness(directory, *self._machines.nodes)

    def _start(self, witness, mode):
        options = ["--timeout", HOLD_LIMIT, *OPTIONS_OF[mode]]
        return self.migrations.start_migrate(witness.pid, options=options)

    def _boot(self, node):
        node.boot()
        node.mount_disk(DISK)

    def _record(self, role, witness):
        """Returns the record of this witness's migration, or None."""
        records = self.migrations.records(role)
        return next((one for one in records if one["history"][0][1] > witness.began_ns), None)

    @staticmethod
    def _history(record):
        return [state for state, *_ in record["history"]] if record else []

    def _open(self, witness):
        records = [self._record(role, witness) for role in SIDES]
        return [record for record in records if record and record["state"] not in FINAL]

    # -- the oracle

    def _judge(self, witness, side, done):
        source, target = (self._record(role, witness) for role in SIDES)
        a, b = self._machines.nodes
        moved = source is not None and source["state"] == "finished"
        if source and target and (source["state"] == "finished") != (target["state"] == "finished"):
            raise LabError(f"the records differ: {source['state']} and {target['state']}")
        if not source and target and target["state"] != "aborted":
            raise LabError("the source has no record, but the target has not aborted")
        if side == "target" and done.code == 0 and not moved:
            raise LabError("ppmr migrate reported success, but the process did not move")
        owner, other = (b, a) if moved else (a, b)
        self._await(witness, other, ABSENT)
        if self.node(side) is owner and witness.state(owner) == ABSENT:
            verdict = self._judge_loss(witness, source, target, done if side == "target" else None)
        else:
            self._await(witness, owner, RUNS)
            witness.wait_for_growth()
            witness.check_log([[a.name, b.name]] if moved else [[a.name]])
            verdict = "moved" if moved else "stayed"
            if any(tree["lost"] for one in (source, target) if one for tree in one["trees"]):
                raise LabError("a record says that the process is lost, but it runs")
        self._check_leftovers()
        return verdict

    def _judge_loss(self, witness, source, target, done):
        a, b = (node.name for node in self._machines.nodes)
        if source is None:
            witness.check_log([[a]])
            return "ended before there was a record"
        if source["state"] == "aborted":
            witness.check_log([[a]])
            if not source["trees"][0]["lost"]:
                raise LabError("the process ended with the source, and the record does not say so")
            return "lost, and reported"
        witness.check_log([[a], [a, b]])
        if source["trees"][0]["lost"] or (target and target["trees"][0]["lost"]):
            if done and done.code == 0:
                raise LabError("the process is lost, but ppmr migrate reported success")
            return "lost, and reported"
        if "running" not in self._history(target):
            raise LabError("the process is lost, and no record says so")
        return "ended with its new node"

    def _await(self, witness, node, state):
        wait_until(
            lambda: witness.state(node) == state,
            10,
            f"the copy on {node.name} to be '{state}'; it is '{witness.state(node)}'",
            0.1,
        )

    def _check_leftovers(self):
        for side in SIDES:
            node = self.node(side)
            words = ["pgrep", "-af", PROGRAMS_OF_A_MOVE]
            try:
                wait_until(
                    lambda: not node.run(words, check=False).stdout, 20, "programs to end", 0.5
                )
            except LabError:
                left = node.run(words, check=False).stdout
                raise LabError(f"the {side} still has programs of the move: {left}") from None
        place = self._machines.b, self.migrations.in_
        try:
            wait_until(lambda: not place[0].names(place[1]), 20, "checkpoints to go", 0.5)
        except LabError:
            raise LabError(f"checkpoints are left: {place[0].names(place[1])}") from None

    def _evidence(self, witness):
        try:
            lines = [
                f"{role}: {self._history(record)} error={record['error']!r} "
                f"tree={record['trees'][0]}"
                for role in SIDES
                if (record := self._record(role, witness))
            ]
            states = [f"{node.name}: {witness.state(node)}" for node in self._machines.nodes]
            return "\n".join([*lines, *states, self.migrations.logs(newest=1)])
        except (LabError, OSError, ValueError) as error:
            return f"(no evidence: {error})"
