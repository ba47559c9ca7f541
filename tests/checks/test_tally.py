"""What tests/tally.py counts, and the list of tests that pass only when repeated."""
import datetime
import json
import re
import subprocess
import sys

import pytest

import tally
from lab.programs import REPOSITORY

CLASS = "tests.e2e.test_moves"
HEAD = "| test | since | failed / runs | what is known |\n| --- | --- | --- | --- |\n"


def junit(path, **cases):
    """A junit file of test_moves.py: test=result, result one of passed, failed, skipped, late."""
    late = '<skipped message="did not run: the time is over"/>'
    kinds = {"passed": "", "failed": "<failure/>", "skipped": "<skipped/>", "late": late}
    rows = "".join(
        f'<testcase classname="{CLASS}" name="{name}">{kinds[kind]}</testcase>'
        for name, kind in cases.items()
    )
    path.write_text(f"<testsuites><testsuite>{rows}</testsuite></testsuites>")
    return path


def bazel_events(path, label, status, passes):
    xml = path.with_suffix(".xml")
    failure = "" if passes else "<failure/>"
    xml.write_text(
        f'<testsuite><testcase name="T.Case" status="run">{failure}</testcase></testsuite>'
    )
    result = {"status": status, "testActionOutput": [{"name": "test.xml", "uri": f"file://{xml}"}]}
    event = {"id": {"testResult": {"label": label, "run": 1, "shard": 1}}, "testResult": result}
    path.write_text(json.dumps(event) + "\n")
    return path


def run(*words):
    """The lines and the exit code of tally.py."""
    command = [sys.executable, REPOSITORY / "tests/tally.py", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.splitlines(), done.returncode, done.stderr


def test_each_result_is_counted_once(tmp_path):
    results = junit(tmp_path / "e2e.xml", one="passed", two="failed", three="skipped")
    lines, code, _ = run("--junit", results)
    assert (lines, code) == (["1 passed, 1 failed, 1 skipped"], 1)


def test_test_that_would_have_begun_too_late_is_skipped_and_named(tmp_path):
    results = junit(tmp_path / "e2e.xml", one="passed", two="late", three="skipped")
    lines, code, errors = run("--junit", results)
    assert (lines, code) == (["1 passed, 0 failed, 2 skipped"], 0)
    assert errors == "did not run: tests/e2e/test_moves.py::two\n"


def test_test_that_passes_only_when_repeated_is_named_above_the_last_line(tmp_path):
    results = junit(tmp_path / "e2e.xml", one="passed", two="failed", three="failed")
    again = junit(tmp_path / "again.xml", two="passed", three="failed")
    lines, code, _ = run("--junit", results, "--again", again)
    assert lines == [
        "flaky: tests/e2e/test_moves.py::two (passed only when repeated, not listed in tests/flaky.md)",
        "2 passed, 1 failed, 0 skipped",
    ]
    assert code == 1


def test_unit_test_that_passes_only_when_repeated_is_named_too(tmp_path):
    first = bazel_events(tmp_path / "first.json", "//base:crc32c_test", "FAILED", passes=False)
    again = bazel_events(tmp_path / "again.json", "//base:crc32c_test", "PASSED", passes=True)
    lines, code, _ = run("--bazel", first, "--bazel-again", again)
    assert lines[0].startswith("flaky: //base:crc32c_test (")
    assert (lines[1:], code) == (["1 passed, 0 failed, 0 skipped"], 0)


def test_tests_that_did_not_run_are_skipped_and_named(tmp_path):
    results = junit(tmp_path / "e2e.xml", one="passed")
    collected = tmp_path / "collected"
    collected.write_text(
        "tests/e2e/test_moves.py::one\ntests/e2e/test_moves.py::two[a b]@machines\n"
    )
    lines, code, errors = run("--junit", results, "--collected", collected, "--failed-steps", 1)
    assert "did not run: tests/e2e/test_moves.py::two[a b]\n" in errors
    assert (lines, code) == (["1 passed, 1 failed, 1 skipped"], 1)


def test_results_of_an_interrupted_run_are_counted(tmp_path):
    results = junit(tmp_path / "e2e.xml", one="passed")
    text = results.read_text()
    results.write_text(text.replace("</testsuite>", "<testcase><error/></testcase></testsuite>"))
    collected = tmp_path / "collected"
    collected.write_text("tests/e2e/test_moves.py::one\ntests/e2e/test_moves.py::two\n")
    lines, code, errors = run("--junit", results, "--collected", collected)
    assert "did not run: tests/e2e/test_moves.py::two\n" in errors
    assert code == 1 and "1 passed" in lines[-1]


def test_run_without_any_test_is_a_failure(tmp_path):
    assert run() == (["0 passed, 1 failed, 0 skipped"], 1, "tally: no test ran\n")


def objections(text):
    """What is wrong with the table of tests that pass only when repeated."""
    found = []
    for row in tally.listed_as_flaky(text):
        if len(row) != 4:
            found.append(f"{row}: not four cells")
            continue
        test, since, rate, known = row
        file = REPOSITORY / test.split("::")[0]
        if not re.fullmatch(r"//[\w/]*:\w+", test) and not ("::" in test and file.is_file()):
            found.append(f"{test}: neither a pytest case nor a Bazel label")
        try:
            if datetime.date.fromisoformat(since) > datetime.date.today():
                found.append(f"{test}: {since} is in the future")
        except ValueError:
            found.append(f"{test}: {since} is no date")
        counts = re.fullmatch(r"(\d+) / (\d+)", rate)
        if not counts or not 1 <= int(counts[1]) <= int(counts[2]):
            found.append(f"{test}: {rate} is no rate")
        if not known:
            found.append(f"{test}: what is known?")
    return found


def test_list_of_flaky_tests_is_well_formed():
    text = (REPOSITORY / "tests/flaky.md").read_text()
    assert HEAD in text
    assert objections(text) == []


@pytest.mark.parametrize(
    "row, objection",
    [
        ("| `tests/e2e/test_moves.py::one` | 2026-11-01 | 1 / 20 | waits for a log |", ""),
        ("| `//base:crc32c_test` | 2026-11-01 | 20 / 20 | waits for a log |", ""),
        ("| `tests/e2e/gone.py::one` | 2026-11-01 | 1 / 20 | waits |", "neither"),
        ("| `//base:crc32c_test` | yesterday | 1 / 20 | waits |", "no date"),
        ("| `//base:crc32c_test` | 2999-01-01 | 1 / 20 | waits |", "future"),
        ("| `//base:crc32c_test` | 2026-11-01 | 0 / 20 | waits |", "no rate"),
        ("| `//base:crc32c_test` | 2026-11-01 | often | waits |", "no rate"),
        ("| `//base:crc32c_test` | 2026-11-01 | 1 / 20 | |", "what is known"),
        ("| `//base:crc32c_test` | 2026-11-01 | 1 / 20 |", "not four cells"),
    ],
)
def test_wrong_rows_of_the_list_are_found(row, objection):
    found = objections(HEAD + row + "\n")
    assert (objection in found[0]) if objection else not found
