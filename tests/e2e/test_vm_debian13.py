"""A process moves between two emulated machines of Debian 13, with its kernel, CRIU and systemd.

ppmr is that of this build. Its package would have to be built on Debian 13: here it gets those of
its libraries that Debian 13 has in other versions only.
"""
import os
import shutil

import pytest

from lab.debian_packages import run
from lab.node import wait_until
from lab.pace import patience
from lab.ppmr import find_ppmr
from vm.image import CannotRun
from vm.virtual_lab import VirtualLab

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("machines")]

PROGRAMS = "systemd,python3,iproute2,linux-image-amd64,kmod,procps,criu,fuse3,iptables"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# The program replaces each line atomically.
COUNTER = (
    "echo 6000 >/proc/sys/kernel/ns_last_pid; setsid --fork sh -c 'echo $$ >/run/pid; n=0; "
    "while :; do n=$((n + 1)); read host </proc/sys/kernel/hostname; echo $n $host >/run/next; "
    "mv /run/next /run/count; sleep 0.1; done' </dev/null >/dev/null 2>&1"
)


@pytest.fixture(scope="module")
def debian_13(root, tmp_path_factory):
    directory = tmp_path_factory.mktemp("debian13") / "root"
    mirror = os.environ.get("PPMR_DEBIAN_MIRROR", "http://deb.debian.org/debian")
    made = f"--mode=root --variant=apt --include={PROGRAMS} trixie".split()
    run("mmdebstrap", *made, directory, mirror, timeout=patience(900))
    shutil.copy(find_ppmr(), directory / "usr/bin/ppmr")
    for line in run("ldd", find_ppmr()).splitlines():
        name, _, path = line.partition(" => ")
        copy = directory / LIBRARIES / name.strip()
        if path and not copy.exists():
            shutil.copy(path.split()[0], copy)
    return directory


@pytest.fixture
def machines_13(debian_13):
    try:
        lab = VirtualLab(root=debian_13)
    except CannotRun as why:
        pytest.skip(f"NOTHING WAS TESTED ON DEBIAN 13: {why}")
    with lab:
        yield lab


def typed(machine, command, check=True):
    done = machine.run(["sh", "-c", command], check=check, timeout=120)
    print(f"{machine.name}# {command}", done.stdout + done.stderr, sep="\n")
    return done.stdout


def count(machine):
    """The number and the host name that the program has written last."""
    words = typed(machine, "cat /run/count", check=False).split()
    return (int(words[0]), words[1]) if len(words) == 2 else (0, "")


def test_process_moves_between_machines_of_debian_13(machines_13):
    one, two = machines_13.a, machines_13.b
    for machine in (one, two):
        assert typed(machine, "cat /etc/debian_version").startswith("13.")
        assert "deb13" in typed(machine, "uname -r")
        typed(machine, f"hostname {machine.name}; mkdir -p /etc/ppmr")
    typed(one, "ppmr keygen /etc/ppmr/key")
    key = typed(one, "cat /etc/ppmr/key")
    two.run(["sh", "-c", "umask 077; cat >/etc/ppmr/key"], input=key)
    accepts = "--listen :7440 --key-file /etc/ppmr/key --allow-root-restart"
    for machine in (one, two):
        typed(machine, f"ppmr target /run/ppmr/in {accepts} --pool-size 32MiB")
    diagnoses = typed(one, f"ppmr doctor --target {two.address}:7440 --key-file /etc/ppmr/key")
    assert ", 0 problems" in diagnoses
    typed(one, COUNTER)
    wait_until(lambda: count(one)[0] > 2, 30, "the program to count")
    typed(one, f"ppmr migrate --pid $(cat /run/pid) --to {two.address}")
    number = count(one)[0]
    wait_until(lambda: count(two)[0] > number, 60, "the program to count at the target")
    assert count(two)[1] == two.name
    assert "moved" in typed(one, "ppmr history")
