#!/usr/bin/python3
"""Moves programs that use RDMA there and back between two machines, under traffic.

    tests/rdma_moves.py --moves 20 [--program checker,rc_pingpong,ucx_tag_bw]

As root, on the machines of tests/vm. Each program is started with `ppmr rdma run`, unmodified. One
end moves, the other one is its peer, which stays. After each move both must go on, and at the end
each program must finish with what it expects. Prints a line for each move, and for each program a
row for the table in docs/rdma-programs.md:

    bytes wrong   what the program found: the checker compares each byte, also of atomics, and ends
                  at the first that is wrong; ibv_rc_pingpong -c compares its buffer at its end
    stall         how long the peer's library held back sends, by its log
    downtime      how long the moved process was frozen, by ppmr

Exit 0 only if each program has moved as often as asked, and nothing was wrong.
"""
import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lab import movable  # noqa: E402
from lab.node import LabError, wait_until  # noqa: E402
from vm.virtual_lab import VirtualLab  # noqa: E402

ROUNDS_BETWEEN = 10  # of the checker, at both ends
PINGPONG_ITERATIONS = 20000  # enough for two moves
UCX_ITERATIONS = 100_000_000  # never reached
THERE_AND_BACK = 2


class Checker:
    """All moves of one program, which runs until this script stops it."""

    moves_of_one = None
    checks = "every byte"

    def __init__(self, machines, start):
        self.start = start
        options = ("--datagrams", "--shared")
        self.mover, self.peer = movable.start_checkers(machines, start, *options)

    def move(self, migrations):
        done = self.mover.move(migrations)
        movable.await_rounds(self.start, (self.mover, self.peer), ROUNDS_BETWEEN)
        return done

    def finish(self):
        movable.finish(self.start, (self.mover, self.peer))

    def end(self):
        pass


class Pingpong:
    moves_of_one = THERE_AND_BACK
    checks = "the buffer, at the end"

    def __init__(self, machines, start):
        self.peer, self.mover = movable.start_pingpong(machines, start, PINGPONG_ITERATIONS)

    def move(self, migrations):
        return self.mover.move(migrations)

    def finish(self):
        for program in (self.peer, self.mover):
            program.await_end(timeout=600)
            text = program.text()
            if f"{PINGPONG_ITERATIONS} iters" not in text or "invalid data" in text:
                raise LabError(text)

    def end(self):
        pass


class Ucx:
    """All moves of ucx_perftest, with the interface of Checker. ucx_perftest checks nothing, so
    this script ends it when the traffic goes on after the last move. test_vm_movable_verbs.py runs
    it to its end."""

    moves_of_one = None
    checks = "nothing"

    def __init__(self, machines, start):
        self.address = movable.MovingAddress(machines)
        self.mover, self.peer = movable.start_ucx(
            machines, start, self.address, "tag_bw", 8192, UCX_ITERATIONS
        )

    def move(self, migrations):
        return movable.move_ucx(self.mover, self.peer, migrations, self.address)

    def finish(self):
        seen = movable.iterations(self.peer)
        wait_until(lambda: movable.iterations(self.peer) > seen, 120, "traffic after all moves")

    def end(self):
        self.address.end()


PROGRAMS = {"checker": Checker, "rc_pingpong": Pingpong, "ucx_tag_bw": Ucx}


def stall_of(holds):
    """Returns the seconds from the first time at which a queue pair of the peer held back sends to
    the last at which one went on; `holds` as of movable.Program.holds(). None: not all of them go
    on yet."""
    begins = [at for is_hold, at in holds if is_hold]
    ends = [at for is_hold, at in holds if not is_hold]
    return max(ends) - min(begins) if ends and len(ends) >= len(begins) else None


class Tally:
    def __init__(self, name, checks):
        self.name, self.checks = name, checks
        self.stalls, self.downtimes, self.faults = [], [], []

    @property
    def moves(self):
        return len(self.downtimes)

    def row(self):
        def figures(seconds):
            if not seconds:
                return "-"
            return f"{statistics.median(seconds):.2f} / {max(seconds):.2f} s"

        wrong = "not checked" if self.checks == "nothing" else f"{len(self.faults)} ({self.checks})"
        return (
            f"| {self.name} | {self.moves} | {wrong} "
            f"| {figures(self.stalls)} | {figures(self.downtimes)} |"
        )


def play(name, kind, lab, migrations, count, tally, numbers):
    """Makes up to `count` moves of one program. Raises LabError."""
    start = movable.Programs(lab, lab.home / f"moves-{name}-{next(numbers)}")
    player = None
    try:
        player = kind(lab, start)
        for _ in range(min(count, kind.moves_of_one or count)):
            seen = len(player.peer.holds())
            done = player.move(migrations)
            # The queue pairs of the peer may connect again only now.
            stall = wait_until(
                lambda since=seen: stall_of(player.peer.holds()[since:]), 60, "the peer to go on"
            )
            downtime = done.summary["trees"][0]["downtime_s"]
            tally.downtimes.append(downtime)
            tally.stalls.append(stall)
            print(
                f"{name} move {tally.moves}: to {player.mover.node.name}, the peer waited for "
                f"{stall:.2f} s, downtime {downtime:.2f} s",
                flush=True,
            )
        player.finish()
    finally:
        if player:
            player.end()
        start.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=20, help="of each program")
    parser.add_argument("--program", default=",".join(PROGRAMS))
    arguments = parser.parse_args()
    names = arguments.program.split(",")
    for name in names:
        if name not in PROGRAMS:
            parser.error(f"there is no program {name}: choose from {', '.join(PROGRAMS)}")
    tallies, numbers = [], itertools.count(1)
    with VirtualLab() as lab:
        a, b = lab.nodes
        with movable.migrations_of(a, b, "rdma-there") as there, movable.migrations_of(
            b, a, "rdma-back"
        ) as back:
            for pair in (there, back):
                pair.await_ready()
            for name in names:
                kind = PROGRAMS[name]
                tally = Tally(name, kind.checks)
                tallies.append(tally)
                while tally.moves < arguments.moves and not tally.faults:
                    try:
                        left = arguments.moves - tally.moves
                        play(name, kind, lab, {a.name: there, b.name: back}, left, tally, numbers)
                    except LabError as error:
                        tally.faults.append(str(error))
                        print(f"FAULT {name}: {error}", flush=True)
                    if tally.moves >= arguments.moves or tally.faults:
                        print(tally.row(), flush=True)
    print(f"\n{time.strftime('%Y-%m-%d')}, {arguments.moves} moves asked for")
    print("| program | moves | bytes wrong | stall of the peer, p50 / max | downtime, p50 / max |")
    print("| --- | --- | --- | --- | --- |")
    for tally in tallies:
        print(tally.row())
    is_right = all(t.moves >= arguments.moves and not t.faults for t in tallies)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
