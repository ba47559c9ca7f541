"""Measures what encryption, compression and a flood of strangers cost, and what compression gains:
one process moves with `ppmr migrate`, each way with mounts of its own.

A sample is the time from the freeze until all memory is in place at the target; the program then
reports that its memory is the same.
"""
import contextlib
import threading

from lab.migrations import Migrations
from lab.node import LabError, wait_until
from lab.strangers import Strangers, result, threads_of

from .host import available_memory_bytes
from .plan import Item, Outcome
from .rounds import alternate
from .testbed import MIB

SECTION = "costs"

# Holds memory of one kind. Appends a line when it is ready, and one after each SIGUSR1: whether its
# memory is still the same. The kind "text" is the sources of Python's library. ppmr compresses each
# chunk alone, so repetitions beyond a chunk gain nothing.
KEEPER = """
import glob, hashlib, os, signal, sys
kind, size, log = sys.argv[1], int(sys.argv[2]), open(sys.argv[3], "ab", buffering=0)
block = b"".join(open(name, "rb").read() for name in sorted(glob.glob(os.path.dirname(os.__file__) + "/*.py")))
memory = bytearray(size)
for at in range(0, size, len(block)):
    part = block if kind == "text" else os.urandom(len(block))
    memory[at:at + len(block)] = part[:min(len(block), size - at)]
digest = hashlib.blake2b(memory).digest()
log.write(b"ready\\n")
while True:
    signal.sigwait([signal.SIGUSR1])
    log.write(b"right\\n" if hashlib.blake2b(memory).digest() == digest else b"WRONG\\n")
"""

TRUSTED = ["--trusted-fabric"]
# {way: (options of both daemons, options of the source)}
ENCRYPTION = {"encrypted": ([], []), "plain": (TRUSTED, [])}
COMPRESSION = {how: ([], ["--compress", how]) for how in ("off", "lz4", "zstd")}
# Connection attempts without a key from eight addresses, within one move.
ATTEMPTS, ATTEMPTS_PER_SECOND = 10_000, 1_250
ALONE, FLOODED = "alone", f"{ATTEMPTS:,} strangers"
OFF_AND_ZSTD = {how: COMPRESSION[how] for how in ("off", "zstd")}


class Keeper:
    def __init__(self, node, directory, kind, size):
        directory.mkdir(parents=True)
        self.node, self._log = node, directory / "log"
        command = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        self.pid = node.spawn(
            ["/usr/bin/python3", "-SEc", command + KEEPER, kind, size, self._log],
            log=directory / "errors",
        )
        self._await("ready\n", 120)

    def _await(self, text, timeout):
        wait_until(
            lambda: (self._log.exists() and self._log.read_text().endswith(text))
            or not self.node.alive(self.pid),
            timeout,
            f"the keeper to write {text.strip()}",
        )

    def check(self, node):
        self.node = node
        node.signal(self.pid, 10)
        self._await("right\n", 60)
        if not self._log.read_text().endswith("right\n"):
            raise LabError("the memory is wrong after the move")

    def end(self):
        self.node.signal(self.pid, 9)


def move(testbed, mounts, nodes, kind, size_mib):
    """Moves a keeper and checks its memory. Returns the seconds from the freeze until all memory is
    in place."""
    at, to = nodes
    keeper = Keeper(at, testbed.lab.home / testbed.label("keeper"), kind, size_mib * MIB)
    try:
        summary = mounts.migrate(keeper.pid, timeout=300).ok().summary
        keeper.check(to)
    finally:
        keeper.end()
    [tree] = summary["trees"]
    return (tree["complete_ns"] - tree["freeze_began_ns"]) / 1e9


class MostThreads:
    """Records the largest number of threads that the daemon has had."""

    def __init__(self, daemon):
        self._daemon, self._ends, self.found = daemon, threading.Event(), 0
        self._thread = threading.Thread(target=self._watch)

    def _watch(self):
        while not self._ends.wait(0.05):
            self.found = max(self.found, threads_of(self._daemon))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ends.set()
        self._thread.join()


def measure_strangers(testbed, link, kind, size_mib, ways):
    at, to = testbed.nodes(link)
    strangers = Strangers(testbed.lab, to)
    facts = {}
    with contextlib.closing(
        Migrations(
            at,
            to,
            testbed.private,
            testbed.source_options,
            testbed.target_options,
            name=testbed.label("costs"),
        )
    ) as mounts:
        mounts.await_ready()
        target = mounts.target

        def flooded():
            at_rest = threads_of(target)
            before = target.memory_kib()["VmHWM"]
            flood = strangers.flood(mounts.port, ATTEMPTS, ATTEMPTS_PER_SECOND)
            wait_until(
                lambda: threads_of(target) > at_rest + 50, 20, "the target to serve strangers"
            )
            with MostThreads(target) as most:
                seconds = move(testbed, mounts, (at, to), kind, size_mib)
                found = result(flood, 60)
            facts["threads for strangers"] = most.found - at_rest
            if found["connected"] < ATTEMPTS / 2:
                raise LabError(f"only {found['connected']} strangers connected")
            facts["their seconds"] = found["seconds"]
            facts["connected"] = found["connected"]
            facts["MiB more than ever before"] = (target.memory_kib()["VmHWM"] - before) / 1024
            facts["lost sessions"] = mounts.source.status()["reconnections"]
            return seconds

        samples = alternate(
            dict(zip(ways, (lambda: move(testbed, mounts, (at, to), kind, size_mib), flooded))),
            testbed.effort.runs,
            testbed.effort.warm_ups,
        )
    return Outcome(samples, facts)


def measure(testbed, link, kind, size_mib, ways):
    if available_memory_bytes() < 3.5 * size_mib * MIB:
        raise LabError(f"{size_mib} MiB need more free memory")
    at, to = testbed.nodes(link)
    ratios = {}
    with contextlib.ExitStack() as opened:
        mounts = {}
        for way, (both, of_source) in ways.items():
            name = testbed.label("costs")
            mounts[way] = opened.enter_context(
                contextlib.closing(
                    Migrations(
                        at,
                        to,
                        testbed.private,
                        [*testbed.source_options, *both, *of_source],
                        [*testbed.target_options, *both],
                        name=name,
                    )
                )
            )
            mounts[way].await_ready()

        def sample(way):
            seconds = move(testbed, mounts[way], (at, to), kind, size_mib)
            [peer] = mounts[way].source.status()["peers"]
            ratios[f"bytes to 1 on the wire, {way}"] = peer["bytes"] / peer["wire_bytes"]
            return seconds

        samples = alternate(
            {way: lambda way=way: sample(way) for way in ways},
            testbed.effort.runs,
            testbed.effort.warm_ups,
        )
    return Outcome(samples, ratios)


def plan(testbed):
    effort = testbed.effort
    size_mib = max(16, effort.bytes // (MIB if effort.sweeps else 4 * MIB))

    def item(series, link, kind, ways, measuring=measure):
        parameters = {"link": link, "kind": kind, "size_mib": size_mib}
        rate = {"1 Gb/s": 110, "10 Gb/s": 800}.get(link, 800)
        seconds = len(ways) * (3 + (effort.runs + 1) * (2 + size_mib / 200 + size_mib / rate))
        return Item(
            SECTION,
            series,
            f"{kind}, {link}",
            parameters,
            "s",
            lambda: measuring(testbed, ways=ways, **parameters),
            seconds,
        )

    if not effort.sweeps:
        yield item("encryption", "veth", "random", ENCRYPTION)
        yield item("compression", "1 Gb/s", "text", OFF_AND_ZSTD)
        return
    for link in ("veth", "10 Gb/s"):
        yield item("encryption", link, "random", ENCRYPTION)
    yield item("compression", "1 Gb/s", "text", COMPRESSION)
    for link, kind in (("1 Gb/s", "random"), ("veth", "random"), ("veth", "text")):
        yield item("compression", link, kind, OFF_AND_ZSTD)
    yield item("strangers", "1 Gb/s", "random", (ALONE, FLOODED), measure_strangers)
