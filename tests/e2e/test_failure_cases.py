"""The everyday part of the kill matrix: a sample, with more kills than other failures.

`--long` runs every case. tests/kill_matrix.py runs as many cases as requested.
"""
import random
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import kill_matrix  # noqa: E402
from lab import failure_cases  # noqa: E402
from lab import witness as witnesses  # noqa: E402
from lab.arena import Arena, Wrong  # noqa: E402
from lab.criu import find_criu  # noqa: E402
from lab.node import LabError, wait_until  # noqa: E402

KILLS, OTHERS = 36, 12  # drawn in the everyday run


@pytest.mark.first
def test_exactly_one_copy_runs_after_every_failure(ppmr, long):
    seed = int(time.time())
    print(f"seed {seed}")
    generator = random.Random(seed)
    cases = list(failure_cases.all_cases())
    if not long:
        kills = [case for case in cases if case[2] == "kill"]
        others = [case for case in cases if case[2] != "kill"]
        cases = generator.sample(kills, KILLS) + generator.sample(others, OTHERS)
    generator.shuffle(cases)
    chosen = [failure_cases.with_mode(case, generator, failure_cases.MODES) for case in cases]
    verdicts, wrong = kill_matrix.play_all(chosen, arena_count=4, seed=seed)
    assert not wrong, f"seed {seed}\n" + "\n\n".join(wrong)
    assert sum(map(len, verdicts.values())) == len(chosen)
    played = [verdict for all_of_case in verdicts.values() for verdict in all_of_case]
    assert "moved" in played and "stayed" in played


@pytest.fixture
def arena(lab, ppmr):
    arena = Arena(lab).open()
    yield arena
    arena.close()


# Runs the CRIUs of the nodes whose name starts with {} without notifications.
WITHOUT_HOOK = 'case "$1 $(cat /proc/sys/kernel/hostname)" in "swrk {}"*) exec /usr/bin/python3 -SE {}/unnotified_criu.py {} "$@" ;; esac\n'


def without_hook(node):
    return WITHOUT_HOOK.format(node, Path(failure_cases.__file__).parent, find_criu())


def test_failure_cases_detect_target_that_runs_process_before_owning_it(arena):
    assert arena.play("source:sealed", "migrate", "kill", failure_cases.EAGER) == "stayed"
    arena.mutation.write_text(without_hook("target"))
    # Without this, the abort may end the copy before it writes a line: then it never ran.
    arena.before_failure = lambda witness: wait_until(
        lambda: witness.has_run_on(arena.target), 20, "the copy to run without a vote"
    )
    with pytest.raises(Wrong, match="counted twice|which does not own it, runs"):
        arena.play("source:sealed", "migrate", "kill", failure_cases.EAGER)


def test_failure_cases_detect_source_that_does_not_wait_for_decision(arena):
    assert arena.play("source:aborted", "to the source", "blink", failure_cases.EAGER) == "stayed"
    arena.mutation.write_text(without_hook("source"))
    with pytest.raises(Wrong, match="which owns it, to run; it is absent"):
        arena.play("source:aborted", "to the source", "blink", failure_cases.EAGER)


def test_state_of_test_program_is_running_stopped_or_absent(arena):
    witness = arena.new_witness()
    assert witness.state(arena.source) == witnesses.RUNS
    assert witness.state(arena.target) == witnesses.ABSENT
    arena.source.signal(witness.pid, signal.SIGSTOP)
    wait_until(
        lambda: witness.state(arena.source) == witnesses.STOPPED, 5, "the witness to be stopped"
    )
    witness.end()
    assert witness.state(arena.source) == witnesses.ABSENT


@pytest.mark.parametrize(
    "sentence, change",
    [
        ("counted twice", lambda lines: lines + lines[-1:]),
        ("lost lines", lambda lines: lines[:5] + lines[6:]),
        ("wrong state", lambda lines: lines[:-1] + [with_word(lines[-1], 1, "7")]),
        ("before the line above", lambda lines: lines[:-1] + [with_word(lines[-1], 3, "1")]),
        ("words of memory are wrong", lambda lines: lines[:-1] + [with_word(lines[-1], 5, "2")]),
        ("ran on", lambda lines: lines[:-1] + [with_word(lines[-1], 2, "elsewhere")]),
    ],
)
def test_log_check_detects_repeated_missing_and_wrong_lines(arena, sentence, change):
    witness = arena.new_witness()
    witness.end()
    lines = witness.log.read_text().splitlines()
    nodes = [arena.source.name]
    witness.check_log([nodes])
    witness.log.write_text("\n".join(change(lines)) + "\n")
    with pytest.raises(LabError, match=sentence):
        witness.check_log([nodes])


def with_word(line, number, word):
    words = line.split()
    words[number] = word
    return " ".join(words)
