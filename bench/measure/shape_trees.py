"""The trees whose moves the chapter shapes measures, each of one shape.

The first process of a tree writes a line `NANOSECONDS NODE` about every millisecond: its beats. The
time is CLOCK_REALTIME, which CRIU's time namespace does not change. So every way to move the
program shows in the same manner how long it stood still at most.
"""
from dataclasses import dataclass, replace

from lab.node import LabError, wait_until
from lab.programs import REPOSITORY

WORKLOADS = REPOSITORY / "bench/workloads"
BEATS_BEFORE, BEATS_AFTER = 50, 5

# A Python program makes its shape, then beats. `right()` is false if memory or processes are not
# what they were. It is called when the observer creates the file BEATS.check, and the answer is the
# file BEATS.checked.
IMPORTS = """
import ctypes, mmap, os, sys, threading, time
PIECE = b"some" * (1 << 18)
def hold(mib):
    held = bytearray(mib << 20)
    for number in range(mib): held[number << 20 : (number + 1) << 20] = PIECE
    return held
def all_there(held):
    return all(held[number << 20 : (number + 1) << 20] == PIECE for number in range(len(held) >> 20))
def fork(count, job):
    for number in range(count):
        if os.fork() == 0:
            kept = job(number)
            while True: time.sleep(100000)
def children():
    return len(open(f"/proc/self/task/{os.getpid()}/children").read().split())
def anonymous(pages, flags=0):
    return mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
def work(): pass
began = time.time()
"""
BEAT = """
beats = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    work()
    os.write(beats, b"%d %s\\n" % (time.time_ns(), os.uname().nodename.encode()))
    if os.access(sys.argv[1] + ".check", os.F_OK) and not os.access(sys.argv[1] + ".checked", os.F_OK):
        answer = "yes" if right() else "no"
        with open(sys.argv[1] + ".new", "w") as file: file.write(answer)
        os.rename(sys.argv[1] + ".new", sys.argv[1] + ".checked")
    time.sleep(beat_s)
"""


def filled(mib):
    return f"held = hold({mib})\ndef right(): return all_there(held)\n"


HOT_MIB, HOT_PAGES_PER_S = 64, 20_000


def hot(mib):
    """Memory of which a part is written all the time, page after page."""
    return (
        f"held, pages, count = hold({mib}), {HOT_MIB} << 8, 0\n"
        "def work():\n"
        "    global count\n"
        f"    while count < (time.time() - began) * {HOT_PAGES_PER_S}:\n"
        "        held[count % pages << 12] = count // pages % 256\n"
        "        count += 1\n"
        "def written(page): return (count - 1 - page) // pages % 256\n"
        "def right():\n"
        "    here = all(held[page << 12] == written(page) for page in range(pages))\n"
        f"    return here and all_there(held[{HOT_MIB} << 20 :])\n"
    )


def allocating(mib):
    """Objects of 1 KiB, of which some are replaced by new ones all the time."""
    return (
        f"held, count = [bytes([number % 250]) * 990 for number in range({mib} << 10)], 0\n"
        "def work():\n"
        "    global count\n"
        "    for count in range(count, count + 50):\n"
        "        held[count % len(held)] = bytes([count % len(held) % 250]) * 990\n"
        "def right(): return all(text[0] == text[-1] == at % 250 for at, text in enumerate(held))\n"
    )


def files(mib):
    """Files in memory that are open."""
    return (
        f"held = [os.memfd_create(f'file{{number}}') for number in range({mib >> 8})]\n"
        "for file in held:\n"
        "    for _ in range(256): os.write(file, PIECE)\n"
        "def right(): return all(os.pread(file, 1 << 20, at << 20) == PIECE for file in held for at in range(256))\n"
    )


def shared(mib):
    """Shared memory, and a child that has it, too."""
    return (
        f"held = mmap.mmap(-1, {mib} << 20)\n"
        f"for number in range({mib}): held[number << 20 : (number + 1) << 20] = PIECE\n"
        "fork(1, lambda number: held)\n"
        "def right(): return all_there(held) and children() == 1\n"
    )


def threads(count):
    return (
        "threading.stack_size(65536)\n"
        f"for _ in range({count}): threading.Thread(target=time.sleep, args=(100000,), daemon=True).start()\n"
        f"def right(): return len(os.listdir('/proc/self/task')) == {count + 1}\n"
    )


def processes(count):
    return (
        f"fork({count - 1}, lambda number: None)\ndef right(): return children() == {count - 1}\n"
    )


def prefork(mib, count):
    """Makes children that share the memory of their parent. Each also has a little memory of
    its own."""
    return (
        f"held = hold({mib})\n"
        f"fork({count - 1}, lambda number: os.urandom((number + 1) * 100_000))\n"
        f"def right(): return all_there(held) and children() == {count - 1}\n"
    )


def mappings(count):
    """Makes many mappings: pages that alternate between read-only and writable."""
    return (
        f"held = anonymous({2 * count})\n"
        "address = ctypes.addressof(ctypes.c_char.from_buffer(held))\n"
        f"for page in range({2 * count}): held[page * 4096] = 1 + page % 250\n"
        f"for page in range(0, {2 * count}, 2): ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + page * 4096), 4096, 1)\n"
        f"def right(): return all(held[page * 4096] == 1 + page % 250 for page in range({2 * count}))\n"
    )


def reserved(mib, gib):
    """Memory, and unused address space as programs reserve it for later growth: without access
    rights, and without MAP_NORESERVE."""
    return f"unused = mmap.mmap(-1, {gib << 30}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0)\n" + filled(mib)


MAP_NORESERVE = 0x4000
SPARSE_PAGES = 65536


def sparse(pages):
    """Makes single pages, 1 MiB apart."""
    return (
        f"held = anonymous({pages << 8}, {MAP_NORESERVE})\n"
        f"for page in range({pages}): held[page << 20] = 1 + page % 250\n"
        f"def right(): return all(held[page << 20] == 1 + page % 250 for page in range({pages}))\n"
    )


def python(shape, beat_s=0.001):
    return ["/usr/bin/python3", "-c", f"{IMPORTS}{shape}beat_s = {beat_s}\n{BEAT}"]


@dataclass(frozen=True)
class Shape:
    name: str
    command: list  # the path of the beats is appended
    mib: int  # MiB of memory in use
    images_mib: int = 0  # of images, if that is more
    checks: bool = True  # whether the program checks itself
    needs: str = ""  # a command that must be installed
    package: str = ""
    writes: bool = False  # measured in a few ways only: the others say little, and take long

    @property
    def most_mib(self):
        return max(self.mib, self.images_mib)

    def missing(self, at):
        """The reason why the program cannot run on a node, or an empty string."""
        if not self.needs:
            return ""
        found = at.run(["sh", "-c", f"command -v {self.needs}"], check=False).returncode == 0
        return (
            "" if found else f"{self.needs} is missing: third_party/install installs {self.package}"
        )


def jvm_that_reserves(mib, gib, *options):
    """The heap of `heap()`, in a JVM whose heap may grow to `gib` GiB."""
    name = f"JVM, {' '.join([*options, ''])}{gib} GiB reserved"
    command = ["java", *options, f"-Xmx{gib}g", f"-Xms{2 * mib}m", "-XX:-UsePerfData"]
    return replace(heap("JVM", mib), name=name, command=[*command, WORKLOADS / "Heap.java", mib])


def node_that_reserves(mib):
    """The heap of `heap()`, and a memory of WebAssembly: 64 KiB, for which V8 reserves 10 GiB."""
    node, *rest = heap("Node.js", mib).command
    command = [node, "--require", WORKLOADS / "reserve.js", *rest]
    return replace(heap("Node.js", mib), name="Node.js, WebAssembly", command=command)


def heap(name, mib):
    if name.startswith("Node.js"):
        command = ["node", WORKLOADS / "heap.js", mib]
        return Shape(name, command, mib + 90, checks=False, needs="node", package="nodejs")
    command = ["java", f"-Xmx{2 * mib}m", "-XX:-UsePerfData", WORKLOADS / "Heap.java", mib]
    return Shape(
        name, command, 3 * mib, checks=False, needs="java", package="openjdk-17-jre-headless"
    )


def live_shapes():
    """Programs that write while they are copied, and memory that is no private memory."""
    found = [
        Shape("1 GiB, 64 MiB hot", python(hot(1024)), 1024),
        Shape("4 GiB, 64 MiB hot", python(hot(4096)), 4096),
        Shape("Python, 1 GiB", python(allocating(1024)), 1100),
        heap("Node.js, 1 GiB", 1024),
        heap("JVM, 1 GiB", 1024),
        Shape("1 GiB of open files in memory", python(files(1024)), 1024),
        Shape("3 GiB of open files in memory", python(files(3072)), 3072),
    ]
    return [replace(shape, writes=True) for shape in found]


def shapes(effort):
    """The shapes of a run; a short run has a small one."""
    if not effort.sweeps:
        return [Shape(f"{mib} MiB", python(filled(mib)), mib) for mib in effort.shape_mib]
    sizes = [
        Shape(f"{mib >> 10} GiB" if mib >= 1024 else f"{mib} MiB", python(filled(mib)), mib)
        for mib in effort.shape_mib
    ]
    return [
        *sizes,
        Shape("1 GiB shared", python(shared(1024)), 1024),
        Shape("2,000 threads", python(threads(2000)), 64),
        Shape("300 processes", python(processes(300)), 300),
        Shape("30,000 mappings", python(mappings(30000)), 240),
        Shape("64 MiB, 1 TiB reserved", python(reserved(64, 1024)), 64),
        Shape("sparse, 65,536 single pages", python(sparse(SPARSE_PAGES)), 400),
        # CRIU writes shared memory once for each process.
        Shape("prefork, 400 MiB and 8 children", python(prefork(400, 9)), 420, 9 * 420),
        heap("Node.js", 128),
        heap("JVM", 128),
        jvm_that_reserves(128, 64),
        jvm_that_reserves(128, 16, "-XX:+UseZGC"),
        node_that_reserves(128),
        *live_shapes(),
    ]


def await_free(node, pid):
    """Waits until no process has this pid, not even a zombie."""
    wait_until(lambda: not node.exists(f"/proc/{pid}"), 30, f"pid {pid} to be free", interval=0.001)


def tasks_of(node, pid):
    """Returns a process and its descendants."""
    shown = node.run(["ps", "-eo", "pid=,ppid="]).stdout.split()
    parents = dict(zip(map(int, shown[::2]), map(int, shown[1::2])))
    found = [pid]
    for parent in found:
        found += [task for task, of in parents.items() if of == parent]
    return found


@dataclass(frozen=True)
class Beat:
    time: float
    node: str


def gap(beats, moment, source, target):
    """The times of the last beat before a moment at which a tree was frozen, and of the first after
    it. LabError if they are not of these nodes."""
    beats = sorted(beats, key=lambda beat: beat.time)
    *earlier, last = (beat for beat in beats if beat.time <= moment)
    first = next(beat for beat in beats if beat.time > moment)
    # A program that is frozen within a beat has read the time on the source, and reads the node's
    # name on the target.
    if earlier[-1].node != source or last.node not in (source, target) or first.node != target:
        raise LabError(
            f"the tree ran on {last.node} before its move and on {first.node} after it, expected {source} and {target}"
        )
    return last.time, first.time


class Tree:
    """A tree of a shape. `arrived` sets its new node."""

    dump_options = ()

    def __init__(self, testbed, shape):
        self.shape, self.node = shape, testbed.source
        self._directory = testbed.lab.home / testbed.label("tree")
        self._directory.mkdir()
        self._beats = self._directory / "beats"
        self._log = self._directory / "log"
        self.pid = self.node.spawn([*shape.command, self._beats], log=self._log)
        # The first touch of memory that the host has not backed can be as slow as 64 MiB per
        # second.
        self._tasks = [self.pid]
        self.await_beats(BEATS_BEFORE, timeout=60 + shape.mib / 64)
        self._tasks = tasks_of(self.node, self.pid)

    def beats(self):
        text = self._beats.read_text() if self._beats.exists() else ""
        lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return [Beat(int(words[0]) / 1e9, words[1]) for words in lines]

    def await_beats(self, count, after=0.0, timeout=30):
        """Waits for `count` beats on the node that are later than `after`."""

        def there():
            found = sum(
                beat.time > after and beat.node == self.node.name
                for beat in self.beats()[-4 * count :]
            )
            return found >= count or not self.node.alive(self.pid)

        wait_until(
            there, timeout, f"'{self.shape.name}' to run on {self.node.name}", interval=0.005
        )
        if not self.node.alive(self.pid):
            raise LabError(
                f"'{self.shape.name}' has ended on {self.node.name}; its output: {self._log.read_text().strip()[-500:] or 'none'}"
            )

    def arrived(self, node):
        """Called as soon as the tree runs on its new node."""
        self.node = node

    def gap(self, moment, source, target):
        """The last beat before a moment at which the tree was frozen, and the first after it.
        LabError if they are not of these nodes."""
        return gap(self.beats(), moment, source.name, target.name)

    def check(self):
        """LabError if the program finds its memory, threads or children changed."""
        if not self.shape.checks:
            return
        question, answer = (self._beats.with_suffix(end) for end in (".check", ".checked"))
        question.touch()
        wait_until(answer.exists, 120, f"'{self.shape.name}' to check its memory")
        if answer.read_text() != "yes":
            raise LabError(f"'{self.shape.name}' is not what it was before its move")

    def pss_mib(self):
        """The memory of the tree; each shared page counts once."""
        files = " ".join(f"/proc/{pid}/smaps_rollup" for pid in self._tasks)
        shown = self.node.run(["sh", "-c", f"grep -h ^Pss: {files}"]).stdout
        return sum(int(line.split()[1]) for line in shown.splitlines()) / 1024

    def end(self, *nodes):
        """Kills the remaining processes of the tree on these nodes, also if the first process
        has ended."""
        for node in nodes:
            left = [pid for pid in self._tasks if node.exists(f"/proc/{pid}")]
            if left:
                node.run(["kill", "-KILL", *reversed(left)], check=False)
            for pid in left:
                await_free(node, pid)

    def remove(self):
        for file in self._directory.iterdir():
            file.unlink()
        self._directory.rmdir()
