"""The POSIX cases of tests/mount_cases: on tmpfs, at the source, across both mounts, and across
with small chunks.

One pytest case per case and side. The binary runs once per side with the selected cases. A case
that hangs or crashes the binary fails by name, and the other cases run on new mounts.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lab.node import HOST  # noqa: E402
from lab.pace import patience  # noqa: E402
from lab.ppmr import Mounts, find_ppmr  # noqa: E402
from lab.programs import REPOSITORY  # noqa: E402

BINARY = Path(
    os.environ.get("PPMR_MOUNT_CASES") or REPOSITORY / "bazel-bin/tests/mount_cases/mount_cases"
).resolve()
SIDES = ["tmpfs", "source", "across", "across_64KiB"]
LARGE = (
    "LargeFile.OfThreeGiB",
    "SmallFiles.",
)  # 3 GiB and 10,000 files: with --long, and not at the source, where they are read back slowly
LEFT_OUT = {
    "tmpfs": ("AcrossTheMounts.",),  # these cases need two mounts
    "source": ("AcrossTheMounts.", *LARGE),
    "across": (),
    "across_64KiB": ("LargeFile.", "SmallFiles."),
}
NOT_BUILT = "mount_cases_is_built"
RUN_SECONDS = 900  # limit for one run of the binary, which itself limits each case
# After a hang or a crash the next round uses new mounts; after the last round the other cases fail.
ROUNDS_MAX = 4
RAN = re.compile(r"^\[ +(RUN|OK|FAILED|SKIPPED|TOO LONG) +\] ([\w./]+)", re.MULTILINE)


def all_cases():
    if not BINARY.exists():
        return [NOT_BUILT]
    cases, suite = [], ""
    listed = subprocess.run(
        [BINARY, "--gtest_list_tests"], capture_output=True, text=True, timeout=20, check=True
    ).stdout
    for line in listed.splitlines():
        word = line.split("#")[0].rstrip()
        if line.startswith("  "):
            cases.append(suite + word.strip())
        elif word.endswith("."):
            suite = word
    return cases


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        long = metafunc.config.getoption("--long")
        wanted = [
            (side, case)
            for side in SIDES
            for case in all_cases()
            if not case.startswith(LEFT_OUT[side])
            and (long or not case.startswith(LARGE))
        ]
        metafunc.parametrize(
            "side,case", wanted, ids=[f"{side}-{case}" for side, case in wanted], scope="module"
        )


class Ground:
    """The directories of one side: a tmpfs, or a source and a target that are connected over
    loopback.
    """

    def __init__(self, side, directory):
        self.side, self.directory, self.mounts = side, Path(directory), None

    def __enter__(self):
        if self.side == "tmpfs":
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=5g,mode=0755", "mount-cases", self.directory],
                check=True,
                timeout=10,
            )
            self.arguments = ["--write-dir", self.directory, "--expect", "tmpfs"]
            return self
        options = ["--chunk-size", "64KiB"] if self.side == "across_64KiB" else []
        self.mounts = Mounts(
            HOST,
            HOST,
            self.directory,
            source_options=options,
            target_options=["--memory-limit", "6GiB"],
        )
        self.arguments = [
            "--write-dir",
            self.mounts.out,
            "--ppmr",
            find_ppmr(),
            "--expect",
            "source",
        ]
        if self.side != "source":
            self.arguments[-1:] = ["target", "--read-dir", self.mounts.in_]
        return self

    def dead_daemons(self):
        """Returns a line for each daemon that has ended."""
        if not self.mounts:
            return ""
        return "".join(
            f"\nppmr {daemon.role} ended with {daemon.process.returncode}; log: {daemon.output()}"
            for daemon in (self.mounts.target, self.mounts.source)
            if not daemon.running()
        )

    def __exit__(self, *_):
        if self.mounts:
            self.mounts.close()
        elif (str(self.directory), "tmpfs") in HOST.mounts("tmpfs"):
            subprocess.run(["umount", "-l", self.directory], check=False, timeout=patience(10))


def run_once(ground, cases):
    """Runs the binary; returns ({case: (word, output)}, problem). A case without an end has word
    DIED."""
    with tempfile.TemporaryFile() as output:
        binary = subprocess.Popen(
            [
                BINARY,
                *map(str, ground.arguments),
                "--gtest_color=no",
                "--gtest_filter=" + ":".join(cases),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            ended = f"the binary ended with {binary.wait(timeout=RUN_SECONDS)}"
        except subprocess.TimeoutExpired:
            ended = f"the binary did not end within {RUN_SECONDS} s"
        problem = ended + ground.dead_daemons()
        try:
            os.killpg(binary.pid, 9)  # including children of a case
        except ProcessLookupError:
            pass
        output.seek(0)
        text = output.read().decode(errors="replace")
    # A process that blocks inside a mount dies only after its daemon.
    ground.__exit__()
    binary.wait(timeout=patience(30))

    results, began, marks = (
        {},
        0,
        list(
            RAN.finditer(
                text.split("[==========]", 2)[-2] if text.count("[==========]") > 1 else text
            )
        ),
    )
    for mark in marks:
        word, case = mark.groups()
        if word == "RUN":
            began = mark.start()
            results[case] = ("DIED", text[began:])
        else:
            results[case] = (word, mark.string[began : mark.end()])
    return results, problem


@pytest.fixture(scope="module")
def outcome(request, tmp_path_factory):
    """A function (side, case) -> (word, output). Each side runs when its first case is
    requested."""
    chosen = {}
    for item in request.session.items:
        if item.module is request.module and hasattr(item, "callspec"):
            chosen.setdefault(item.callspec.params["side"], []).append(item.callspec.params["case"])
    known = {}

    def run_side(side):
        results = {}
        for round_number in range(ROUNDS_MAX):
            left = [case for case in chosen[side] if case not in results]
            if not left:
                break
            with Ground(side, tmp_path_factory.mktemp(f"{side}-{round_number}")) as ground:
                found, problem = run_once(ground, left)
            for case, (word, output) in found.items():
                results[case] = (
                    word,
                    output if word in ("OK", "SKIPPED") else f"{output}\n{problem}",
                )
            if not found:
                return {case: ("DIED", problem) for case in left} | results
        return results

    def lookup(side, case):
        if side not in known:
            try:
                known[side] = run_side(side)
            # There are no mounts, so every case of this side fails with this error.
            except Exception as error:
                known[side] = {
                    case: ("DIED", f"{type(error).__name__}: {error}") for case in chosen[side]
                }
        return known[side].get(case, ("DIED", "not run: too many cases before it hung or crashed"))

    return lookup


@pytest.mark.xdist_group("mount cases")  # one run of the binary serves all cases of a side
@pytest.mark.first
def test_posix_case_passes_on_tmpfs_and_mounts(side, case, outcome):
    assert case != NOT_BUILT, f"{BINARY} is missing: run `bazel build //tests/mount_cases`"
    word, output = outcome(side, case)
    if word == "SKIPPED":
        pytest.skip(
            " ".join(
                line
                for line in output.splitlines()
                if not line.startswith("[") and "Skipped" not in line
            ).strip()
        )
    if word != "OK":
        pytest.fail(f"{case} on {side}: {word}\n{output[-6000:]}", pytrace=False)
