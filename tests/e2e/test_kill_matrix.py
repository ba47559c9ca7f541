"""The fast part of the kill matrix: every state with everybody killed once, and a sample of the rest. The whole: tests/kill_matrix.py."""
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import kill_matrix  # noqa: E402
from lab import kill_matrix as matrix  # noqa: E402


def test_the_matrix_knows_every_state():
    assert matrix.missing_states() == set()


def test_whoever_is_killed_exactly_one_copy_goes_on(ppmr):
    seed = int(time.time())
    print(f"seed {seed}")
    generator = random.Random(seed)
    cases = list(matrix.all_cases())
    kills = [case for case in cases if case[2] == "kill"]
    others = generator.sample([case for case in cases if case[2] != "kill"], 16)
    chosen = [(*case, generator.random() < 0.5) for case in kills + others]
    generator.shuffle(chosen)
    verdicts, wrong = kill_matrix.play_all(chosen, arena_count=4)
    assert not wrong, f"seed {seed}\n" + "\n\n".join(wrong)
    assert sum(map(len, verdicts.values())) == len(chosen)
    played = [verdict for all_of_case in verdicts.values() for verdict in all_of_case]
    assert "moved" in played and "stayed" in played
