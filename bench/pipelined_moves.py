"""Several processes over a limited link with `ppmr migrate`: what the pipeline costs above the bytes alone, beside one after the other.

    /usr/bin/python3 bench/pipelined_moves.py [--processes 8] [--size-mib 128] [--rate 2500mbit] [--runs 3] [--jobs 2] [--timeline FILE.svg]

Everything runs on this machine, as root, in two nodes made of namespaces. Within a run: iperf3 over the very link says what its bytes alone would
need; the processes move with one command (`--independent`, so that each is frozen for its own share only); the same number moves with one command
after the other. Times are CLOCK_REALTIME, from what the programs themselves wrote: the last line at the source, the first at the target. The
timeline is drawn from the JSON of the tool.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lab.migrations import Migrations  # noqa: E402
from lab.node import Lab, LabError  # noqa: E402
from lab.programs import SteadyWorker, check_continuity, gap_between  # noqa: E402
from measure.machine import environment  # noqa: E402
from timeline import drawing  # noqa: E402


IPERF_PORT = 5201


def link_bits_per_second(source, target, seconds=3):
    server = target.popen(
        ["iperf3", "-s", "-1", "-B", target.address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    target.await_listener(IPERF_PORT, server)
    said = json.loads(
        source.run(
            ["iperf3", "-c", target.address, "-t", seconds, "-O", 1, "-J"], timeout=60
        ).stdout
    )
    server.wait(timeout=10)
    return said["end"]["sum_received"]["bits_per_second"]


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
        """Moves them; {"whole": first freeze until the last runs, "frozen": mean, "bytes": all}, and the trees of the summaries."""
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
    parser.add_argument("--timeline", help="write the timeline of the last run to this SVG file")
    arguments = parser.parse_args()
    for key, value in environment().items():
        print(f"{key:8} {value}")
    bench = Bench(arguments)
    figures = {"pipelined": [], "one by one": []}
    ratios = []
    try:
        bench.measure(bench.pipelined, bench.workers())  # warms up, not counted
        for run in range(arguments.runs):
            ways = [("pipelined", bench.pipelined), ("one by one", bench.one_by_one)]
            rate = link_bits_per_second(bench.source, bench.target)
            for name, way in ways if run % 2 == 0 else reversed(ways):
                figure, trees = bench.measure(way, bench.workers())
                figures[name].append(figure)
                if name == "pipelined":
                    alone = figure["bytes"] * 8 / rate
                    ratios.append(figure["whole"] / alone)
                    print(
                        f"run {run + 1}: link {rate / 1e9:.2f} Gb/s, its bytes alone {alone:.2f} s; pipelined {figure['whole']:.2f} s ({ratios[-1]:.2f} x), "
                        f"each frozen {figure['frozen']:.2f} s",
                        flush=True,
                    )
                    if arguments.timeline:
                        title = (
                            f"{arguments.processes} processes of {arguments.size_mib} MiB, ppmr migrate --independent --jobs {arguments.jobs}, "
                            f"link of {rate / 1e9:.2f} Gb/s"
                        )
                        Path(arguments.timeline).write_text(drawing(trees, title))
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
        f"pipelined / what the link needs for the bytes alone: {statistics.median(ratios):.2f} (median of {len(ratios)}; {min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
