"""`ppmr doctor` on healthy and on broken nodes. It must name each fault, and leave nothing
behind."""
import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path

import pytest

from lab.node import free_port
from lab.ppmr import make_key
from lab.programs import REPOSITORY

CAP_SYS_RESOURCE = 24


class Report:
    def __init__(self, done):
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.code, self.checks, self.summary = done.returncode, lines[:-1], lines[-1]
        assert self.summary["check"] == "summary", done.stdout + done.stderr

    def of(self, check):
        found = [line for line in self.checks if line["check"] == check]
        assert found, f"no check {check} in {self.checks}"
        return found[0]

    def target_problems(self):
        return [
            line["check"]
            for line in self.checks
            if line["level"] == "problem" and line["check"].startswith("target-")
        ]


@pytest.fixture
def doctor(ppmr, tmp_path):
    """Runs `ppmr doctor --json` without the configuration of this machine."""

    def run(*options, at=None, timeout=60):
        words = [ppmr, "doctor", "--directory", tmp_path / "no-configuration", "--json", *options]
        if at:
            return Report(at.run(words, timeout=timeout, check=False))
        return Report(subprocess.run(words, capture_output=True, text=True, timeout=timeout))

    return run


def problems_of_this_machine():
    """A container without CAP_SYS_RESOURCE cannot move programs of ordinary users."""
    status = Path("/proc/self/status").read_text()
    capabilities = int(re.search(r"^CapEff:\s+(\w+)", status, re.M)[1], 16)
    return set() if capabilities >> CAP_SYS_RESOURCE & 1 else {"trial-user"}


def key_of(mounts):
    options = mounts._source_options
    return options[options.index("--key-file") + 1]


@pytest.fixture
def accepting(make_migrations):
    return make_migrations()


def test_healthy_pair_has_no_problem_and_doctor_leaves_no_trace(doctor, accepting):
    before = accepting.target.status()
    report = doctor(accepting.out, at=accepting.source_at)
    problems = {line["check"] for line in report.checks if line["level"] == "problem"}
    assert problems == problems_of_this_machine(), report.checks
    assert report.of("trial-root")["level"] == "ok", report.of("trial-root")
    assert (report.code == 0) == report.summary["ok"] == (not problems)
    for check in ("criu", "mount", "target-credentials", "target-restarts", "target-criu"):
        assert report.of(check)["level"] == "ok", report.of(check)
    after = accepting.target.status()
    assert [peer["name"] for peer in after["peers"]] == [peer["name"] for peer in before["peers"]]
    assert after["checkpoints"] == before["checkpoints"] == []
    assert accepting.records("target") == []


def test_trial_does_not_fail_because_of_descriptors_that_doctor_inherits(ppmr, nodes, tmp_path):
    """A pipe of a shell, and a file of another mount namespace: both would stop a dump."""
    pipe = os.pipe()
    with open("/dev/null") as foreign:
        words = [ppmr, "doctor", "--directory", tmp_path / "none", "--json"]
        inherited = (foreign.fileno(), *pipe)
        report = Report(nodes.source.run(words, check=False, pass_fds=inherited))
    for end in pipe:
        os.close(end)
    assert report.of("trial-root")["level"] == "ok", report.of("trial-root")


def test_directory_of_records_that_others_may_write_to_is_a_problem(ppmr, nodes, tmp_path):
    at, records = nodes.source, nodes.source.scratch("records")
    at.run(["chmod", "777", records])
    (tmp_path / "target.conf").write_text(f"mountpoint = /mnt\nstate-dir = {records}\n")
    words = [ppmr, "doctor", "--directory", tmp_path, "--json"]
    found = Report(at.run(words, check=False)).of("disk")
    assert found["level"] == "problem" and "other users may write to it" in found["message"]
    at.run(["chmod", "700", records])
    assert Report(at.run(words, check=False)).of("disk")["level"] == "ok"


def test_json_page_documents_every_check_and_field(doctor, accepting):
    report = doctor(accepting.out, at=accepting.source_at)
    documented = set(re.findall(r"`([\w-]+)`", (REPOSITORY / "docs/json.md").read_text()))
    lines = [*report.checks, report.summary]
    assert {key for line in lines for key in line} - documented == set()
    assert {line["check"] for line in lines} - documented == set()
    counted = {"oks": "ok", "warnings": "warning", "problems": "problem"}
    for field, level in counted.items():
        assert report.summary[field] == sum(line["level"] == level for line in report.checks)


def test_target_without_restarts_is_a_problem(doctor, mounts):
    report = doctor(mounts.out, at=mounts.source_at)
    assert report.target_problems() == ["target-restarts"]
    assert "--allow-restart" in report.of("target-restarts")["message"]
    assert report.code == 1


def test_wrong_key_is_a_problem_of_the_credentials(doctor, accepting, tmp_path):
    other = make_key(tmp_path / "other-key", accepting.source_at)
    report = doctor("--target", accepting.address, *other, at=accepting.source_at)
    assert report.target_problems() == ["target-credentials"]
    assert report.of("target-port")["level"] == "ok"


def test_key_that_others_can_read_is_a_problem(doctor, ppmr, tmp_path):
    key = tmp_path / "key"
    subprocess.run([ppmr, "keygen", key], check=True, capture_output=True)
    assert doctor("--key-file", key).of("key")["level"] == "ok"
    key.chmod(0o644)
    report = doctor("--key-file", key)
    assert report.of("key")["level"] == "problem" and "0644" in report.of("key")["message"]
    assert report.code == 1


def test_closed_and_silent_ports_have_different_remedies(doctor, ppmr, tmp_path):
    key = tmp_path / "key"
    subprocess.run([ppmr, "keygen", key], check=True, capture_output=True)
    closed = doctor("--target", f"127.0.0.1:{free_port()}", "--key-file", key)
    assert closed.target_problems() == ["target-port"]
    assert "nothing listens" in closed.of("target-port")["message"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        report = doctor("--target", f"127.0.0.1:{silent.getsockname()[1]}", "--key-file", key)
        assert time.monotonic() - began < 30
    assert report.target_problems() == ["target-handshake"]
    assert "sends nothing" in report.of("target-handshake")["message"]


def test_doctor_names_the_firewall_if_packets_are_dropped(doctor, accepting):
    silence = ["iptables", "-I", "INPUT", "-p", "tcp", "--dport", str(accepting.port), "-j", "DROP"]
    accepting.target_at.run(silence)
    key = ["--key-file", key_of(accepting)]
    report = doctor("--target", accepting.address, *key, at=accepting.source_at)
    assert report.target_problems() == ["target-port"]
    assert "firewall" in report.of("target-port")["remedy"]


def test_stale_mount_is_a_problem(doctor, mounts):
    mounts.source.signal(9)
    mounts.source.process.wait()
    report = doctor(mounts.out, at=mounts.source_at)
    assert "is stale" in report.of("mount")["message"]
    assert "fusermount3 -u" in report.of("mount")["remedy"]


def test_text_repeats_problems_above_the_last_line(ppmr, tmp_path):
    done = subprocess.run(
        [ppmr, "doctor", "--directory", tmp_path, "--key-file", tmp_path / "none"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    *lines, last = done.stdout.splitlines()
    assert re.fullmatch(r"\d+ checks: \d+ ok, \d+ warnings?, [1-9]\d* problems?", last)
    first = next(line for line in lines if line.startswith("problem: the key file"))
    assert lines.count(first) == 2 and lines[-1].startswith("problem: ")
    assert done.returncode == 1


def test_path_that_is_no_mount_point_is_refused(ppmr, tmp_path):
    done = subprocess.run([ppmr, "doctor", tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 5 and "not in a ppmr mount" in done.stderr
