"""The fast part of the kill matrix: every state with everybody killed once, and a sample of the rest. The whole: tests/kill_matrix.py."""
import random
import re
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import pytest

import kill_matrix  # noqa: E402
from lab import kill_matrix as matrix  # noqa: E402
from lab import witness as witnesses  # noqa: E402
from lab.criu import find_criu  # noqa: E402
from lab.node import LabError, wait_until  # noqa: E402


def test_the_matrix_knows_every_state():
    assert matrix.missing_states() == set()


def test_whoever_is_killed_exactly_one_copy_goes_on(ppmr):
    seed = int(time.time())
    print(f"seed {seed}")
    generator = random.Random(seed)
    cases = list(matrix.all_cases())
    kills = [case for case in cases if case[2] == "kill"]
    others = generator.sample([case for case in cases if case[2] != "kill"], 16)
    chosen = [
        (*case[:3], generator.random() < 0.5 if case[3] is None else case[3])
        for case in kills + others
    ]
    generator.shuffle(chosen)
    verdicts, wrong = kill_matrix.play_all(chosen, arena_count=4, seed=seed)
    assert not wrong, f"seed {seed}\n" + "\n\n".join(wrong)
    assert sum(map(len, verdicts.values())) == len(chosen)
    played = [verdict for all_of_case in verdicts.values() for verdict in all_of_case]
    assert "moved" in played and "stayed" in played


@pytest.fixture
def arena(lab, ppmr):
    arena = matrix.Arena(lab).open()
    yield arena
    arena.close()


# For the CRIUs of one node, by the beginning of its name.
WITHOUT_HOOK = 'case "$1 $(cat /proc/sys/kernel/hostname)" in "swrk {}"*) exec /usr/bin/python3 -SE {}/unnotified_criu.py {} "$@" ;; esac\n'


def without_hook(node):
    return WITHOUT_HOOK.format(node, Path(matrix.__file__).parent, find_criu())


def test_the_oracle_objects_to_a_target_that_runs_before_it_owns(arena):
    assert arena.play("source:sealed", "migrate", "kill", True) == "stayed"
    arena.mutation.write_text(without_hook("target"))
    with pytest.raises(matrix.Wrong) as objection:
        arena.play("source:sealed", "migrate", "kill", True)
    assert re.search("doubled|does not own it", str(objection.value))


def test_the_oracle_objects_to_a_source_that_does_not_wait_for_the_decision(arena):
    assert arena.play("source:aborted", "to the source", "blink", True) == "stayed"
    arena.mutation.write_text(without_hook("source"))
    with pytest.raises(matrix.Wrong, match="which owns it, to run; it is absent"):
        arena.play("source:aborted", "to the source", "blink", True)


def test_the_oracle_objects_to_a_copy_that_stays_stopped(arena):
    witness = arena.new_witness()
    assert (
        witness.state(arena.source) == witnesses.RUNS
        and witness.state(arena.target) == witnesses.ABSENT
    )
    arena.source.signal(witness.pid, signal.SIGSTOP)
    wait_until(
        lambda: witness.state(arena.source) == witnesses.STOPPED, 5, "the witness to be stopped"
    )
    witness.end()
    assert witness.state(arena.source) == witnesses.ABSENT


@pytest.mark.parametrize(
    "sentence, change",
    [
        ("was doubled", lambda lines: lines + lines[-1:]),
        ("lost something", lambda lines: lines[:5] + lines[6:]),
        ("wrong state", lambda lines: lines[:-1] + [word_changed(lines[-1], 1, "7")]),
        ("before the one above it", lambda lines: lines[:-1] + [word_changed(lines[-1], 3, "1")]),
        ("words of memory are wrong", lambda lines: lines[:-1] + [word_changed(lines[-1], 5, "2")]),
        ("ran on", lambda lines: lines[:-1] + [word_changed(lines[-1], 2, "elsewhere")]),
    ],
)
def test_the_oracle_objects_to_a_log_that_is_wrong(arena, sentence, change):
    witness = arena.new_witness()
    witness.end()
    lines = witness.log.read_text().splitlines()
    nodes = [arena.source.name]
    witness.check_log([nodes])
    witness.log.write_text("\n".join(change(lines)) + "\n")
    with pytest.raises(LabError, match=sentence):
        witness.check_log([nodes])


def word_changed(line, number, word):
    words = line.split()
    words[number] = word
    return " ".join(words)


def test_processes_lost_with_criu_are_counted_against_criu_itself():
    lost, survived = [matrix.LOST], ["stayed"]
    assert not kill_matrix.lost_more(lost * 6 + survived * 34, lost * 5 + survived * 35)
    assert kill_matrix.lost_more(lost * 30 + survived * 10, lost * 5 + survived * 35)
    assert kill_matrix.lost_more(lost * 3 + survived * 37, survived * 40)
