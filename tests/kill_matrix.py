#!/usr/bin/python3
"""The kill matrix: migrations that are stopped at every state of the protocol while something fails, and the oracle of lab/kill_matrix.py.

    tests/kill_matrix.py --migrations 1000 --seed 1 [--arenas 4]

Every case of the matrix is played once before one is played twice; `--only TEXT` plays those whose description has that text. Prints a line for each
case and a table of what became of them; exit 0 only if the oracle had nothing to say. As root.
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


def play_all(cases, arena_count, say=lambda *_: None):
    """Plays the cases in that many arenas at once; returns ({(case): [verdict, ...]}, [what the oracle objects to])."""
    waiting = queue.Queue()
    for case in cases:
        waiting.put(case)
    verdicts, wrong, lock = collections.defaultdict(list), [], threading.Lock()

    def work(number):
        with Lab() as lab:
            arena = matrix.Arena(lab, number).open()
            try:
                while True:
                    try:
                        case = waiting.get_nowait()
                    except queue.Empty:
                        return
                    began = time.monotonic()
                    try:
                        verdict = arena.play(*case)
                    except Exception as error:  # noqa: BLE001: whatever it is, the case has failed and the others go on
                        verdict = "WRONG"
                        with lock:
                            wrong.append(f"{case}: {type(error).__name__}: {error}")
                        arena.close()
                        arena = matrix.Arena(lab, f"{number}x{len(wrong)}").open()
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--migrations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--arenas", type=int, default=4, help="pairs of nodes that play at once")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    if matrix.missing_states():
        sys.exit(f"the matrix and ownership_record.h differ in these states: {matrix.missing_states()}")
    cases = [case for case in matrix.all_cases() if arguments.only in ", ".join(case)]
    print(f"{len(cases)} cases, {arguments.migrations} migrations, seed {arguments.seed}", flush=True)

    done = 0

    def say(case, verdict, seconds):
        nonlocal done
        done += 1
        stop, what, how, eager = case
        print(f"{done:5} {stop:18} {what:14} {how:6} {'eager' if eager else 'lazy':6} {seconds:5.1f} s  {verdict}", flush=True)
    verdicts, wrong = play_all(matrix.choose(cases, arguments.migrations, arguments.seed), arguments.arenas, say)
    tally = collections.Counter(verdict for all_of_case in verdicts.values() for verdict in all_of_case)
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in tally.most_common()) + f"; seed {arguments.seed}")
    for text in wrong:
        print(f"\nWRONG {text}")
    missed = tally[matrix.NOT_REACHED]
    if missed * 20 > arguments.migrations:
        print(f"\n{missed} migrations ended before the state they were to be stopped at: too many, the machine is too busy")
    sys.exit(1 if wrong or missed * 20 > arguments.migrations else 0)


if __name__ == "__main__":
    main()
