"""Several processes over a limited link with `ppmr migrate`: the time above what their bytes need, compared with moves one after the other.

    /usr/bin/python3 bench/pipelined_moves.py [--processes 8] [--size-mib 128] [--rate 2500mbit] [--runs 3] [--jobs 2]

Everything runs on this machine, as root, in two nodes made of namespaces. In each run iperf3 measures the link, the processes move with one
command (`--independent`, so that each is frozen only for its own dump and restore), and the same number moves with one command per process. Times
are CLOCK_REALTIME from the lines that the programs write: the last one at the source, the first one at the target.
"""
import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lab.migrations import Migrations  # noqa: E402
from lab.node import Lab, LabError  # noqa: E402
from lab.programs import SteadyWorker, check_continuity, gap_between  # noqa: E402
from measure.loads import iperf  # noqa: E402
from measure.machine import environment  # noqa: E402

IPERF_PORT, IPERF_SECONDS = 5201, 3


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.lab = Lab()
        self.source, self.target, self.link = self.lab.pair()
        self.migrations = Migrations(self.source, self.target, self.lab.directory / "private")
        self.migrations.await_ready()
        self.link.limit(arguments.rate)
        self._groups = 0

    def close(self):
        self.migrations.close()
        self.lab.close()

    def link_bits_per_second(self):
        address = self.target.address
        return 8e9 * iperf(self.source, self.target, address, IPERF_PORT, 1, IPERF_SECONDS)["rate"]

    def workers(self):
        self._groups += 1
        made = [
            SteadyWorker(
                self.source,
                self.lab.home / f"group{self._groups}-{number}",
                self.arguments.size_mib,
                threads=1,
                seed=number + 1,
            )
            for number in range(self.arguments.processes)
        ]
        for worker in made:
            worker.wait_for_lines(10)
        return made

    def measure(self, how, workers):
        """Moves the workers. Returns {"whole": first freeze until the last runs, "frozen": mean, "bytes": total}, and the trees of the summaries."""
        try:
            trees = how(workers)
            last, first = [], []
            for worker in workers:
                worker.node = self.target
                worker.wait_for_lines(3, self.target)
                lines = worker.lines()
                left, right = gap_between(lines, self.source, self.target)
                check_continuity(lines)
                last.append(left["real_ns"] / 1e9)
                first.append(right["real_ns"] / 1e9)
                if worker.audit()["wrong_words"]:
                    raise LabError("words of memory are wrong after the move")
            return {
                "whole": max(first) - min(last),
                "frozen": statistics.mean(b - a for a, b in zip(last, first)),
                "bytes": sum(tree["bytes"] for tree in trees),
            }, trees
        finally:
            for worker in workers:
                worker.node = self.target
                worker.end()
                self.source.signal(worker.pid, 9)

    def pipelined(self, workers):
        done = self.migrations.migrate(
            *[worker.pid for worker in workers],
            timeout=300,
            options=["--independent", "--jobs", self.arguments.jobs],
        ).ok()
        return done.summary["trees"]

    def one_by_one(self, workers):
        return [
            self.migrations.migrate(worker.pid, timeout=300).ok().summary["trees"][0]
            for worker in workers
        ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--size-mib", type=int, default=128)
    parser.add_argument("--rate", default="2500mbit")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    for key, value in environment().items():
        print(f"{key:8} {value}")
    bench = Bench(arguments)
    figures = {"pipelined": [], "one by one": []}
    ratios = []
    try:
        bench.measure(bench.pipelined, bench.workers())  # warm-up, not counted
        for run in range(arguments.runs):
            ways = [("pipelined", bench.pipelined), ("one by one", bench.one_by_one)]
            rate = bench.link_bits_per_second()
            for name, way in ways if run % 2 == 0 else reversed(ways):
                figure, trees = bench.measure(way, bench.workers())
                figures[name].append(figure)
                if name == "pipelined":
                    alone = figure["bytes"] * 8 / rate
                    ratios.append(figure["whole"] / alone)
                    print(
                        f"run {run + 1}: link {rate / 1e9:.2f} Gb/s, which needs {alone:.2f} s for the bytes; pipelined {figure['whole']:.2f} s ({ratios[-1]:.2f} x), "
                        f"each frozen {figure['frozen']:.2f} s",
                        flush=True,
                    )
                else:
                    print(
                        f"run {run + 1}: one by one {figure['whole']:.2f} s, each frozen {figure['frozen']:.2f} s",
                        flush=True,
                    )
    except LabError:
        print(bench.migrations.logs(newest=1), file=sys.stderr)
        raise
    finally:
        bench.close()
    print(f"\n{'':12} {'first freeze until last runs':>30} {'frozen, mean':>14}")
    for name, runs in figures.items():
        print(
            f"{name:12} {statistics.median(run['whole'] for run in runs):28.2f} s {statistics.median(run['frozen'] for run in runs):12.2f} s"
        )
    print(
        f"pipelined / time that the link needs for the bytes: {statistics.median(ratios):.2f} (median of {len(ratios)}; {min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
