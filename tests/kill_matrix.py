#!/usr/bin/python3
"""The kill matrix: migrations that are stopped at every state of the protocol while something fails, and the oracle of lab/kill_matrix.py.

    tests/kill_matrix.py --migrations 1000 --seed 1 [--arenas 4]

Every case of the matrix is played once before one is played twice; `--only TEXT` plays those whose description has that text. Prints a line for each
case and a table of what became of them; exit 0 only if the oracle had nothing to say. As root.

A `criu dump` that gets a SIGKILL while its parasite is in a process can take the process with it, with ppmr or without. So that case is played
`--criu-kills` times more, beside as many plain dumps that are killed at the same moments, and must not lose significantly more of them.
"""
import argparse
import collections
import queue
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lab import kill_matrix as matrix  # noqa: E402
from lab.node import Lab  # noqa: E402


PLAIN = "plain criu"
CRIU_KILL = ("source:dumping", "source criu", "kill")


def lost_more(ours, plain):
    """Whether so many of `ours` (verdicts) are lost that CRIU's own nature, as `plain` shows it, cannot be the reason: 3 standard deviations, and 2 for few."""
    expected = len(ours) * plain.count(matrix.LOST) / len(plain)
    variance = expected * (1 + len(ours) / len(plain))
    return ours.count(matrix.LOST) > expected + 3 * variance**0.5 + 2


def play_all(cases, arena_count, seed, say=lambda *_: None):
    """Plays the cases in that many arenas at once (PLAIN: a dump without ppmr); returns ({(case): [verdict, ...]}, [what the oracle objects to])."""
    waiting = queue.Queue()
    for case in cases:
        waiting.put(case)
    verdicts, wrong, lock = collections.defaultdict(list), [], threading.Lock()

    def work(number):
        with Lab() as lab:
            arena = matrix.Arena(lab, number, seed).open()
            try:
                while True:
                    try:
                        case = waiting.get_nowait()
                    except queue.Empty:
                        return
                    began = time.monotonic()
                    try:
                        if case[0] == PLAIN:
                            verdict = (
                                "survived"
                                if matrix.play_plain_criu_kill(arena, f"{seed} {case[1]}")
                                else matrix.LOST
                            )
                        else:
                            verdict = arena.play(*case)
                    except (
                        Exception
                    ) as error:  # noqa: BLE001: whatever it is, the case has failed and the others go on
                        verdict = "WRONG"
                        with lock:
                            wrong.append(f"{case}: {type(error).__name__}: {error}")
                            print(f"WRONG {wrong[-1]}", file=sys.stderr, flush=True)
                        arena.close()
                        arena = matrix.Arena(lab, f"{number}x{len(wrong)}", seed).open()
                    with lock:
                        verdicts[case[:3]].append(verdict)
                        say(case, verdict, time.monotonic() - began)
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
    """Markdown: what became of the migrations, by what failed and how, over all states."""
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
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    if matrix.missing_states():
        sys.exit(
            f"the matrix and ownership_record.h differ in these states: {matrix.missing_states()}"
        )
    cases = [case for case in matrix.all_cases() if arguments.only in ", ".join(case[:3])]
    print(
        f"{len(cases)} cases, {arguments.migrations} migrations, seed {arguments.seed}", flush=True
    )

    done = 0

    def say(case, verdict, seconds):
        nonlocal done
        done += 1
        stop, what, how, eager = case
        print(
            f"{done:5} {stop:18} {what:14} {how:6} {'eager' if eager else 'lazy':6} {seconds:5.1f} s  {verdict}",
            flush=True,
        )

    chosen = matrix.choose(cases, arguments.migrations, arguments.seed)
    for number in range(arguments.criu_kills):
        chosen += [(*CRIU_KILL, number % 2 == 0), (PLAIN, str(number), "kill", False)]
    verdicts, wrong = play_all(chosen, arguments.arenas, arguments.seed, say)
    plain = [
        verdict for case, of_case in verdicts.items() if case[0] == PLAIN for verdict in of_case
    ]
    tally = collections.Counter(
        verdict for case, of_case in verdicts.items() if case[0] != PLAIN for verdict in of_case
    )
    print(f"\n{table(verdicts)}")
    print(
        "\n"
        + ", ".join(f"{count} {verdict}" for verdict, count in tally.most_common())
        + f"; seed {arguments.seed}"
    )
    for case, of_case in sorted(verdicts.items()):
        if case[0] != PLAIN and matrix.LOST in of_case:
            print(f"lost: {of_case.count(matrix.LOST)} of {len(of_case)}: {', '.join(case)}")
    if plain:
        ours = verdicts[CRIU_KILL]
        print(
            f"lost with a criu dump that was killed: {ours.count(matrix.LOST)} of {len(ours)}, without ppmr {plain.count(matrix.LOST)} of {len(plain)}"
        )
        if lost_more(ours, plain):
            wrong.append("a killed criu dump loses more processes under ppmr than by itself")
    for text in wrong:
        print(f"\nWRONG {text}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
