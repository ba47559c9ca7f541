"""A process that checks its own memory all the time, before and after a move."""
import signal

from lab import tracking
from lab.node import wait_until

# Writes to its memory all the time, and compares each word with what it has last written there.
# Every word follows from the number of the turn, so a mixture of two moments shows. Appends a line
# for each turn.
CHECKER = """
import os, sys, time
path, mib = sys.argv[1], int(sys.argv[2])
memory = memoryview(bytearray(mib << 20)).cast("Q")
memory[:] = memoryview(bytes(range(256)) * (mib << 12)).cast("Q")
pages, counts = mib << 8, {}
lines = open(path, "a", buffering=1)
turn = 0
while True:
    for step in range(50):
        page = (turn * 7919 + step * 31) % (pages // 8)
        counts[page] = counts.get(page, 0) + 1
        memory[page * 512] = counts[page]
    wrong = sum(memory[page * 512] != count for page, count in counts.items())
    wrong += sum(memory[page * 512 + 1] != memory[1] for page in range(turn % 97, pages, 97))
    host = os.uname().nodename
    print(turn, host, wrong, file=lines)
    turn += 1
    time.sleep(0.01)
"""


# Does the same with shared memory, which short-lived children write.
SHARED_CHECKER = """
import fcntl, mmap, os, sys, time
path, mib = sys.argv[1], int(sys.argv[2])
size, pages = mib << 20, mib << 8
heap = os.memfd_create("heap", os.MFD_ALLOW_SEALING)
os.ftruncate(heap, size)
fcntl.fcntl(heap, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
both = [memoryview(m).cast("Q") for m in (mmap.mmap(-1, size), mmap.mmap(heap, size))]
piece = os.urandom(1 << 20)
for memory in both:
    memory[:] = memoryview(piece * mib).cast("Q")
first, counts = both[0][0], {}
lines = open(path, "a", buffering=1)
turn = 0
while "--idle" in sys.argv:
    print(turn, os.uname().nodename, sum(memory[0] != first for memory in both), file=lines)
    turn += 1
    time.sleep(0.01)
while True:
    written = {(turn * 7919 + step * 31) % pages for step in range(50)}
    child = os.fork()
    if child == 0:
        for memory in both:
            for page in written:
                memory[page * 512 + 1] = turn
        os._exit(0)
    os.waitpid(child, 0)
    counts.update((page, turn) for page in written)
    wrong = int(fcntl.fcntl(heap, fcntl.F_GET_SEALS) != fcntl.F_SEAL_SHRINK)
    wrong += sum(memory[page * 512 + 1] != last for memory in both for page, last in counts.items())
    wrong += sum(both[0][page * 512] != first for page in range(0, pages, 256))
    print(turn, os.uname().nodename, wrong, file=lines)
    turn += 1
"""


# Writes all of its memory again and again, and works for so many milliseconds (of a processor) for
# each MiB. Memory that is older than the last turn is wrong.
WRITER = """
import os, sys, time
path, mib, works_ms = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
memory, piece_bytes = bytearray(mib << 20), 1 << 20
lines = open(path, "a", buffering=1)
turn = 0
while True:
    piece = turn.to_bytes(8, "little") * (piece_bytes // 8)
    for at in range(0, len(memory), piece_bytes):
        memory[at : at + piece_bytes] = piece
        works_until = time.process_time() + works_ms / 1000
        while time.process_time() < works_until:
            pass
    wrong = sum(memory[at : at + piece_bytes] != piece for at in range(0, len(memory), piece_bytes))
    print(turn, os.uname().nodename, wrong, file=lines)
    turn += 1
"""


class Checker:
    def __init__(self, lab, nodes, mib=64, program=CHECKER, options=(), name="checker"):
        self.nodes = nodes
        self.path = lab.home / name
        words = ["/usr/bin/python3", "-c", program, self.path, mib, *options]
        self.pid = nodes.source.spawn(words)
        self.wait_for_lines(20)

    def lines(self):
        text = self.path.read_text() if self.path.exists() else ""
        return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for_lines(self, count, node=None):
        """Waits for so many more lines, or for so many of a node in all."""

        def enough():
            lines = [line for line in self.lines() if node is None or line[1] == node.name]
            return len(lines) >= begun + count

        begun = 0 if node else len(self.lines())
        wait_until(enough, 30, f"{count} lines")

    def check_continuous(self):
        lines = self.lines()
        assert [int(turn) for turn, _, _ in lines] == list(range(len(lines)))
        assert {wrong for _, _, wrong in lines} == {"0"}, "a word is not as it was last written"

    def check_runs_at(self, node):
        other = self.nodes.source if node is self.nodes.target else self.nodes.target
        self.wait_for_lines(20)
        assert node.alive(self.pid) and not other.alive(self.pid)
        self.check_continuous()

    def is_tracked(self):
        """Returns whether the kernel tracks the process at the source, or a program there holds a
        userfaultfd."""
        source = self.nodes.source
        [host_pid] = [host for host, pid in source.all_processes() if pid == self.pid]
        return tracking.is_tracked(host_pid) or bool(tracking.userfaultfds(source))

    def end(self):
        for node in (self.nodes.source, self.nodes.target):
            if node.alive(self.pid):
                node.signal(self.pid, signal.SIGKILL)
