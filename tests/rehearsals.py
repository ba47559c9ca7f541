#!/usr/bin/python3
"""Compares rehearsals with moves: whether what `ppmr migrate --rehearse` says is what a move does.

    tests/rehearsals.py --programs 100 --seed 1 [--only TEXT]

As root. lab/mixed_programs.py has the programs, movable ones and others. For each one that is
drawn: a rehearsal, after which it must go on at the source, and at the target nothing may be left;
then the move, whose outcome the rehearsal has to have predicted. Prints a line for each, and the
wrong predictions at the end. Exit 0 only if at most 1 of 500 is wrong, and nothing else is.
"""
import argparse
import collections
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lab.migrations import Migrations  # noqa: E402
from lab.mixed_programs import KINDS, MixedProgram  # noqa: E402
from lab.node import Lab, LabError, wait_until  # noqa: E402

MOVES, STAYS = 0, 11
NAMES = {MOVES: "moves", STAYS: "stays"}
REMAINS = ("mixed-", "migration-restore")


def prepare(nodes):
    """Makes the file from which a program reads the name of its node, and a file and a directory
    that only the source has."""
    for node in (nodes.source, nodes.target):
        node.run(["sh", "-c", f"echo {node.name} >/run/name-of-node"])
    only_here = "echo 1 >/run/of-the-source; mkdir -p /run/directory-of-the-source"
    nodes.source.run(["sh", "-c", only_here])


def await_nothing_left(target):
    def left():
        shown = target.run(["ps", "-eo", "args"]).stdout.splitlines()
        return [line for line in shown if any(word in line for word in REMAINS)]

    wait_until(lambda: not left(), 20, "the target to have nothing left")


def compare(migrations, program):
    """Returns (what the rehearsal said, what the move did, what stopped the rehearsal)."""
    options = {"options": program.mode, "criu_options": program.criu_options}
    rehearse = ["--rehearse", *program.mode]
    rehearsed = migrations.migrate(program.pid, **{**options, "options": rehearse})
    program.goes_on_at(migrations.source_at)
    if set(program.lines()) != {migrations.source_at.name}:
        raise LabError("the rehearsal has let its copy run")
    await_nothing_left(migrations.target_at)
    moved = migrations.migrate(program.pid, **options)
    where = migrations.target_at if moved.code == MOVES else migrations.source_at
    program.goes_on_at(where)
    by_checks = not any(event.get("event") == "begun" for event in rehearsed.events)
    return rehearsed, moved, "checks" if by_checks else "rehearsal"


def play(lab, nodes, migrations, chance, number, kinds):
    program = MixedProgram(lab, nodes.source, chance, number, kinds)
    if not program.started:
        return program, None
    try:
        return program, compare(migrations, program)
    finally:
        for node in (nodes.source, nodes.target):
            node.run(["pkill", "-KILL", "-s", str(program.pid)], check=False)
            node.await_end(program.pid)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="", help="only kinds that contain this text")
    arguments = parser.parse_args()
    kinds = [kind for kind in KINDS if arguments.only in kind]
    if not kinds:
        sys.exit(f"no kind contains '{arguments.only}'")
    print(f"{arguments.programs} programs, seed {arguments.seed}", flush=True)
    chance = random.Random(arguments.seed)
    counts, mispredicted, faults, not_played = collections.Counter(), [], [], collections.Counter()
    with Lab() as lab:
        nodes = lab.pair()
        prepare(nodes)
        with Migrations(nodes.source, nodes.target, lab.directory / "private") as migrations:
            for number in range(arguments.programs):
                began = time.monotonic()
                try:
                    program, result = play(lab, nodes, migrations, chance, number, kinds)
                except LabError as error:
                    faults.append(f"program {number}: {error}")
                    print(f"FAULT {faults[-1]}", flush=True)
                    continue
                if result is None:
                    not_played[program.kind] += 1
                    print(f"{number:4} {program.kind}: not played: {program.why_not}", flush=True)
                    continue
                rehearsed, moved, found_by = result
                said, did = (NAMES.get(done.code, str(done.code)) for done in (rehearsed, moved))
                counts[said, did, found_by] += 1
                if said != did:
                    last = [done.output.splitlines()[-1:] for done in (rehearsed, moved)]
                    mispredicted.append(f"{program.kind} {program.mode}: {said}, {did}: {last}")
                print(
                    f"{number:4} {program.kind:28} {' '.join(program.mode):16} said {said}, {did}"
                    f" ({found_by}) {time.monotonic() - began:.1f} s",
                    flush=True,
                )
    played = sum(counts.values())
    print(f"\n{played} programs, seed {arguments.seed}, not played {sum(not_played.values())}")
    for (said, did, found_by), count in sorted(counts.items()):
        print(f"{count:5} said {said}, {did} ({found_by})")
    for text in mispredicted:
        print(f"mispredicted: {text}")
    for text in faults:
        print(f"FAULT {text}")
    allowed = -(-played // 500)
    sys.exit(1 if faults or len(mispredicted) > allowed or not played else 0)


if __name__ == "__main__":
    main()
