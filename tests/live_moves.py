#!/usr/bin/python3
"""Moves a program whose memory changes all the time, live, back and forth between two nodes.

    tests/live_moves.py --moves 1000 --seed 1 [--only MODE]

As root. tests/programs/memory_changer.cc is the program: it maps, moves, writes and discards
memory, shares it with children, and checks it all the time, all of it after each move. The seed
draws the programs (one for MOVES_OF_A_PROGRAM moves) and for each move its mode, its limits and the
moment at which it begins. Prints a line for each move, and at the end how many there were, the
wrong words, the reasons of moves that did not take place, and the downtime as the program has seen
it. Exit 0 only if no word was wrong, each move has moved the program or has left it where it was
with a reason, and at least one has moved it.
"""
import argparse
import collections
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lab.migrations import Migrations  # noqa: E402
from lab.node import Lab, LabError  # noqa: E402
from lab.programs import Program  # noqa: E402

MOVED, STAYED = 0, 11
MODES = {"default": [], "post-copy": ["--post-copy"]}
MOVES_OF_A_PROGRAM = 25
# A value is drawn for each; "" is the default.
LIMITS = {
    "--max-rate": ["", "", "", "", "40M", "100M"],
    "--cpu-share": ["", "", "", "15", "60"],
    "--max-downtime": ["", "", "", "1ms", "60ms", "2s"],
}
# In the default mode some moves are cancelled in their rounds.
ON_TIMEOUT = ["", "", "", "cancel"]
LINES_AFTER = 5  # the second line at a node is written when all memory was checked there


def draw(chance, mode):
    """Returns the options of a move."""
    options = list(MODES[mode])
    limits = dict(LIMITS) if mode != "default" else {**LIMITS, "--on-timeout": ON_TIMEOUT}
    for option, values in limits.items():
        value = chance.choice(values)
        options += [option, value] if value else []
    return options


def reason_of(done):
    """Returns why the program stays, or None if the events do not say why."""
    for event in done.events:
        if event.get("event") == "aborted" and event.get("error"):
            return event["error"]
        if event.get("event") == "finding" and event.get("stops"):
            return event["sentence"]
    return None


class Changer:
    """One program, and what its lines have shown so far."""

    def __init__(self, lab, nodes, chance, number):
        self._nodes = nodes
        self.size, steps = chance.choice([16, 32, 64]), chance.choice([50, 100, 300])
        directory = lab.home / f"changer-{number}"
        words = [directory, self.size, steps, chance.randrange(1 << 32)]
        self.program = Program(nodes[0], "memory_changer", words, directory)
        self.program.wait_for_lines(20)
        self._seen = 0
        self.wrong = 0

    @property
    def pid(self):
        return self.program.pid

    def check(self, here, there):
        """Checks the lines since the last call: written `here` and then, if the program has moved,
        `there`. Returns the seconds between the two, or None."""
        lines = self.program.lines()
        if [line["line"] for line in lines] != list(range(1, len(lines) + 1)):
            raise LabError("lines are missing or repeated")
        self.wrong = lines[-1]["wrong"]
        new, self._seen = lines[self._seen :], len(lines)
        nodes = [line["node"] for line in new]
        count = nodes.count(here.name)
        if nodes != [here.name] * count + [there.name] * (len(nodes) - count):
            raise LabError(f"the program ran on {set(nodes)}, not on {here.name}, then {there.name}")
        if count in (0, len(nodes)):
            return None
        return (new[count]["real_ns"] - new[count - 1]["real_ns"]) / 1e9

    def goes_on_at(self, node):
        def lives():
            if not node.alive(self.pid):
                log = (self.program.directory / "log").read_text().strip()
                raise LabError(f"the program has ended on {node.name}: {log or 'without a word'}")

        self.program.node = node
        self.program.wait_for_lines(LINES_AFTER, node, timeout=60, check=lives)

    def end(self):
        """Ends the program and its children, wherever a failed move has left them."""
        for node in self._nodes:
            node.run(["pkill", "-KILL", "-x", "memory_changer"], check=False)
            node.await_end(self.pid)


class Tally:
    def __init__(self):
        self.moved = collections.Counter()  # by mode
        self.stayed = collections.Counter()  # by reason
        self.faults, self.wrong = [], 0
        self.downtimes = collections.defaultdict(list)
        self.rounds = []

    def print(self, seed):
        moves = sum(self.moved.values())
        stayed = sum(self.stayed.values())
        print(f"\n{moves} moves, {stayed} stayed, wrong words {self.wrong}, seed {seed}")
        for mode, seconds in sorted(self.downtimes.items()):
            print(
                f"{mode}: {self.moved[mode]} moves, downtime median "
                f"{statistics.median(seconds):.3f} s, max {max(seconds):.3f} s"
            )
        if self.rounds:
            median = statistics.median(self.rounds)
            print(f"rounds: median {median:g}, max {max(self.rounds)}")
        for reason, count in self.stayed.most_common():
            print(f"{count:5} stayed: {reason}")
        for fault in self.faults:
            print(f"FAULT {fault}")

    def is_right(self):
        return not self.faults and self.wrong == 0 and sum(self.moved.values()) > 0


def without_numbers(reason):
    """Reasons of one kind are counted together."""
    return " ".join(
        "N" if any(character.isdigit() for character in word) else word for word in reason.split()
    )


def play(changer, way, options, tally, mode):
    """Makes one move. Returns whether the program has moved, and a line about it."""
    here, there = way.source_at, way.target_at
    done = way.migrate(changer.pid, options=options, timeout=120)
    moved = done.code == MOVED
    changer.goes_on_at(there if moved else here)
    downtime = changer.check(here, there)
    if moved != (downtime is not None):
        raise LabError(f"ppmr migrate ended with {done.code}, but its lines say otherwise")
    rounds = sum(event.get("event") == "copied" for event in done.events)
    tally.rounds.append(rounds)
    if moved:
        tally.moved[mode] += 1
        tally.downtimes[mode].append(downtime)
        return True, f"moved, {rounds} rounds, {downtime:.3f} s"
    reason = reason_of(done)
    if done.code != STAYED or not reason:
        raise LabError(f"neither moved nor stayed with a reason: {done.code}: {done.output}")
    tally.stayed[without_numbers(reason)] += 1
    return False, f"stayed, {rounds} rounds: {reason}"


def play_all(lab, ways, count, chance, modes, tally):
    """`ways`: the way from each node to the other."""
    changer, played, programs = None, MOVES_OF_A_PROGRAM, 0
    for number in range(1, count + 1):
        began = time.monotonic()
        if played >= MOVES_OF_A_PROGRAM:
            if changer:
                changer.end()
            played, at, programs = 0, 0, programs + 1
            changer = Changer(lab, [way.source_at for way in ways], chance, programs)
        mode, moment = chance.choice(modes), chance.randrange(1, 60)
        options = draw(chance, mode)
        played += 1
        try:
            changer.program.wait_for_lines(moment)
            moved, text = play(changer, ways[at], options, tally, mode)
            at ^= moved
        except LabError as error:
            tally.faults.append(f"move {number} {' '.join(options)}: {error}")
            moved, text = False, f"FAULT {error}"
            played = MOVES_OF_A_PROGRAM  # the next move has a new program
        if changer.wrong:
            tally.wrong += changer.wrong
            text += f"; {changer.wrong} WRONG WORDS"
            played = MOVES_OF_A_PROGRAM
        seconds = time.monotonic() - began
        print(
            f"{number:4} {changer.size:2} MiB {seconds:5.1f} s {' '.join(options)}: {text}",
            flush=True,
        )
    changer.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", choices=MODES, help="only this mode")
    arguments = parser.parse_args()
    # A fifth of the moves is post-copy.
    modes = [arguments.only] if arguments.only else ["default"] * 4 + ["post-copy"]
    print(f"{arguments.moves} moves, seed {arguments.seed}", flush=True)
    tally = Tally()
    with Lab() as lab:
        one, other, _ = lab.pair("one", "other")
        directory = lab.directory / "private"
        with Migrations(one, other, directory, name="there") as there, Migrations(
            other, one, directory, name="back"
        ) as back:
            chance = random.Random(arguments.seed)
            play_all(lab, (there, back), arguments.moves, chance, modes, tally)
    tally.print(arguments.seed)
    sys.exit(0 if tally.is_right() else 1)


if __name__ == "__main__":
    main()
