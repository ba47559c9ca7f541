#!/usr/bin/python3
"""Downtime of processes of many shapes: `ppmr migrate` to another node, beside plain CRIU into tmpfs on the same node.

    bench/shapes.py                            about five minutes      as root, after `bazel build //:ppmr`
    bench/shapes.py --rounds 1 --only sparse --only threads

Plain CRIU moves nothing to another node: its dump and its restore together are what the shape costs CRIU by itself. The ways alternate.
`fill` is the time after the restart until all memory is in place. PSS: the memory of the tree, each shared page counted once, after the move
beside before.
"""
import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lab import criu  # noqa: E402
from lab.migrations import Migrations  # noqa: E402
from lab.node import Lab, wait_until  # noqa: E402
from measure.machine import environment  # noqa: E402

# Each program creates the file argv[1] when it has its shape, and then sleeps.
DONE = "open(sys.argv[1], 'w').close()\ntime.sleep(100000)"
FORK = "for _ in range({count}):\n    if os.fork() == 0: time.sleep(100000)\n"
SHAPES = {
    "small": "",
    "1 GiB": "held = bytearray(b'some') * (256 << 20)\n",
    "2,000 threads": "threading.stack_size(65536)\n"
    "for _ in range(2000): threading.Thread(target=time.sleep, args=(100000,), daemon=True).start()\n",
    "300 children": FORK.format(count=300),
    "prefork, 400 MiB and 8 children": "held = bytearray(b'some') * (100 << 20)\n"
    + FORK.format(count=8),
    "30,000 mappings": "held = mmap.mmap(-1, 60000 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
    "address = ctypes.addressof(ctypes.c_char.from_buffer(held))\n"
    "for page in range(60000): held[page * 4096] = 1\n"
    "for page in range(0, 60000, 2): ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + page * 4096), 4096, 1)\n",
    "sparse, 65,536 single pages": "held = mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)\n"
    "for page in range(65536): held[page << 20] = 1\n",
}
IMPORTS = "import ctypes, mmap, os, sys, threading, time\n"


class Tree:
    """A process of a shape, on the source."""

    def __init__(self, lab, node, shape):
        self.node = node
        ready = lab.home / "ready"
        ready.unlink(missing_ok=True)
        program = IMPORTS + SHAPES[shape] + DONE
        self.pid = node.spawn(["/usr/bin/python3", "-c", program, ready])
        wait_until(ready.exists, 120, f"the process '{shape}'")

    def pids(self):
        shown = self.node.run(["ps", "-eo", "pid=,ppid="]).stdout.split()
        pairs = list(zip(map(int, shown[::2]), map(int, shown[1::2])))
        return [self.pid, *(pid for pid, parent in pairs if parent == self.pid)]

    def pss_mib(self):
        files = " ".join(f"/proc/{pid}/smaps_rollup" for pid in self.pids())
        shown = self.node.run(["sh", "-c", f"grep -h ^Pss: {files}"]).stdout
        return sum(int(line.split()[1]) for line in shown.splitlines()) / 1024

    def end(self):
        pids = self.pids()
        for pid in reversed(pids):
            self.node.signal(pid, 9)
        for pid in pids:
            self.node.await_end(pid)


def move(lab, nodes, migrations, shape):
    """One move with ppmr: the tree of its summary, and the PSS before and after."""
    tree = Tree(lab, nodes.source, shape)
    before = tree.pss_mib()
    summary = migrations.migrate(tree.pid, timeout=300).ok().summary["trees"][0]
    tree.node = nodes.target
    after = tree.pss_mib()
    tree.end()
    return {**summary, "pss_before_mib": before, "pss_after_mib": after}


def plain(lab, node, shape, number):
    """Seconds of a dump into tmpfs and of a restore from there."""
    tree = Tree(lab, node, shape)
    pids = tree.pids()
    images, work = node.scratch(f"images{number}", tmpfs=True), node.scratch(f"work{number}")
    began = time.monotonic()
    criu.dump(node, tree.pid, images, work, timeout=300)
    dumped = time.monotonic()
    for pid in pids:  # a restored process needs its pid
        node.await_end(pid)
    node.keep_helpers_low()
    restoring = time.monotonic()
    criu.restore(node, images, work, timeout=300)
    restored = time.monotonic()
    tree.end()
    node.drop_scratch(images)
    return (dumped - began) + (restored - restoring)


def measure(shape, rounds):
    moves, plains = [], []
    with Lab() as lab:
        nodes = lab.pair()
        options = ["--memory-limit", "6GiB"]
        with Migrations(
            nodes.source, nodes.target, lab.directory / "private", target_options=options
        ) as migrations:
            for number in range(rounds):
                moves.append(move(lab, nodes, migrations, shape))
                plains.append(plain(lab, nodes.source, shape, number))
    median = {
        key: statistics.median(each[key] for each in moves)
        for key in ("downtime_s", "fill_s", "bytes", "pss_before_mib", "pss_after_mib")
    }
    floor = statistics.median(plains)
    print(
        f"| {shape} | {median['downtime_s']:.2f} | {floor:.2f} | {median['downtime_s'] / floor:.2f} "
        f"| {median['fill_s']:.2f} | {median['bytes'] / 1e6:.0f} "
        f"| {median['pss_after_mib']:.0f} / {median['pss_before_mib']:.0f} |",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", metavar="TEXT", help="shapes with this text")
    arguments = parser.parse_args()
    for name, value in environment().items():
        print(f"{name:9} {value}")
    print(f"medians of {arguments.rounds}\n")
    print(
        "| shape | downtime of ppmr migrate, s | plain CRIU, dump + restore, s | ratio | fill, s | sent, MB | PSS after / before, MiB |"
    )
    print("| --- " * 7 + "|")
    for shape in SHAPES:
        if not arguments.only or any(text in shape for text in arguments.only):
            measure(shape, arguments.rounds)


if __name__ == "__main__":
    main()
