"""Starts the programs of tests/programs on a node, and checks that their output is one
computation."""
import os
import signal
from pathlib import Path

from .node import LabError, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
WORD = (1 << 64) - 1
PACKAGES = ("programs", "verbs_messages", "movable_verbs")  # packages with programs for tests

# All ranks run on one node, over TCP on loopback: Open MPI's segments in /dev/shm are files of the
# node and would not move.
MPIRUN = (
    *("mpirun", "--allow-run-as-root", "--oversubscribe"),
    *("--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"),
    *("--mca", "oob_tcp_if_include", "lo"),
)


def find_program(name):
    """Returns a binary of PACKAGES: in $PPMR_PROGRAMS, else Bazel's output."""
    built = [REPOSITORY / "bazel-bin/tests" / package for package in PACKAGES]
    for directory in (os.environ.get("PPMR_PROGRAMS"), *built):
        if directory and (Path(directory) / name).exists():
            return (Path(directory) / name).resolve()  # the symbolic links may not exist on a node
    raise LabError(
        f"{name} is missing: run `bazel build //tests/...`, or set PPMR_PROGRAMS to its directory"
    )


# Repeats tests/programs/arithmetic.h, so the check does not depend on the programs.
def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


def chain_state(start, steps):
    """State of a chain after `steps` steps: the affine map x -> a x + c raised to that power by
    squaring."""
    power_a, power_c = 6364136223846793005, 1442695040888963407
    a, c = 1, 0
    while steps:
        if steps & 1:
            a, c = a * power_a & WORD, (c * power_a + power_c) & WORD
        power_a, power_c = power_a * power_a & WORD, (power_c * power_a + power_c) & WORD
        steps >>= 1
    return (a * start + c) & WORD


class Line(dict):
    """A line `key=value key=value`; values that are numbers are int, lists of numbers (key in
    plural) are tuples."""

    PLURAL = {"steps", "states", "partners", "answers", "served_each"}

    def __init__(self, text):
        super().__init__()
        for word in text.split():
            key, _, value = word.partition("=")
            if key in ("node", "digest", "expected"):
                self[key] = value
            elif "," in value or key in self.PLURAL:
                self[key] = tuple(int(part) for part in value.split(","))
            else:
                self[key] = int(value)


class Program:
    """A program that writes numbered lines to `directory`/output. After a move, set `node` to its
    new node."""

    def __init__(self, node, name, arguments, directory, timeout=60):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True)
        self.node = node
        self.pid = node.spawn([find_program(name), *arguments], log=self.directory / "log")
        wait_until(
            lambda: (self.directory / "ready").exists() or not node.alive(self.pid),
            timeout,
            f"{name} to start",
        )
        if not node.alive(self.pid):
            log = (self.directory / "log").read_text().strip()
            raise LabError(f"{name} ended at once; its output: {log}")

    def lines(self):
        """Returns all complete lines so far."""
        text = (self.directory / "output").read_text()
        return [Line(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def wait_for_lines(self, count, node=None, timeout=20, check=lambda: None):
        """Waits for `count` more lines, on `node` if given. `check` may raise an error to end the
        wait."""
        seen = self._line_count(node)

        def there():
            check()
            return self._line_count(node) >= seen + count

        wait_until(
            there,
            timeout,
            f"{count} more lines" + (f" from node {node.name}" if node else ""),
            interval=0.01,
        )

    def _line_count(self, node):
        text = (self.directory / "output").read_bytes()
        return text.count(f" node={node.name} ".encode()) if node else text.count(b"\n")

    def end(self):
        self.node.signal(self.pid, signal.SIGKILL)


class SteadyWorker(Program):
    def __init__(self, node, directory, size_mib=64, threads=4, seed=1, pages_per_s=0):
        # Filling memory can be as slow as half a GiB per second if the host must first provide the
        # memory.
        super().__init__(
            node,
            "steady_worker",
            [directory, size_mib, threads, seed, pages_per_s],
            directory,
            timeout=60 + size_mib / 64,
        )
        self.threads = threads

    def audit(self, timeout=120):
        """Requests an audit of the memory and returns its line."""
        path = self.directory / "audits"
        before = path.read_text().count("\n")
        self.node.signal(self.pid, signal.SIGUSR1)
        wait_until(
            lambda: path.read_text().count("\n") > before, timeout, "the audit of the memory"
        )
        return Line(path.read_text().splitlines()[before])

    def offset(self):
        """Returns the offset of the descriptor of its output."""
        output = str(self.directory / "output")
        for fd in self.node.names(f"/proc/{self.pid}/fd"):
            try:
                if self.node.readlink(f"/proc/{self.pid}/fd/{fd}") == output:
                    info = self.node.read_text(f"/proc/{self.pid}/fdinfo/{fd}")
                    return int(info.split("pos:")[1].split()[0])
            except FileNotFoundError:
                continue
        raise LabError(f"process {self.pid} does not have {output} open")

    def thread_count(self):
        return len(self.node.names(f"/proc/{self.pid}/task"))


def gap_between(lines, left, right):
    """(last line on `left`, first line on `right`) of a program that moved from node `left` to
    `right`."""
    nodes = [line["node"] for line in lines]
    if right.name not in nodes:
        raise LabError(f"no line was written on node {right.name}")
    first = nodes.index(right.name)
    if first == 0 or set(nodes[:first]) != {left.name} or left.name in nodes[first:]:
        raise LabError(f"lines of the nodes {left.name} and {right.name} are mixed: both wrote")
    return lines[first - 1], lines[first]


def check_continuity(lines):
    """Raises LabError with the first line that does not continue the line before it."""
    for number, (before, line) in enumerate(zip([None, *lines], lines), start=1):

        def wrong(what):
            raise LabError(f"line {number}: {what}")

        if line["line"] != number:
            wrong(f"carries number {line['line']}")
        answers = line["answers"] if "answers" in line else (line["answer"],)
        served = line["served"] if isinstance(line["served"], tuple) else (line["served"],)
        if any(answer != mix(number) for answer in answers):
            wrong("a partner's answer is wrong")
        if any(count != number for count in served):
            wrong("a partner has lost count of its answers")
        if line.get("wrong_words"):
            wrong(f"{line['wrong_words']} words of shared memory are wrong")
        for thread, (steps, state) in enumerate(zip(line.get("steps", ()), line.get("states", ()))):
            if state != chain_state(thread, steps):
                wrong(f"thread {thread} is not where {steps} steps lead")
        if before is None:
            continue
        if line["mono_ns"] <= before["mono_ns"]:
            wrong("the clock went back")
        if (
            line["pid"] != before["pid"]
            or line.get("child") != before.get("child")
            or line.get("partners") != before.get("partners")
        ):
            wrong("a pid has changed")
        if line.get("ticks", 0) < before.get("ticks", 0):
            wrong("the timer's count went back")
        if any(now < then for now, then in zip(line.get("steps", ()), before.get("steps", ()))):
            wrong("a thread went back")
