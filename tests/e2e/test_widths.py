"""No line is wider than the terminal, whatever the names of processes and checkpoints are. Outputs
that are no terminal, and --wide, have the whole lines."""
import pytest
from wcwidth import wcswidth

from lab.captures import HOSTILE, PLAIN, WIDTHS, Stage, written_lines
from lab.ppmr import find_ppmr
from lab.terminal import ESCAPE


@pytest.fixture(scope="module")
def stage(ppmr):
    with Stage([PLAIN, *HOSTILE]) as stage:
        assert "moved" in stage.move_first()
        yield stage


@pytest.mark.parametrize("columns", WIDTHS)
def test_no_line_is_wider_than_the_terminal(stage, columns):
    for title, words in stage.commands():
        raw = stage.raw(words, columns)
        assert raw.strip(), title
        if title in ("migrate --rehearse",):  # draws its progress, which moves the cursor
            raw = raw.rpartition(f"{ESCAPE}[J")[2]
        for line in written_lines(raw):
            assert ESCAPE not in line, (title, line)
            assert 0 <= wcswidth(line) <= columns, (title, wcswidth(line), line)


def test_wide_option_and_output_to_files_have_whole_lines(stage):
    words = ["status", stage.mounts.out]
    name = f"of-{HOSTILE[-1]}"
    assert not any(name in line for line in written_lines(stage.raw(words, 80)))
    assert any(name in line for line in written_lines(stage.raw([*words, "--wide"], 80)))
    assert name in stage.source.run([find_ppmr(), *words]).stdout


def test_json_on_a_terminal_stays_one_line(stage):
    lines = written_lines(stage.raw(["status", stage.mounts.out, "--json"], 60))
    assert len(lines) == 1 and lines[0].startswith("{") and lines[0].endswith("}")
