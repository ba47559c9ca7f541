"""The witness of a migration (tests/programs/witness.cc): a process that writes down each step it takes and where, so that its log tells whether it went on
once, twice or not at all; and what a copy of it on a node is doing."""
import signal
import time

from .node import LabError, wait_until
from .programs import chain_state, find_program

ABSENT, DYING, STOPPED, HELD_BY_CRIU, RUNS = (
    "absent",
    "dying",
    "stopped",
    "held by CRIU",
    "runs",
)  # what a copy of the witness is


class Witness:
    def __init__(self, directory, source, target):
        self._source, self._target = source, target
        directory.mkdir()
        self.log = directory / "log"
        self.began_ns = time.time_ns()
        self.pid = source.spawn([find_program("witness"), directory])
        wait_until(
            lambda: self.log.exists() and self.log.stat().st_size > 500,
            10,
            "the witness to get under way",
        )

    def state(self, node):
        """ABSENT; DYING: it has SIGKILL pending, so it executes nothing of its own any more; STOPPED; HELD_BY_CRIU: restored, and in code that CRIU put
        there for the restore; or RUNS."""
        try:
            status = node.read_text(f"/proc/{self.pid}/status")
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            if fields["Name"] != "witness" or fields["State"][0] in "ZX":
                return ABSENT
            if int(fields["SigPnd"], 16) >> (signal.SIGKILL - 1) & 1:
                return DYING
            if fields["State"][0] in "Tt":
                return STOPPED
            where = node.read_text(f"/proc/{self.pid}/syscall").split()
            if len(where) < 3:  # it is on a core, or not in a system call
                return RUNS if node is self._source or self._has_no_restorer(node) else HELD_BY_CRIU
            return RUNS if self._is_own_code(node, int(where[-1], 16)) else HELD_BY_CRIU
        except (OSError, KeyError):
            return ABSENT  # it went while it was looked at

    def _executable(self, node):
        """(start, end, name) of its executable mappings."""
        for line in node.read_text(f"/proc/{self.pid}/maps").splitlines():
            span, flags, _, _, _, *name = line.split(None, 5)
            if "x" in flags:
                start, end = (int(number, 16) for number in span.split("-"))
                yield start, end, name[0] if name else ""

    def _is_own_code(self, node, address):
        # The restorer is anonymous memory; all that the witness executes comes from files and the vdso.
        return any(start <= address < end and name for start, end, name in self._executable(node))

    def _has_no_restorer(self, node):
        return all(name for _, _, name in self._executable(node))

    def wait_for_growth(self):
        before = self.log.stat().st_size
        wait_until(lambda: self.log.stat().st_size > before + 500, 5, "the witness to go on")

    def check_log(self, allowed):
        """`allowed`: the sequences of nodes that may be in it."""
        text = self.log.read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        nodes = []
        last_real = 0
        for number, line in enumerate(lines, start=1):
            count, state, node, real, _mono, wrong = line.split()
            if int(count) != number:
                raise LabError(
                    f"line {number} of the witness has count {count}: it was doubled, or went back, or lost something ({line})"
                )
            if int(state) != chain_state(0, number):
                raise LabError(f"line {number} of the witness has a wrong state")
            if int(wrong):
                raise LabError(f"line {number}: {wrong} words of memory are wrong")
            if int(real) <= last_real:
                raise LabError(f"line {number} was written before the one above it: two copies ran")
            last_real = int(real)
            if not nodes or nodes[-1] != node:
                nodes.append(node)
        if nodes not in allowed:
            raise LabError(f"the witness ran on {nodes}")

    def end(self):
        for node in (self._source, self._target):
            node.run(
                ["sh", "-c", 'grep -q "^Name:.witness" /proc/$0/status && kill -9 $0', self.pid],
                check=False,
            )
        wait_until(
            lambda: not any(self._is_there(node) for node in (self._source, self._target)),
            5,
            "the witness to be gone",
        )

    def _is_there(self, node):
        try:
            return "Name:\twitness" in node.read_text(f"/proc/{self.pid}/status")
        except OSError:
            return False
