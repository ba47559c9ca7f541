"""Counts test cases from result files and prints `N passed, N failed, N skipped`. Exit 0 only if
none failed.

Bazel's build events name every test of a run and its test.xml, so that stale files of earlier runs
do not count. pytest writes junit files. Tests that failed run again alone, which writes a second
file of either kind. A test that passes only then counts as passed, and a line `flaky: NAME` above
the last one names it: it is a defect to mend, and stands in tests/flaky.md until then. A test that
pytest collected but did not run counts as skipped, and is named; so is one that would have begun
too late.

Each of these also counts as one failure: a test that Bazel reports as failed without a failure in
its file (a crash, a timeout), a missing or broken result file, and a failed step without any failed
test.
"""

import argparse
import json
import re
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree
from pathlib import Path

FLAKY_LIST = Path(__file__).with_name("flaky.md")


class Total:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.flaky = []  # the names of those that passed only when repeated

    def add_failure(self, message):
        print(f"tally: {message}", file=sys.stderr)
        self.failed += 1

    def add_xml(self, path):
        """Counts the cases of a junit-like file (gtest's, Bazel's own, pytest's)."""
        for case in ElementTree.parse(path).iter("testcase"):
            kinds = {child.tag for child in case}
            if "failure" in kinds or "error" in kinds:
                self.failed += 1
            elif "skipped" in kinds or case.get("result") == "skipped":
                self.skipped += 1
                name_late(case)
            elif case.get("status") != "notrun":  # a gtest case named DISABLED_
                self.passed += 1


def read_bazel(path):
    """The result of each test of a run (the last attempt counts), and the targets that were not
    completed."""
    with open(path, encoding="utf-8") as lines:
        events = [json.loads(line) for line in lines]
    ran, unfinished = {}, []
    for event in events:
        identity = event["id"]
        if "testResult" in identity:
            test = identity["testResult"]
            ran[test["label"], test.get("run"), test.get("shard")] = event.get("testResult", {})
        elif "targetCompleted" in identity and not event.get("completed", {}).get("success"):
            unfinished.append(identity["targetCompleted"]["label"])
    return ran, unfinished


def output_of(result, name):
    return [
        urllib.parse.unquote(urllib.parse.urlparse(out["uri"]).path)
        for out in result.get("testActionOutput", [])
        if out["name"] == name
    ]


def passed(result):
    return result.get("status") == "PASSED"


def sanitizer_reported(result):
    """A report of a sanitizer is a fault, however rarely it comes: such a test does not run
    again."""
    return any(
        re.search(r"(Address|Leak|Thread|Undefined\w*)Sanitizer|: runtime error: ", log.read())
        for path in output_of(result, "test.log")
        for log in [open(path, encoding="utf-8", errors="replace")]
    )


def failed_targets(path):
    ran, _ = read_bazel(path)
    return sorted(
        {
            label
            for (label, _, _), result in ran.items()
            if not passed(result) and not sanitizer_reported(result)
        }
    )


def add_bazel(total, path, again):
    try:
        ran, unfinished = read_bazel(path)
        ran_again = read_bazel(again)[0] if again else {}
    except (OSError, ValueError) as error:
        total.add_failure(f"cannot read Bazel's build events: {error}")
        return
    for label in unfinished:
        total.add_failure(f"{label} was not built")
    for test, result in ran.items():
        label = test[0]
        if not passed(result) and passed(ran_again.get(test, {})):
            total.flaky.append(label)
            result = ran_again[test]
        passed_already, failed_already = total.passed, total.failed
        files = output_of(result, "test.xml")
        try:
            for file in files:
                total.add_xml(file)
        except (OSError, ElementTree.ParseError) as error:
            total.add_failure(f"{label}: {error}")
        if passed(result) and not files:
            total.add_failure(f"{label} passed without a result file")
        if not passed(result) and total.failed == failed_already:
            total.passed = passed_already
            status = result.get("status", "NO_STATUS")
            total.add_failure(f"{label}: {status} (crashed, timed out, or never ran)")


def pytest_argument_of(case):
    """The argument with which pytest runs this test; xdist appends its group to the name. An
    interrupted run has cases without a class: they are no test."""
    if not case.get("classname"):
        return ""
    return without_group(f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}")


def without_group(name):
    return re.sub(r"@[\w ]+$", "", name)


def name_late(case):
    """Names a test that pytest skipped because it would have begun too late (e2e/conftest.py)."""
    for child in case.iter("skipped"):
        if child.get("message", "").startswith("did not run:"):
            print(f"did not run: {pytest_argument_of(case)}", file=sys.stderr)


def failed_tests(path):
    return [
        pytest_argument_of(case)
        for case in ElementTree.parse(path).iter("testcase")
        if {"failure", "error"} & {child.tag for child in case}
    ]


def add_junit(total, path, again):
    try:
        total.add_xml(path)
        if not again:
            return
        still_failed = failed_tests(again)
        ran = {pytest_argument_of(case) for case in ElementTree.parse(again).iter("testcase")}
        for test in failed_tests(path):
            if test in ran and test not in still_failed:
                total.flaky.append(test)
                total.failed -= 1
                total.passed += 1
    except (OSError, ElementTree.ParseError) as error:
        total.add_failure(f"no usable pytest results: {error}")


def add_not_run(total, collected, paths):
    """Counts the tests that pytest collected and did not run as skipped, and names them."""
    try:
        names = {without_group(name) for name in Path(collected).read_text().splitlines()}
    except OSError:
        return  # no test was collected, which is a failed step
    for path in paths:
        try:
            names -= {pytest_argument_of(case) for case in ElementTree.parse(path).iter("testcase")}
        except (OSError, ElementTree.ParseError):
            pass  # add_junit has counted it
    for name in sorted(names):
        print(f"did not run: {name}", file=sys.stderr)
    total.skipped += len(names)


def listed_as_flaky(text):
    """The rows of the table in tests/flaky.md: (test, date, failures, runs, what is known)."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [tuple(cell.strip().strip("`") for cell in row) for row in rows[2:]]


def name_flaky(total):
    listed = {row[0] for row in listed_as_flaky(FLAKY_LIST.read_text(encoding="utf-8"))}
    for name in sorted(total.flaky):
        where = "as listed in" if name in listed else "not listed in"
        print(f"flaky: {name} (passed only when repeated, {where} tests/flaky.md)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bazel", action="append", default=[], metavar="EVENTS.json")
    parser.add_argument("--bazel-again", metavar="EVENTS.json", help="its failed tests, alone")
    parser.add_argument("--list-failed-bazel", metavar="EVENTS.json")
    parser.add_argument("--junit", action="append", default=[], metavar="FILE.xml")
    parser.add_argument("--collected", metavar="FILE", help="the tests that pytest was to run")
    parser.add_argument("--again", metavar="FILE.xml", help="its failed tests, run again alone")
    parser.add_argument(
        "--list-failed", metavar="FILE.xml", help="only print the failed tests of a junit file"
    )
    parser.add_argument("--cut-short", action="store_true", help="pytest was interrupted")
    parser.add_argument("--failed-steps", type=int, default=0)
    args = parser.parse_args()
    if args.list_failed:
        print("\n".join(failed_tests(args.list_failed)))
        return 0
    if args.list_failed_bazel:
        print("\n".join(failed_targets(args.list_failed_bazel)))
        return 0
    total = Total()
    for path in args.bazel:
        add_bazel(total, path, args.bazel_again)
    for path in args.junit:
        add_junit(total, path, args.again)
    if args.collected:
        add_not_run(total, args.collected, args.junit)
    if args.cut_short:
        # pytest records the case in which it was interrupted as passed.
        total.passed = max(0, total.passed - 1)
    total.failed = max(total.failed, args.failed_steps)
    if not total.passed and not total.failed:
        total.add_failure("no test ran")
    name_flaky(total)
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
