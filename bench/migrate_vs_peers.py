"""A whole move with ppmr compared with the usual alternatives, and the cost of a dump into the
source mount; medians of alternating runs.

    /usr/bin/python3 bench/migrate_vs_peers.py [--ppmr PATH] [--size-mib 1024] [--runs 5] [--rate
    10gbit] [--json FILE]

Two chapters of ./run with your own sizes and rates, printed on the terminal. With --fresh-memory
every way runs on memory that the host has not backed, as on a virtual machine that has just started
(see with_fresh_memory.py); without, on memory that was in use a moment ago.
"""
import argparse
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lab.node import LabError  # noqa: E402
from measure import dumps, loads, machine, moves  # noqa: E402
from measure.spread import spread  # noqa: E402
from measure.testbed import Effort, Testbed, flags  # noqa: E402
from with_fresh_memory import FreshMemory  # noqa: E402

WAYS = {
    "ppmr, lazy": "ppmr",
    "ppmr migrate, lazy": "ppmr migrate",
    "tmpfs + tar": "tmpfs + tar + restore",
    "CRIU page server": "CRIU page server",
}
PLACES = {
    "ppmr source --discard": "null sink (source --discard)",
    "source mount, streaming": "source mount, streaming",
    "fresh tmpfs": "fresh tmpfs",
}
VERIFIED = "dump and verified, source mount, streaming"


def measure(testbed, size_mib, only):
    """{what: seconds of each run}, {role: MiB}"""
    seconds, memory = {}, {}

    def remember(outcome):
        for name, mib in outcome.facts.items():
            role = name.split()[0]
            memory[role] = max(mib, memory.get(role, 0))

    if only != "dumps":
        outcome = moves.measure(testbed, 1, size_mib, only=WAYS)
        for way, name in WAYS.items():
            if way not in outcome.results:
                raise LabError(f"{way}: {outcome.not_measured.get(way) or outcome.not_measured}")
            seconds[f"move, {name}"] = outcome.results[way]
            seconds[f"downtime, {name}"] = outcome.also["downtime"][way]
        remember(outcome)
    if only != "moves":
        outcome = dumps.measure(testbed, size_mib)
        for place, name in PLACES.items():
            seconds[f"dump, {name}"] = outcome.results[place]
        (seconds[VERIFIED],) = outcome.also["dumped and verified at the target"].values()
        remember(outcome)
    return seconds, memory


def summary(samples):
    found = spread(samples)
    return {"median": found.median, "min": found.low, "max": found.high, "runs": samples}


def report(seconds, memory, about):
    rows = {what: summary(samples) for what, samples in seconds.items()}
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
            ratio = (
                f"{quotient:.1f} x ppmr's"
                if faster
                else f"{quotient:.2f} x {against.split(', ', 1)[1]}"
            )
        print(
            f"{what:<46}{values['median']:>9.3f}{values['min']:>9.3f}{values['max']:>9.3f}   {ratio}"
        )

    for kind in ("move", "downtime"):
        for way in WAYS.values():
            row(f"{kind}, {way}", f"{kind}, ppmr", faster=True)
    for what in ("dump, null sink (source --discard)", "dump, source mount, streaming", VERIFIED):
        row(what, "dump, null sink (source --discard)")
    row("dump, fresh tmpfs", "dump, source mount, streaming")
    print()
    for role, mib in memory.items():
        print(f"{'most memory of the ' + role + ' daemon':<46}{mib:>9.0f} MiB")
    return {"environment": about, "seconds": rows, "memory_mib": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ppmr", metavar="PATH", help="the ppmr binary (default: $PPMR or bazel-bin/ppmr)"
    )
    parser.add_argument("--size-mib", type=int, default=1024, metavar="N")
    parser.add_argument(
        "--runs", type=int, default=5, metavar="N", help="counted rounds (default: 5)"
    )
    parser.add_argument(
        "--rate", metavar="RATE", help="limit the link in both directions, e.g. 10gbit"
    )
    parser.add_argument(
        "--fresh-memory",
        action="store_true",
        help="run each way on memory that the host has not backed yet; takes some minutes longer",
    )
    parser.add_argument("--only", choices=["moves", "dumps"], help="one half of the measurements")
    parser.add_argument(
        "--source-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="option for ppmr source, e.g. --source-option=--pool-size=8MiB",
    )
    parser.add_argument(
        "--target-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="option for ppmr target",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    arguments = parser.parse_args()
    if arguments.ppmr:
        os.environ["PPMR"] = str(Path(arguments.ppmr).resolve())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # cleans up, like Ctrl-C
    try:
        loads.check_built()
        about = {
            **machine.environment(),
            "process": f"{arguments.size_mib} MiB of random memory",
            "link": arguments.rate or "veth, unlimited",
            "runs": arguments.runs,
        }
        memory = FreshMemory() if arguments.fresh_memory else None
        if memory and not memory.found:
            raise LabError(f"--fresh-memory: {memory}")
        about["memory"] = str(memory) if memory else "as the previous round left it"
        effort = Effort(name="by hand", runs=arguments.runs, warm_ups=1, move_runs=arguments.runs)
        # The default of `ppmr target`, for any size of the process.
        testbed = Testbed(
            effort,
            arguments.source_option,
            flags({"--pool-size": "1GiB"}, arguments.target_option),
            fresh_memory=memory,
            rate=arguments.rate,
            disk_directory=Path("/var/tmp"),
        )
        try:
            seconds, used = measure(testbed, arguments.size_mib, arguments.only)
        finally:
            testbed.close()
        figures = report(seconds, used, about)
    except LabError as error:
        sys.exit(f"migrate_vs_peers: {error}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
