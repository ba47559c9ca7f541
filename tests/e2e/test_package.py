"""The Debian packages: built, checked by lintian, installed, upgraded and removed in a fresh root
file system."""
import json
import os
import re
import subprocess
import time

import pytest

from lab import readme
from lab.debian_packages import copy_of, run
from lab.node import wait_until
from lab.pace import patience
from lab.programs import REPOSITORY

pytestmark = [pytest.mark.xdist_group("package"), pytest.mark.first]


def in_root(directory, *command, check=True):
    done = subprocess.run(["chroot", directory, *command], capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def test_packages_match_the_documentation(packages):
    assert set(packages) == {"ppmr", "ppmr-dbgsym", "ppmr-slurm"}


def test_lintian_reports_no_problem(packages):
    run("lintian", "--fail-on=error,warning", *packages.values())


@pytest.mark.long
def test_two_builds_give_the_same_bytes(packages):
    before = {name: path.read_bytes() for name, path in packages.items()}
    run(REPOSITORY / "package")
    assert before == {name: path.read_bytes() for name, path in packages.items()}


def test_units_pass_systemd_analyze(packages, tmp_path):
    run("dpkg-deb", "--extract", packages["ppmr"], tmp_path)
    units = sorted((tmp_path / "lib/systemd/system").iterdir())
    assert [unit.name for unit in units] == [
        "ppmr-protect@.service",
        "ppmr-source@.service",
        "ppmr-target.service",
    ]
    for unit in units:
        text = unit.read_text().replace("/usr/bin/ppmr", str(tmp_path / "usr/bin/ppmr"))
        (tmp_path / unit.name.replace("@", "@x")).write_text(text)
        run("systemd-analyze", "verify", "--man=no", tmp_path / unit.name.replace("@", "@x"))


def test_manual_pages_have_no_warning(packages, tmp_path):
    run("dpkg-deb", "--extract", packages["ppmr"], tmp_path)
    pages = sorted((tmp_path / "usr/share/man/man8").iterdir())
    assert len(pages) == len([*(REPOSITORY / "docs/man").glob("*.8.md")])
    for page in pages:
        done = subprocess.run(
            ["man", "-l", "--warnings", page], capture_output=True, text=True, check=True
        )
        assert done.stderr == "" and "NAME" in done.stdout


def test_links_of_packaged_documents_lead_to_packaged_files(packages, tmp_path):
    run("dpkg-deb", "--extract", packages["ppmr"], tmp_path)
    documents = sorted((tmp_path / "usr/share/doc/ppmr").rglob("*.md"))
    assert len(documents) > 30
    missing = [
        (document.name, link)
        for document in documents
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text())
        if "://" not in link and not (document.parent / link).exists()
    ]
    assert missing == []
    text = (tmp_path / "usr/share/doc/ppmr/README.md").read_text()
    assert len(re.findall(r"\]\(docs/", text)) > 10


@pytest.fixture
def own_root(fresh_debian, tmp_path):
    with copy_of(fresh_debian, tmp_path / "own") as root:
        run("mount", "-t", "proc", "proc", root / "proc")
        yield root
        run("umount", root / "proc")


def test_package_is_installed_upgraded_and_removed_completely(packages, own_root):
    root = own_root
    package = f"/root/{packages['ppmr'].name}"
    in_root(root, "apt-get", "install", "--yes", package)
    before = set(os.listdir(root / "etc")) - {"ppmr"}
    for tool in ("gcc", "g++", "clang", "make", "cmake", "bazel"):
        assert (
            in_root(root, "which", tool, check=False).returncode != 0
        ), "only what it needs to run"
    assert in_root(root, "ppmr", "--version").stdout.startswith("ppmr ")
    assert "not found" not in in_root(root, "ldd", "/usr/bin/ppmr").stdout
    assert "/usr/lib/ppmr/libppmr-verbs.so" in in_root(root, "dpkg", "-L", "ppmr").stdout.split()
    # If the library could not be loaded, only a message of the loader would show it.
    started = in_root(root, "ppmr", "rdma", "run", "--directory", "/root/peers", "--", "true")
    assert started.stderr == ""
    assert "ppmr:" in (root / "etc/passwd").read_text()
    assert (root / "etc/ppmr/source.d").is_dir()
    missing = in_root(root, "ppmr", "config", "check", check=False)
    assert missing.returncode == 2 and "ppmr keygen" in missing.stderr
    in_root(root, "ppmr", "keygen", "/etc/ppmr/key")
    in_root(root, "ppmr", "config", "check")

    # An upgrade keeps configuration and records. A downgrade is refused.
    (root / "var/lib/ppmr").mkdir()
    (root / "var/lib/ppmr/record").write_text("kept")
    in_root(root, "dpkg", "--install", package)
    assert (root / "var/lib/ppmr/record").read_text() == "kept"
    run(
        "sed",
        "-i",
        r"/^Package: ppmr$/,/^$/ s/^Version: .*/Version: 99/",
        root / "var/lib/dpkg/status",
    )
    refused = in_root(root, "dpkg", "--install", package, check=False)
    assert refused.returncode != 0 and "this package is older" in refused.stderr
    run(
        "sed",
        "-i",
        r"/^Package: ppmr$/,/^$/ s/^Version: .*/Version: 0/",
        root / "var/lib/dpkg/status",
    )
    in_root(root, "dpkg", "--install", package)

    in_root(root, "dpkg", "--remove", "ppmr")
    assert (root / "etc/ppmr/key").exists() and not (root / "usr/bin/ppmr").exists()
    in_root(root, "dpkg", "--purge", "ppmr")
    assert not (root / "etc/ppmr").exists() and not (root / "var/lib/ppmr").exists()
    assert set(os.listdir(root / "etc")) - before <= {"systemd", "tmpfiles.d"}


# The program replaces each number atomically, so a reader never sees an incomplete number.
PROGRAM = """
n=0
while :; do
  n=$((n + 1))
  read host </proc/sys/kernel/hostname
  echo $n $host >/var/tmp/next
  mv /var/tmp/next /var/tmp/count
  sleep 0.05
done
"""


def count(machine):
    """The number and the host name that the program has written last."""
    words = machine.run("cat /var/tmp/count", check=False).stdout.split()
    return (int(words[0]), words[1]) if len(words) == 2 else (0, "")


def check_audit_trail_in_the_journal(source, target):
    """The journal of each node has a line about the connection and one about the migration."""
    trails = {}
    for machine in (source, target):
        lines = machine.run("journalctl --output=cat --facility=authpriv").stdout.splitlines()
        audited = [json.loads(line[7:]) for line in lines if line.startswith("audit: ")]
        trails[machine] = [(line["event"], line["outcome"]) for line in audited]
    for machine, events in trails.items():
        assert ("connection", "accepted") in events, (machine.name, events)
        assert "migration" in {event for event, _ in events}, (machine.name, events)


def test_process_moves_between_two_empty_machines_by_the_commands_of_the_readme(
    packages, two_machines
):
    source, target = two_machines
    # Starts the program, before ppmr is installed, in its own session and with pids that are free
    # on the other machine.
    source.run("echo 5000 >/proc/sys/kernel/ns_last_pid")
    program = f"exec </dev/null >/dev/null 2>&1; echo $$ >/var/tmp/pid; {PROGRAM}"
    source.run(["setsid", "--fork", "sh", "-c", program])
    wait_until(lambda: count(source)[0] > 0, 20, "the program to count")
    pid = source.run("cat /var/tmp/pid").stdout.strip()

    begun = time.monotonic()
    commands = readme.first_move()
    assert len(commands) <= 5
    for where, command in commands:
        if command.startswith("apt install"):
            assert packages["ppmr"].name in command, "README.md names another version"
            command = "apt install --yes /root/ppmr_*.deb"
        if command.startswith("systemctl enable"):
            # The program runs as root.
            for machine in (source, target):
                machine.run("sed -i 's/^allow-restart/allow-root-restart/' /etc/ppmr/target.conf")
        if command.startswith("ppmr migrate"):
            before = count(source)[0]
            where = "one"
        command, *copies = command.split(" && ")  # the machines have no ssh
        command = command.replace("OTHER", "10.77.0.2")
        for machine in (source, target) if where == "both" else (source,):
            machine.run(f"PID={pid}; {command}")
        if copies:
            assert copies == ["scp -p /etc/ppmr/key OTHER:/etc/ppmr/"]
            key = source.run("cat /etc/ppmr/key").stdout
            target.run(f"umask 077; printf %s '{key}' >/etc/ppmr/key")
    took = time.monotonic() - begun
    wait_until(lambda: count(target)[1] == "two", 20, "the program to count at the target")
    assert count(target)[0] >= before
    assert took < patience(180)
    assert source.run(f"kill -0 {pid}", check=False).returncode != 0
    check_audit_trail_in_the_journal(source, target)
    # The moved program keeps running when the daemon that received it restarts.
    number = count(target)[0]
    target.run("systemctl restart ppmr-target")
    wait_until(lambda: count(target)[0] > number + 5, 20, "the program to run on")
    assert target.run("systemctl is-active ppmr-target").stdout.strip() == "active"
    # The program moves back without any further set-up.
    target.run(f"ppmr migrate --pid {pid} --to 10.77.0.1")
    wait_until(lambda: count(source)[1] == "one", 20, "the program to count at its first node")
    assert count(source)[0] > number
    # Protected, it goes on when its node is lost. A restart of the partner's daemon loses nothing.
    protect = f"ppmr protect --pid {pid} --to 10.77.0.2 --every 2 --name counter --quiet"
    source.run(["setsid", "--fork", "sh", "-c", f"exec {protect} </dev/null >/dev/null 2>&1"])
    listed = "ppmr takeover --json | grep -q '\"epoch\":[2-9]'"
    wait_until(lambda: target.run(listed, check=False).returncode == 0, 60, "two epochs")
    source.run(f"pkill -KILL ppmr; kill -KILL {pid}")
    target.run("systemctl restart ppmr-target")
    number = count(target)[0]
    target.run("ppmr takeover counter --fence true")
    wait_until(lambda: count(target)[0] > number + 5, 20, "the program to run on at the partner")


def test_service_without_a_key_fails_once_and_says_what_is_missing(two_machines):
    """A restart cannot mend it, so systemd tries none."""
    _, target = two_machines
    target.run("apt install --yes /root/ppmr_*.deb")
    started = target.run("systemctl start ppmr-target", check=False)
    assert started.returncode != 0
    said = target.run("journalctl --output=cat --unit=ppmr-target").stdout
    assert "/etc/ppmr/key" in said and "ppmr keygen" in said
    shown = target.run("systemctl show --property=NRestarts,ActiveState ppmr-target").stdout
    assert "NRestarts=0" in shown and "ActiveState=failed" in shown
