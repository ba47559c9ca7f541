"""Moves a running program between two nodes of this machine; called by ./demo.

The nodes are pid, mount and network namespaces joined by a veth pair. A steady worker runs on
`source`; `criu dump` writes into the source mount while `ppmr restart` reads from the target mount.
Then the same move the usual way: tmpfs, tar over the same link, restore. Exit 1 if any check fails.
"""
import argparse
import os
import platform
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab.node import Lab, LabError  # noqa: E402
from lab.peers import TarMove  # noqa: E402
from lab.ppmr import Mounts, PpmrMove, bytes_below  # noqa: E402
from lab.programs import SteadyWorker  # noqa: E402
from lab.proofs import Before, prove  # noqa: E402

MIB = 1 << 20
RUN_BEFORE = 60  # lines that the worker writes before the move
RUN_AFTER = 60  # lines that it writes after the move


def show_line(text=""):
    print(text, flush=True)


def show(claims):
    for what, holds, detail in claims:
        show_line(f"  {'ok    ' if holds else 'FAILED'}  {what:<12}{detail}")
    return [what for what, holds, _ in claims if not holds]


def move_one(move, worker, label):
    """Moves the worker and checks it. Returns (timeline, claims)."""
    worker.wait_for_lines(RUN_BEFORE)
    before = Before(worker)
    move.prepare(label)
    timeline = move.move(worker)
    move.finish()
    worker.wait_for_lines(RUN_AFTER)
    return timeline, prove(worker, before, move.source, move.target)


def table(ppmr, usual, facts):
    rows = [
        ("frozen", "frozen"),
        ("dump done", "dump_done"),
        ("last byte there", "arrived"),
        ("running again", "running"),
    ]
    show_line(f"  {'seconds since the dump began':<34}{'ppmr':>10}{'tmpfs + tar':>14}")
    for title, moment in rows:
        note = "  (verified)" if moment == "arrived" else ""
        # The last line may be up to 10 ms older than the freeze, and so older than the start of
        # criu.
        values = [max(0.0, timeline.since_dump_began(moment)) for timeline in (ppmr, usual)]
        show_line(f"    {title:<32}{values[0]:>10.2f}{values[1]:>14.2f}{note}")
    show_line(
        f"  {'downtime, s':<34}{ppmr.downtime:>10.2f}{usual.downtime:>14.2f}    {usual.downtime / ppmr.downtime:.1f} x shorter"
    )
    show_line(
        f"  {'whole move, s':<34}{ppmr.whole_move:>10.2f}{usual.whole_move:>14.2f}    {usual.whole_move / ppmr.whole_move:.1f} x faster"
    )
    rates = [
        timeline.extra["bytes"] / timeline.since_dump_began("arrived") / 1e9
        for timeline in (ppmr, usual)
    ]
    show_line(f"  {'bandwidth, GB/s':<34}{rates[0]:>10.2f}{rates[1]:>14.2f}")
    show_line()
    for what, value in facts:
        show_line(f"  {what:<34}{value:>10}")


def run(size_mib):
    show_line(
        f"A steady worker with {size_mib} MiB of random memory moves between two nodes of this machine ({os.cpu_count()} cores, Linux {platform.release()})."
    )
    with Lab() as lab:
        source, target, _ = lab.pair()
        failed = []

        worker = SteadyWorker(source, lab.home / "with-ppmr", size_mib)
        with Mounts(source, target, lab.directory / "private") as mounts:
            move = PpmrMove(source, target, mounts)
            show_line()
            show_line(
                f"With ppmr: criu dump into {mounts.out.name} on {source.name}, ppmr restart from {mounts.in_.name} on {target.name} ({mounts.address})"
            )
            ppmr, claims = move_one(move, worker, "worker")
            failed += [f"{what} (with ppmr)" for what in show(claims)]
            ppmr.extra["bytes"] = bytes_below(target, mounts.in_ / "worker")
            pool = mounts.source.status()["pool"]
            facts = [
                (
                    "pool high-water mark",
                    f"{pool['high_water_bytes'] // MIB} of {pool['slots'] * pool['chunk_size_bytes'] // MIB} MiB",
                ),
                (
                    "source daemon, most memory",
                    f"{mounts.source.memory_kib()['VmHWM'] // 1024} MiB",
                ),
                (
                    "target daemon, most memory",
                    f"{mounts.target.memory_kib()['VmHWM'] // 1024} MiB",
                ),
            ]
            worker.end()
            move.clean()

        worker = SteadyWorker(source, lab.home / "with-tar", size_mib)
        move = TarMove(source, target)
        show_line()
        show_line(
            "The usual way: criu dump into tmpfs, tar over the same link into tmpfs, criu restore"
        )
        usual, claims = move_one(move, worker, "usual")
        failed += [f"{what} (tmpfs + tar)" for what in show(claims)]
        usual.extra["bytes"] = bytes_below(target, move._at_target)
        worker.end()
        move.clean()

    show_line()
    table(ppmr, usual, facts)
    show_line()
    if failed:
        show_line(f"demo: FAILED: {', '.join(failed)}")
        return 1
    show_line("The computation continued on the target. All checks passed.")
    return 0


def main():
    parser = argparse.ArgumentParser(
        description="Move a running program between two nodes of this machine, with ppmr and the usual way."
    )
    parser.add_argument(
        "--ppmr", metavar="PATH", help="the ppmr binary (default: $PPMR or bazel-bin/ppmr)"
    )
    parser.add_argument(
        "--size-mib",
        type=int,
        default=1024,
        metavar="N",
        help="memory of the program (default: 1024)",
    )
    arguments = parser.parse_args()
    if arguments.ppmr:
        os.environ["PPMR"] = str(Path(arguments.ppmr).resolve())
    if os.geteuid() != 0:
        sys.exit("demo: needs root: it makes namespaces and runs CRIU")
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that the nodes are closed, as after Ctrl-C
    try:
        began = time.monotonic()
        code = run(arguments.size_mib)
        show_line(f"({time.monotonic() - began:.0f} s in all)")
        return code
    except LabError as error:
        show_line(f"\ndemo: FAILED: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
