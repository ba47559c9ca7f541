"""Moves a running program between two nodes of this machine; called by ./demo.

The nodes are pid, mount and network namespaces joined by a veth pair. A steady worker runs on
`source`, and moves by the commands that a user types. Then the same move the usual way: tmpfs, tar
over the same link, restore. Exit 1 if any check fails.
"""
import argparse
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab.node import Lab, LabError  # noqa: E402
from lab.move import Move, now  # noqa: E402
from lab.peers import TarMove  # noqa: E402
from lab.ppmr import Daemon, find_ppmr, make_key  # noqa: E402
from lab.programs import SteadyWorker  # noqa: E402
from lab.proofs import Before, prove  # noqa: E402

MIB = 1 << 20
RUN_BEFORE = 60  # lines that the worker writes before the move
RUN_AFTER = 60  # lines that it writes after the move
KEY = "/run/ppmr.key"  # private to each node
ACCEPTS = ["--listen", ":7440", "--key-file", KEY, "--allow-root-restart"]


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


class MigrateMove(Move):
    """`ppmr migrate --to`, typed on the source; the target accepts. Shows what they print."""

    def prepare(self, label):
        show_line(f"  target# ppmr target /run/ppmr/in {' '.join(ACCEPTS)}")
        make_key(KEY, self.source, self.target)
        self.daemon = Daemon(self.target, "target", "/run/ppmr/in", ACCEPTS)

    def _transfer(self, pid, timeline, dump_options, restore_options):
        words = ["migrate", "--pid", str(pid), "--to", self.target.address, "--key-file", KEY]
        show_line(f"  source# ppmr {' '.join(words)}")
        self.target.keep_helpers_low()
        timeline.dump_began = now()
        both = ["sh", "-c", '"$@" 2>&1', "sh", find_ppmr()]  # standard error as well
        done = self.source.run([*both, *words], timeout=120)
        timeline.arrived = now()
        for line in done.stdout.splitlines():
            show_line(f"          {line}")

    def facts(self):
        """Memory of the daemons of both nodes."""
        shown = self.source.run([find_ppmr(), "status", "--json"]).stdout
        status = json.loads(shown.splitlines()[0])
        pool = status["pool"]
        peak = self.source.memory_kib(status["pid"])["VmHWM"]
        return [
            (
                "pool of the source, most in use",
                f"{pool['high_water_bytes'] // MIB} of {pool['slots'] * pool['chunk_size_bytes'] // MIB} MiB",
            ),
            ("source daemon, most memory", f"{peak // 1024} MiB"),
            ("target daemon, most memory", f"{self.daemon.memory_kib()['VmHWM'] // 1024} MiB"),
        ]

    def clean(self):
        self.daemon.close()


def table(ppmr, usual, facts):
    show_line(f"  {'seconds':<34}{'ppmr':>10}{'tmpfs + tar':>14}")
    for title, values in (
        ("the program stood still", (ppmr.downtime, usual.downtime)),
        ("from the command until it ran again", (ppmr.whole_move, usual.whole_move)),
    ):
        show_line(
            f"    {title:<36}{values[0]:>6.2f}{values[1]:>14.2f}    {values[1] / values[0]:.1f} x"
        )
    show_line()
    for what, value in facts:
        show_line(f"  {what:<34}{value:>14}")


NEXT = """Next, on two machines of yours:
  ./package && apt install ./packages/ppmr_*.deb     on both
  ppmr keygen /etc/ppmr/key                          on one; scp -p it to the other
  systemctl enable --now ppmr-target                 on both
Then `ppmr migrate --pid PID --to OTHER`; `ppmr doctor` says what is missing, and how to mend it.
docs/tutorial.md has the rest: ten minutes to a moved process, a container, a whole machine."""


def run(size_mib):
    show_line(
        f"A steady worker with {size_mib} MiB of random memory moves between two nodes of this machine ({os.cpu_count()} cores, Linux {platform.release()})."
    )
    with Lab() as lab:
        source, target, _ = lab.pair()
        failed = []

        worker = SteadyWorker(source, lab.home / "with-ppmr", size_mib)
        move = MigrateMove(source, target)
        show_line()
        show_line("With ppmr: live, over TCP with encryption, verified")
        ppmr, claims = move_one(move, worker, "worker")
        failed += [f"{what} (with ppmr)" for what in show(claims)]
        facts = move.facts()
        worker.end()
        move.clean()

        worker = SteadyWorker(source, lab.home / "with-tar", size_mib)
        move = TarMove(source, target)
        show_line()
        show_line(
            "The usual way: criu dump into tmpfs, tar over the same link into tmpfs, criu restore; in plain text"
        )
        usual, claims = move_one(move, worker, "usual")
        failed += [f"{what} (tmpfs + tar)" for what in show(claims)]
        worker.end()
        move.clean()

    show_line()
    table(ppmr, usual, facts)
    show_line()
    if failed:
        show_line(f"demo: FAILED: {', '.join(failed)}")
        return 1
    show_line(NEXT)
    show_line()
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
