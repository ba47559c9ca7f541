"""The check of the output lines of a moved program detects the faults that it looks for."""
import pytest

from lab.node import LabError
from lab.programs import Line, chain_state, check_continuity, gap_between, mix


def line(number, **changes):
    values = {
        "line": number,
        "mono_ns": number * 10,
        "real_ns": number * 10,
        "node": "source",
        "pid": 7,
        "child": 8,
        "answer": mix(number),
        "served": number,
        "ticks": number,
        "steps": (number, 2 * number),
        "states": (chain_state(0, number), chain_state(1, 2 * number)),
        **changes,
    }
    return Line(
        " ".join(
            f"{key}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
            for key, value in values.items()
        )
    )


def test_check_accepts_unbroken_sequence_of_output_lines():
    check_continuity([line(number) for number in range(1, 50)])


@pytest.mark.parametrize(
    "changes, objection",
    [
        ({"line": 5}, "carries number"),
        ({"answer": 5}, "answer is wrong"),
        ({"served": 1}, "lost count"),
        ({"mono_ns": 5}, "clock went back"),
        ({"pid": 9}, "pid has changed"),
        ({"child": 9}, "pid has changed"),
        ({"ticks": 0}, "timer's count went back"),
        ({"steps": (5, 2), "states": (chain_state(0, 5), chain_state(1, 2))}, "thread went back"),
        ({"states": (1, 2)}, "is not where"),
        ({"wrong_words": 1}, "words of shared memory"),
    ],
)
def test_check_detects_output_line_with_inconsistent_state(changes, objection):
    with pytest.raises(LabError, match=objection):
        check_continuity([*(line(number) for number in range(1, 20)), line(20, **changes)])


@pytest.mark.parametrize("numbers", [[1, 2, 4], [1, 2, 2, 3], [2, 3]])
def test_check_detects_missing_or_repeated_output_line(numbers):
    with pytest.raises(LabError, match="carries number"):
        check_continuity([line(number) for number in numbers])


def test_check_detects_output_from_both_nodes_at_once():
    class Named:
        def __init__(self, name):
            self.name = name

    source, target = Named("source"), Named("target")
    where = ["source", "source", "target", "source", "target"]
    with pytest.raises(LabError, match="both wrote"):
        gap_between(
            [line(number, node=node) for number, node in enumerate(where, start=1)], source, target
        )
    with pytest.raises(LabError, match="no line was written"):
        gap_between([line(1)], source, target)
