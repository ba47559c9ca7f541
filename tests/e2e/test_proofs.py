"""The observers of test_moves.py and of the demo catch what they are there to catch."""
import pytest

from lab.node import LabError
from lab.peers import TarMove
from lab.programs import Line, SteadyWorker, chain_state, check_continuity, gap_between, mix
from lab.proofs import Before, prove


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


def test_an_unbroken_sequence_is_accepted():
    check_continuity([line(number) for number in range(1, 50)])


@pytest.mark.parametrize(
    "changes, complaint",
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
def test_a_line_that_does_not_follow_on_is_caught(changes, complaint):
    with pytest.raises(LabError, match=complaint):
        check_continuity([*(line(number) for number in range(1, 20)), line(20, **changes)])


@pytest.mark.parametrize("numbers", [[1, 2, 4], [1, 2, 2, 3], [2, 3]])
def test_a_missing_or_repeated_line_is_caught(numbers):
    with pytest.raises(LabError, match="carries number"):
        check_continuity([line(number) for number in numbers])


def test_two_writers_are_caught():
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


def test_one_flipped_byte_of_memory_is_caught(lab, nodes):
    """On the way, one byte in the middle of the page image is changed: the worker runs on, and only its memory gives it away."""

    class Tampering(TarMove):
        def _restore(self, options):
            pages = max(
                self.target.host_path(self._at_target).glob("pages-*.img"),
                key=lambda file: file.stat().st_size,
            )
            with open(pages, "r+b") as image:
                image.seek(pages.stat().st_size // 2)
                byte = image.read(1)[0]
                image.seek(-1, 1)
                image.write(bytes([byte ^ 1]))
            super()._restore(options)

    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=32)
    worker.wait_for_lines(20)
    before = Before(worker)
    move = Tampering(nodes.source, nodes.target)
    move.prepare("tampered")
    move.move(worker)
    worker.wait_for_lines(20)
    claims = prove(worker, before, nodes.source, nodes.target)
    worker.end()
    move.clean()
    assert [what for what, holds, _ in claims if not holds] == ["memory"]
