"""What the judge of tests/live_moves.py objects to."""
import random
from types import SimpleNamespace

import live_moves
import pytest
from lab.node import LabError

HERE, THERE = SimpleNamespace(name="one"), SimpleNamespace(name="other")


def changer_with(*nodes, numbers=None, wrong=0):
    """Returns a changer whose lines were written on these nodes, 10 ms apart."""
    changer = live_moves.Changer.__new__(live_moves.Changer)
    changer._seen, changer.wrong = 0, 0
    lines = [
        {"line": number, "node": node, "real_ns": index * 10_000_000, "wrong": wrong}
        for index, (number, node) in enumerate(zip(numbers or range(1, len(nodes) + 1), nodes))
    ]
    changer.program = SimpleNamespace(lines=lambda: lines)
    return changer


def test_time_between_the_lines_of_two_nodes_is_the_downtime():
    changer = changer_with("one", "one", "other", "other")
    assert changer.check(HERE, THERE) == pytest.approx(0.01)
    assert changer_with("one", "one").check(HERE, THERE) is None


@pytest.mark.parametrize(
    "nodes, numbers",
    [
        (["one", "other", "one"], None),  # both copies wrote
        (["one", "third"], None),
        (["one", "one", "other"], [1, 3, 4]),  # a line is lost
        (["one", "one", "other"], [1, 2, 2]),  # a line is repeated
    ],
)
def test_lines_that_no_single_program_writes_are_a_fault(nodes, numbers):
    with pytest.raises(LabError):
        changer_with(*nodes, numbers=numbers).check(HERE, THERE)


def play(code, events, nodes, tally):
    done = SimpleNamespace(code=code, events=events, output="")
    way = SimpleNamespace(source_at=HERE, target_at=THERE, migrate=lambda *_, **__: done)
    changer = changer_with(*nodes)
    changer.program.pid, changer.program.wait_for_lines = 7, lambda *_, **__: None
    return live_moves.play(changer, way, [], tally, "default")


def test_move_that_neither_moves_nor_stays_with_a_reason_is_a_fault():
    tally = live_moves.Tally()
    refused = [{"event": "aborted", "error": "the link is cut"}]
    assert play(0, [], ["one", "other"], tally)[0]
    assert not play(11, refused, ["one", "one"], tally)[0]
    assert tally.is_right()
    for code, events, nodes in [
        (11, [], ["one", "one"]),  # without a reason
        (12, refused, ["one", "one"]),
        (0, [], ["one", "one"]),  # it has not moved
        (11, refused, ["one", "other"]),  # it has moved
    ]:
        with pytest.raises(LabError):
            play(code, events, nodes, tally)


def test_wrong_word_is_a_failure_of_the_run():
    changer = changer_with("one", "other", wrong=3)
    changer.check(HERE, THERE)
    assert changer.wrong == 3
    tally = live_moves.Tally()
    tally.moved["default"] = 9
    assert tally.is_right()
    tally.wrong = changer.wrong
    assert not tally.is_right()
    tally.wrong, tally.faults = 0, ["move 3: lines are missing"]
    assert not tally.is_right()


def test_seed_draws_the_same_options_again():
    drawn = [
        [live_moves.draw(random.Random(seed), mode) for seed in range(50)]
        for mode in ("default", "default", "post-copy")
    ]
    assert drawn[0] == drawn[1]
    assert any("cancel" in options for options in drawn[0])
    assert not any("cancel" in options for options in drawn[2])
