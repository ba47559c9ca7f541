"""A whole move with ppmr against what people do today, and what a dump into the source mount costs; medians of alternating runs.

    /usr/bin/python3 bench/migrate_vs_peers.py [--ppmr PATH] [--size-mib 1024] [--runs 5] [--rate 10gbit] [--json FILE]

Everything runs on this machine, as root, in two nodes made of namespaces and joined by a veth pair. Within a round every way gets its
turn, the order rotating from round to round, each with a process that was started for it; one round beforehand warms up and is not counted.
With --fresh-memory every way finds a machine whose free memory the host has not backed, as it is on a virtual machine that has just been
started or has given its free memory back (see with_fresh_memory.py); without, memory that was in use a moment ago.
"""
import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
from pathlib import Path

from with_fresh_memory import FreshMemory

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from lab import criu  # noqa: E402
from lab.migration import now  # noqa: E402
from lab.node import Lab, LabError  # noqa: E402
from lab.peers import PageServerMove, TarMove  # noqa: E402
from lab.ppmr import Daemon, Mounts, PpmrMove, find_ppmr  # noqa: E402
from lab.programs import SteadyWorker, check_continuity  # noqa: E402


def environment():
    def output(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return "unknown"
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "unknown")
    memory = int(next(line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))) // (1 << 20)
    mode = [part.rsplit("-", 1)[1] for part in find_ppmr().parts if part.startswith("k8-")]
    return {"host": f"{platform.node()}: {os.cpu_count()} x {model}, {memory} GiB", "kernel": platform.release(),
            "commit": output("git", "rev-parse", "--short", "HEAD") + ("+" if output("git", "status", "--porcelain", "-uno") else ""),
            "build": mode[0] if mode else "unknown", "criu": output(criu.find_criu(), "--version").split()[1]}


class Bench:
    def __init__(self, size_mib, rate, fresh_memory=None):
        self.size_mib = size_mib
        self.fresh_memory = fresh_memory
        self.seconds = {}        # what -> seconds, one per counted run
        self.memory_mib = {}
        self.labels = 0
        self.lab = Lab()
        self.source, self.target = self.lab.node("source"), self.lab.node("target")
        link = self.lab.join(self.source, self.target)
        if rate:
            link.limit(rate)
        self.counted = False

    def close(self):
        self.lab.close()

    def note(self, what, seconds):
        if self.counted:
            self.seconds.setdefault(what, []).append(seconds)

    def await_fresh_memory(self):
        if self.fresh_memory and not self.fresh_memory.renew():
            raise LabError("the host does not take freed memory back: --fresh-memory cannot be had here")

    def label(self):
        self.labels += 1
        return f"run{self.labels}"

    def worker(self, label):
        worker = SteadyWorker(self.source, self.lab.home / label, self.size_mib)
        worker.wait_for_lines(20)
        return worker

    def whole_move(self, move):
        label = self.label()
        worker = self.worker(label)
        try:
            move.prepare(label)
            self.await_fresh_memory()
            timeline = move.move(worker)
            move.finish()
            check_continuity(worker.lines())
            audit = worker.audit()
            if audit["wrong_words"]:
                raise LabError(f"{move.name}: {audit['wrong_words']} words of memory are wrong after the move")
            self.note(f"move, {move.name}", timeline.whole_move)
            self.note(f"downtime, {move.name}", timeline.downtime)
        finally:
            worker.end()
            move.clean()

    def dump_only(self, what, worker, images, label, after=lambda: None):
        work = self.source.scratch(f"{label}-work")
        self.await_fresh_memory()
        began = now()
        criu.dump(self.source, worker.pid, images, work, ["--leave-running"])
        dumped = now()
        after()
        self.note(f"dump, {what}", dumped - began)
        self.note(f"dump and verified, {what}", now() - began)
        self.source.drop_scratch(work)

    def remember_memory(self, mounts):
        for daemon in (mounts.source, mounts.target):
            most = daemon.memory_kib()["VmHWM"] / 1024
            self.memory_mib[daemon.role] = max(most, self.memory_mib.get(daemon.role, 0))


def rotate(ways, by):
    by %= len(ways)
    return ways[by:] + ways[:by]


def measure_moves(bench, runs, source_options, target_options):
    with Mounts(bench.source, bench.target, bench.lab.directory / "private", source_options, target_options) as mounts:
        ways = [PpmrMove(bench.source, bench.target, mounts), TarMove(bench.source, bench.target), PageServerMove(bench.source, bench.target)]
        for round_number in range(runs + 1):
            bench.counted = round_number > 0
            for way in rotate(ways, round_number):
                bench.whole_move(way)
            progress(f"moves: round {round_number} of {runs}")
        bench.remember_memory(mounts)


def measure_dumps(bench, runs, source_options, target_options):
    worker = bench.worker("dumped")
    nothing = bench.lab.directory / "private" / "nothing"
    bench.source.run(["mkdir", "-p", nothing])
    discard = Daemon(bench.source, "source", nothing, ["--discard", *source_options])
    try:
        with Mounts(bench.source, bench.target, bench.lab.directory / "private", source_options, target_options, name="dump") as mounts:
            def into_nothing():
                label = bench.label()
                bench.source.run(["mkdir", nothing / label])
                bench.dump_only("null sink (source --discard)", worker, nothing / label, label)
                bench.source.run(["rm", "-r", nothing / label])

            def into_mount():
                label = bench.label()
                bench.source.run(["mkdir", mounts.out / label])
                bench.dump_only("source mount, streaming", worker, mounts.out / label, label, lambda: mounts.commit(label))
                mounts.remove(label)

            def into_tmpfs():
                label = bench.label()
                images = bench.source.scratch(label, tmpfs=True)
                bench.dump_only("fresh tmpfs", worker, images, label)
                bench.source.drop_scratch(images)

            ways = [into_nothing, into_mount, into_tmpfs]
            for round_number in range(runs + 1):
                bench.counted = round_number > 0
                for way in rotate(ways, round_number):
                    way()
                progress(f"dumps: round {round_number} of {runs}")
            bench.remember_memory(mounts)
    finally:
        discard.close()
        worker.end()


def progress(text):
    if sys.stderr.isatty():
        print(f"\r{text}   ", end="", file=sys.stderr, flush=True)


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": values}


def report(bench, about):
    rows = {what: summary(values) for what, values in bench.seconds.items()}
    progress("done                          \n")
    for key, value in about.items():
        print(f"{key:<10}{value}")
    print(f"\n{'seconds':<46}{'median':>9}{'min':>9}{'max':>9}   ratio")

    def row(what, against=None, faster=False):
        if what not in rows:
            return
        values = rows[what]
        ratio = ""
        if against in rows and against != what:
            quotient = values["median"] / rows[against]["median"]
            ratio = f"{quotient:.1f} x ppmr's" if faster else f"{quotient:.2f} x {against.split(', ', 1)[1]}"
        print(f"{what:<46}{values['median']:>9.3f}{values['min']:>9.3f}{values['max']:>9.3f}   {ratio}")

    for kind in ("move", "downtime"):
        for way in ("ppmr", TarMove.name, PageServerMove.name):
            row(f"{kind}, {way}", f"{kind}, ppmr", faster=True)
    for what in ("dump, null sink (source --discard)", "dump, source mount, streaming", "dump and verified, source mount, streaming"):
        row(what, "dump, null sink (source --discard)")
    row("dump, fresh tmpfs", "dump, source mount, streaming")
    print()
    for role, mib in bench.memory_mib.items():
        print(f"{'most memory of the ' + role + ' daemon':<46}{mib:>9.0f} MiB")
    return {"environment": about, "seconds": rows, "memory_mib": bench.memory_mib}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ppmr", metavar="PATH", help="the ppmr binary (default: $PPMR or bazel-bin/ppmr)")
    parser.add_argument("--size-mib", type=int, default=1024, metavar="N")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="counted rounds (default: 5)")
    parser.add_argument("--rate", metavar="RATE", help="limit the link in both directions, e.g. 10gbit")
    parser.add_argument("--fresh-memory", action="store_true", help="each way on memory that the host has not backed yet; some minutes longer")
    parser.add_argument("--only", choices=["moves", "dumps"], help="one half of the measurements")
    parser.add_argument("--source-option", action="append", default=[], metavar="OPTION", help="passed on to ppmr source, e.g. --source-option=--pool-size=8MiB")
    parser.add_argument("--target-option", action="append", default=[], metavar="OPTION", help="passed on to ppmr target")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    if arguments.ppmr:
        os.environ["PPMR"] = str(Path(arguments.ppmr).resolve())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through the clean-up, like Ctrl-C
    try:
        about = {**environment(), "process": f"{arguments.size_mib} MiB of random memory", "link": arguments.rate or "veth, unlimited", "runs": arguments.runs}
        memory = FreshMemory() if arguments.fresh_memory else None
        if memory and not memory.found:
            raise LabError(f"--fresh-memory: {memory}")
        about["memory"] = str(memory) if memory else "as the round before left it"
        bench = Bench(arguments.size_mib, arguments.rate, memory)
        try:
            if arguments.only != "dumps":
                measure_moves(bench, arguments.runs, arguments.source_option, arguments.target_option)
            if arguments.only != "moves":
                measure_dumps(bench, arguments.runs, arguments.source_option, arguments.target_option)
            figures = report(bench, about)
        finally:
            bench.close()
    except LabError as error:
        sys.exit(f"migrate_vs_peers: {error}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
