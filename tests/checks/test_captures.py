"""docs/captures.md has every command whose output people read, and none that is gone."""
import re
from pathlib import Path
from types import SimpleNamespace

from lab.captures import JOB_COMMANDS, WIDTHS, Stage
from lab.programs import REPOSITORY

PAGE = (REPOSITORY / "docs/captures.md").read_text()
MANUAL = REPOSITORY / "docs/man"
# Commands that have no single output on a terminal, and why.
NOT_CAPTURED = {
    "source": "a daemon",
    "target": "a daemon",
    "protect": "runs as long as what it protects",
    "restart": "its lines are those of CRIU",
    "completion": "a script for a shell",
    "rdma": "its output is that of the program that it starts",
}


def captured():
    return re.findall(r"^## (.*)$", PAGE, re.M)


def recorded():
    """The titles that the script writes."""
    stage = SimpleNamespace(
        mounts=SimpleNamespace(out=Path("/out")),
        state=[],
        pids=[1],
        names=["x"],
        checkpoints=["x"],
        lab=None,
        _start=lambda lab, name, **options: 1,
    )
    of_stage = [*Stage.commands(stage), *Stage.moves(stage, WIDTHS[0])]
    return [title for title, _ in [*of_stage, *JOB_COMMANDS]]


def test_page_has_what_the_script_records_now():
    assert set(recorded()) | {"doctor"} == set(captured()), "run docs/captures"


def test_every_command_is_captured_or_has_a_reason():
    commands = {page.name[len("ppmr-") : -len(".8.md")] for page in MANUAL.glob("ppmr-*.8.md")}
    shown = {title.split()[0] for title in captured()} & commands
    assert commands - shown == set(NOT_CAPTURED)


def test_captured_options_are_documented():
    for title in captured():
        name, *options = title.split()
        page = MANUAL / f"ppmr-{name}.8.md"
        for option in (word for word in options if word.startswith("--")):
            assert f"**{option}**" in page.read_text(), title


def test_no_captured_line_is_wider_than_its_terminal():
    columns = max(WIDTHS)
    for line in PAGE.splitlines():
        found = re.fullmatch(r"(\d+) columns:", line)
        if found or line.startswith("## "):
            columns = int(found[1]) if found else max(WIDTHS)
        elif line.startswith("    "):
            assert len(line) - 4 <= columns, line
