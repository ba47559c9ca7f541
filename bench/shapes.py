#!/usr/bin/python3
"""Downtime of processes of many shapes: `ppmr migrate` to another node, beside CRIU with usual means.

    bench/shapes.py                            about 15 minutes      as root, after `bazel build //:ppmr`
    bench/shapes.py --rounds 1 --only sparse --only threads --only evacuate

Plain CRIU moves nothing to another node: its dump into tmpfs and its restore together are what the shape costs CRIU by itself. The ways
alternate. `fill` is the time after the restart until all memory is in place. PSS: the memory of the tree, each shared page counted once, after
the move beside before. At the end: how long `ppmr evacuate` needs for 60 processes.
"""
import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lab import criu  # noqa: E402
from lab.migrations import Migrations  # noqa: E402
from lab.move import now  # noqa: E402
from lab.node import Lab, wait_until  # noqa: E402
from lab.peers import TarMove  # noqa: E402
from measure.machine import environment  # noqa: E402

# Each program creates the file argv[1] when it has its shape, and then sleeps.
DONE = "open(sys.argv[1], 'w').close()\ntime.sleep(100000)"
FORK = "for _ in range({count}):\n    if os.fork() == 0: time.sleep(100000)\n"
SHAPES = {
    "small": "",
    "64 MiB": "held = bytearray(b'some') * (16 << 20)\n",
    "1 GiB": "held = bytearray(b'some') * (256 << 20)\n",
    "4 GiB": "held = bytearray(b'some') * (1 << 30)\n",
    "2,000 threads": "threading.stack_size(65536)\n"
    "for _ in range(2000): threading.Thread(target=time.sleep, args=(100000,), daemon=True).start()\n",
    "300 children": FORK.format(count=300),
    "prefork, 400 MiB and 8 children": "held = bytearray(b'some') * (100 << 20)\n"
    "for child in range(8):\n    if os.fork() == 0: own = os.urandom((child + 1) * 100_000); time.sleep(100000)\n",
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


def ppmr(lab, nodes, migrations, shape, *options):
    """One move with ppmr: the tree of its summary, and the PSS before and after."""
    tree = Tree(lab, nodes.source, shape)
    before = tree.pss_mib()
    summary = migrations.migrate(tree.pid, timeout=300, options=options).ok().summary["trees"][0]
    tree.node = nodes.target
    after = tree.pss_mib()
    tree.end()
    return {**summary, "pss_before_mib": before, "pss_after_mib": after}


def tar(lab, nodes, shape, label):
    """A move by tmpfs and tar."""
    tree = Tree(lab, nodes.source, shape)
    way = TarMove(nodes.source, nodes.target)
    way.prepare(label)
    timeline = way.move_tree(tree.pid)
    running = now()
    tree.node = nodes.target
    tree.end()
    way.clean()
    return {"downtime_s": running - timeline.dump_began}


def plain(lab, node, shape, label):
    """A dump into tmpfs and a restore from there."""
    tree = Tree(lab, node, shape)
    pids = tree.pids()
    images, work = node.scratch(f"{label}-images", tmpfs=True), node.scratch(f"{label}-work")
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
    return {"downtime_s": (dumped - began) + (restored - restoring)}


def measure(shape, rounds):
    with Lab() as lab:
        nodes = lab.pair()
        with Migrations(
            nodes.source,
            nodes.target,
            lab.directory / "private",
            target_options=["--memory-limit", "6GiB"],
        ) as migrations:
            ways = {
                "ppmr": lambda label: ppmr(lab, nodes, migrations, shape),
                "post-copy": lambda label: ppmr(lab, nodes, migrations, shape, "--post-copy"),
                "plain": lambda label: plain(lab, nodes.source, shape, label),
                "tar": lambda label: tar(lab, nodes, shape, label),
            }
            results = {name: [] for name in ways}
            for number in range(rounds):
                for name, way in ways.items():
                    results[name].append(way(f"{name}{number}"))

    def median(name, key="downtime_s"):
        return statistics.median(each[key] for each in results[name])

    downtime = {name: median(name) for name in ways}
    fill = [f"{median(name, 'fill_s'):.2f}" for name in ("ppmr", "post-copy")]
    pss = [f"{median('ppmr', f'pss_{when}_mib'):.0f}" for when in ("after", "before")]
    print(
        f"| {shape} | "
        + " | ".join(f"{seconds:.2f}" for seconds in downtime.values())
        + f" | {downtime['ppmr'] / downtime['plain']:.2f} | {downtime['ppmr'] / downtime['tar']:.2f} "
        f"| {' / '.join(fill)} | {median('ppmr', 'bytes') / 1e6:.0f} | {' / '.join(pss)} |",
        flush=True,
    )


def evacuate(rounds, count=60, size_mib=8):
    """Moves many processes with one command; prints the seconds."""
    taken = []
    with Lab() as lab:
        nodes = lab.pair()
        with Migrations(nodes.source, nodes.target, lab.directory / "private") as migrations:
            for _ in range(rounds):
                program = f"import os, sys, time\nheld = os.urandom({size_mib} << 20)\n{DONE}"
                ready = [lab.home / f"ready{number}" for number in range(count)]
                pids = []
                for path in ready:
                    path.unlink(missing_ok=True)
                    pids.append(nodes.source.spawn(["/usr/bin/python3", "-c", program, path]))
                wait_until(lambda: all(path.exists() for path in ready), 120, "the processes")
                began = time.monotonic()
                migrations.evacuate("--match", f"{lab.home}/ready", timeout=300).ok()
                taken.append(time.monotonic() - began)
                for pid in pids:
                    nodes.target.signal(pid, 9)
                for pid in pids:
                    nodes.target.await_end(pid)
    print(
        f"\n{count} processes of {size_mib} MiB by `ppmr evacuate`: {statistics.median(taken):.1f} s"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", metavar="TEXT", help="shapes with this text")
    arguments = parser.parse_args()
    for name, value in environment().items():
        print(f"{name:9} {value}")
    print(f"medians of {arguments.rounds}\n")
    columns = [
        "shape",
        "ppmr migrate, s",
        "ppmr migrate --post-copy, s",
        "plain CRIU, dump + restore, s",
        "tmpfs + tar + restore, s",
        "ppmr migrate / plain CRIU",
        "ppmr migrate / tmpfs + tar",
        "fill: default / post-copy, s",
        "sent, MB",
        "PSS after / before, MiB",
    ]
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")
    for shape in SHAPES:
        if not arguments.only or any(text in shape for text in arguments.only):
            measure(shape, arguments.rounds)
    if not arguments.only or "evacuate" in arguments.only:
        evacuate(arguments.rounds)


if __name__ == "__main__":
    main()
