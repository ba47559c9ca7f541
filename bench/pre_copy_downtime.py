#!/usr/bin/python3
"""Downtime of `ppmr migrate --pre-copy` beside stop-and-copy, between the two machines of tests/vm, of a process that writes to its memory steadily.

    bench/pre_copy_downtime.py [--size 256] [--dirty 5] [--rounds 5] [--runs 3]

The process writes to --dirty percent of its pages a second, round and round. Both ways alternate; each move is over RDMA, ends with an audit of every
word of memory, and is lazy. Downtime is from the freeze to the process running, by the clocks of both machines, whose difference is shown.
The faster memory is written to beside the link, the more is left for the freeze: see what the last round copied.
"""
import argparse
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lab.migrate import MigrationWorld  # noqa: E402
from lab.node import LabError  # noqa: E402
from lab.programs import SteadyWorker, check_continuity  # noqa: E402
from vm.virtual_lab import VirtualLab  # noqa: E402

PAGES_PER_MIB = 256


def move(lab, world, worker, rounds):
    """Seconds of downtime, and MiB that each round copied; LabError if a byte or a line is wrong."""
    world.mounts.await_ready()
    done = world.migrate(worker.pid, timeout=600, options=["--pre-copy", rounds] if rounds else []).ok()
    worker.node = lab.b
    worker.wait_for_lines(5, lab.b, timeout=60)
    check_continuity(worker.lines())
    audit = worker.audit()
    if audit["wrong_words"] or audit["digest"] != audit["expected"]:
        raise LabError(f"the memory that has arrived is wrong: {audit}")
    copied = [event["bytes"] >> 20 for event in done.events if event.get("event") == "pre-copied"]
    return done.summary["trees"][0]["downtime_s"], copied


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--size", type=int, default=256, help="MiB of the process")
    parser.add_argument("--dirty", type=float, default=5, help="percent of its pages that it writes to in a second")
    parser.add_argument("--rounds", type=int, default=5, help="of pre-copy, at most")
    parser.add_argument("--runs", type=int, default=3, help="of each way, alternating")
    options = parser.parse_args()
    pages_per_s = int(options.size * PAGES_PER_MIB * options.dirty / 100)
    limit = options.size * 3 + 256  # every round stays at the target until the process runs
    times = {"stop-and-copy": [], "pre-copy": []}
    with VirtualLab(memory_mib=1536 + options.size * 4, say=lambda text: print(text, file=sys.stderr, flush=True)) as lab, \
         MigrationWorld(lab.a, lab.b, "/tmp/pre-copy", ["--pool-size", "32MiB", "--transport", "verbs"],
                        ["--memory-limit", f"{limit}MiB", "--pool-size", f"{options.size}MiB"]) as world:
        for run in range(options.runs):
            for way, rounds in (("stop-and-copy", 0), ("pre-copy", options.rounds)):
                worker = SteadyWorker(lab.a, lab.home / f"worker-{way}-{run}", options.size, threads=2, pages_per_s=pages_per_s)
                time.sleep(2)
                seconds, copied = move(lab, world, worker, rounds)
                worker.end()
                times[way].append(seconds)
                print(f"run {run + 1}: {way}: {seconds:.2f} s of downtime" + (f", rounds of {', '.join(map(str, copied))} MiB" if copied else ""), file=sys.stderr, flush=True)
        off = [float(node.run(["date", "+%s.%N"]).stdout) - time.time() for node in lab.nodes]
        kernel = lab.a.run(["uname", "-r"]).stdout.strip()
    print(f"Two emulated machines, Linux {kernel}, {os.cpu_count()} CPUs of the host; {options.size} MiB, {options.dirty:g}% of them written to a second; "
          f"clocks apart by at most {abs(off[1] - off[0]):.2f} s\n")
    print("| way | downtime, median | from - to | of stop-and-copy |\n| --- | --- | --- | --- |")
    usual = statistics.median(times["stop-and-copy"])
    for way, seconds in times.items():
        middle = statistics.median(seconds)
        print(f"| {way} | {middle:.2f} s | {min(seconds):.2f} - {max(seconds):.2f} | {100 * middle / usual:.0f}% |")


if __name__ == "__main__":
    main()
