#!/usr/bin/python3
"""The kill matrix: stops migrations at every state of the protocol while something fails, and
judges them.

    tests/kill_matrix.py --migrations 1000 --seed 1 [--arenas 4]

As root. lab/failure_cases.py has the cases, lab/arena.py plays and judges them. Every case is
played once before one is played twice; `--only TEXT` selects the cases whose description contains
that text. Prints a line for each case and a table of the verdicts. Exit 0 only if the oracle has no
objection.

A `criu dump` that gets a SIGKILL while its parasite is in a process can take the process with it,
with ppmr or without. Therefore that case is played `--criu-kills` more times, beside as many plain
dumps that are killed at the same moments, and must not lose significantly more processes than they
do.
"""
import argparse
import collections
import queue
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lab import failure_cases  # noqa: E402
from lab.arena import HANGS, LOST, Arena  # noqa: E402
from lab.node import Lab  # noqa: E402

PLAIN = "plain criu"
CRIU_KILL = ("source:dumping", "source criu", "kill")


def lost_more(ours, plain):
    """Whether the verdicts `ours` contain more losses than CRIU alone explains, as `plain` shows
    it.

    The limit is 3 standard deviations above what is expected, plus 2 for small numbers.
    """
    expected = len(ours) * plain.count(LOST) / len(plain)
    variance = expected * (1 + len(ours) / len(plain))
    return ours.count(LOST) > expected + 3 * variance**0.5 + 2


def play_all(cases, arena_count, seed, report=lambda *_: None):
    """Plays the cases in that many arenas at once (PLAIN: a dump without ppmr).

    Returns ({case: [verdict, ...]}, [objection, ...]).
    """
    waiting = queue.Queue()
    for case in cases:
        waiting.put(case)
    verdicts, wrong, lock = collections.defaultdict(list), [], threading.Lock()

    def play(arena, case):
        if case[0] != PLAIN:
            return arena.play(*case)
        return arena.play_plain_criu_kill(f"{seed} {case[1]}")

    def work(number):
        with Lab() as lab:
            arena = Arena(lab, number, seed).open()
            try:
                while True:
                    try:
                        case = waiting.get_nowait()
                    except queue.Empty:
                        return
                    began = time.monotonic()
                    try:
                        verdict = play(arena, case)
                    except Exception as error:  # the case has failed; the others go on
                        verdict = "WRONG"
                        with lock:
                            wrong.append(f"{case}: {type(error).__name__}: {error}")
                            print(f"WRONG {wrong[-1]}", file=sys.stderr, flush=True)
                        arena.close()
                        arena = Arena(lab, f"{number}x{len(wrong)}", seed).open()
                    with lock:
                        verdicts[case[:3]].append(verdict)
                        report(case, verdict, time.monotonic() - began)
            finally:
                arena.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(arena_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not waiting.empty():
        wrong.append(f"{waiting.qsize()} cases were not played")
    return verdicts, wrong


def table(verdicts):
    """Returns the verdicts over all states as Markdown, by the failed program and the kind of
    failure.
    """
    counts = collections.defaultdict(collections.Counter)
    for (stop, what, how), of_case in verdicts.items():
        if stop != PLAIN:
            counts[what, how].update(of_case)
    kinds = [kind for kind, _ in sum(counts.values(), collections.Counter()).most_common()]
    lines = [["what", "how", *kinds], ["---"] * (2 + len(kinds))]
    lines += [
        [what, how, *(str(of[kind] or "") for kind in kinds)]
        for (what, how), of in sorted(counts.items())
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--migrations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--arenas", type=int, default=4, help="pairs of nodes that play at once")
    parser.add_argument("--criu-kills", type=int, default=40, help="see above")
    parser.add_argument(
        "--mode", action="append", choices=failure_cases.MODES, help="only these; may be repeated"
    )
    parser.add_argument("--only", default="", help="only cases that contain this text")
    arguments = parser.parse_args()
    missing = failure_cases.missing_states()
    if missing:
        sys.exit(f"failure_cases.py and ownership_record.h differ in these states: {missing}")
    cases = [case for case in failure_cases.all_cases() if arguments.only in ", ".join(case[:3])]
    if not cases:
        sys.exit(f"no case contains '{arguments.only}'")
    print(
        f"{len(cases)} cases, {arguments.migrations} migrations, seed {arguments.seed}", flush=True
    )

    done = 0

    def report(case, verdict, seconds):
        nonlocal done
        done += 1
        stop, what, how, mode = case
        print(
            f"{done:5} {stop:18} {what:14} {how:7} {mode:9} {seconds:5.1f} s  {verdict}", flush=True
        )

    modes = arguments.mode or failure_cases.MODES
    chosen = failure_cases.choose(cases, arguments.migrations, arguments.seed, modes)
    for number in range(arguments.criu_kills):
        mode = failure_cases.MODES[number % 2]
        chosen += [(*CRIU_KILL, mode), (PLAIN, str(number), "kill", mode)]
    verdicts, wrong = play_all(chosen, arguments.arenas, arguments.seed, report)
    plain = [
        verdict for case, of_case in verdicts.items() if case[0] == PLAIN for verdict in of_case
    ]
    tally = collections.Counter(
        verdict for case, of_case in verdicts.items() if case[0] != PLAIN for verdict in of_case
    )
    counts = ", ".join(f"{count} {verdict}" for verdict, count in tally.most_common())
    print(f"\n{table(verdicts)}\n\n{counts}; seed {arguments.seed}")
    for case, of_case in sorted(verdicts.items()):
        if case[0] != PLAIN and LOST in of_case:
            print(f"lost: {of_case.count(LOST)} of {len(of_case)}: {', '.join(case)}")
    if plain:
        ours = verdicts[CRIU_KILL]
        print(
            f"lost with a criu dump that was killed: {ours.count(LOST)} of {len(ours)}, "
            f"without ppmr {plain.count(LOST)} of {len(plain)}, and {plain.count(HANGS)} hang"
        )
        if lost_more(ours, plain):
            wrong.append("a killed criu dump loses more processes under ppmr than without it")
    for text in wrong:
        print(f"\nWRONG {text}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
