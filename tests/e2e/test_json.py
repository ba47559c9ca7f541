"""`--json` of every command that has it: each mistake yields exactly one JSON document, which has
the error and the exit code."""
import json
import re
import subprocess

import pytest

from lab.ppmr import find_ppmr
from test_mistakes import MISTAKES, filled, places  # noqa: F401

USAGE = 2


def commands_with_json():
    """The words of each command whose help has --json: [["migrate"], ["job", "status"], ...]."""
    found, open_ones = [], [[]]
    while open_ones:
        words = open_ones.pop()
        done = subprocess.run(
            [find_ppmr(), *words, "--help"], capture_output=True, text=True, check=True
        )
        if re.search(r"^  --json\b", done.stdout, re.M):
            found.append(words)
        nested = done.stdout.split("Subcommands:\n", 1)[1:]
        names = re.findall(r"^  ([a-z]+) ", nested[0], re.M) if nested else []
        open_ones += [[*words, name] for name in names]
    return sorted(found)


COMMANDS = commands_with_json()


def check_one_error(words, code=None):
    done = subprocess.run([find_ppmr(), *words], capture_output=True, text=True, timeout=30)
    lines = done.stdout.splitlines()
    assert len(lines) == 1, (words, done.stdout, done.stderr)
    error = json.loads(lines[0])
    assert error["ok"] is False and error["error"], error
    assert error["exit_code"] == done.returncode != 0, (error, done.returncode)
    assert code is None or done.returncode == code
    assert error["error"] in done.stderr.replace("\n", " ") or done.stderr == ""


def test_commands_with_json_are_found():
    assert len(COMMANDS) >= 14 and ["migrate"] in COMMANDS and ["job", "status"] in COMMANDS


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    "mistake",
    [["--no-such-option"], ["--timeout", "soon"], ["--state-dir"], ["a", "b", "c", "--x"]],
    ids=" ".join,
)
def test_parser_error_is_one_document(command, mistake):
    check_one_error([*command, "--json", *mistake], USAGE)


def has_json(words):
    return words[:1] in COMMANDS or words[:2] in COMMANDS


@pytest.mark.parametrize(
    "case",
    [case for case in MISTAKES if has_json(case[0])],
    ids=lambda case: " ".join(case[0]).replace("/", "|"),
)
def test_mistake_is_reported_as_one_document(places, case):  # noqa: F811
    words, code, *_ = case
    check_one_error([*(filled(word, places) for word in words), "--json"], code)


def test_unknown_command_and_configuration_are_one_document(tmp_path):
    check_one_error(["frobnicate", "--json"], USAGE)
    check_one_error(["status", "--frobnicate", "--json"], USAGE)
    check_one_error(["--json"], USAGE)
    check_one_error(["protect", "--config", tmp_path / "none", "--json"], USAGE)


def test_command_with_nothing_to_do_prints_a_summary_or_no_line(ppmr, tmp_path):
    """A list has a line for each thing: none if there is none."""
    lists = ["migrations", "history"]
    for name in lists:
        words = [ppmr, name, "--json", "--state-dir", tmp_path]
        done = subprocess.run(words, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), name
