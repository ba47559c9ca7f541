"""An upgrade of the package while a process moves between two Debian machines."""
import contextlib
import json
import subprocess

import pytest

from lab.node import LabError, wait_until

pytestmark = [pytest.mark.xdist_group("package"), pytest.mark.first]

# Counts, in memory that takes a second to send.
PROGRAM = r"""
my $memory = join '', map { pack 'N*', map { int rand 4294967296 } 1 .. 1024 } 1 .. 48 << 8;
for (my $n = 1; ; $n++) {
  open my $host, '<', '/proc/sys/kernel/hostname'; my $name = <$host>; close $host;
  open my $next, '>', '/var/tmp/next'; print $next "$n $name"; close $next;
  rename '/var/tmp/next', '/var/tmp/count';
  select undef, undef, undef, 0.02;
}
"""


def in_network(machine, *command):
    """Runs a program of this host in the network of a machine."""
    subprocess.run(
        ["nsenter", "--target", str(machine.pid), "--net", *command],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def served(two_machines):
    """The machines with both daemons as services, 200 Mbit/s apart."""
    source, target = two_machines
    for machine in two_machines:
        machine.run("dpkg --install /root/ppmr_*.deb")
        in_network(
            machine, *"tc qdisc add dev eth0 root tbf rate 200mbit burst 1mb latency 50ms".split()
        )
    target.run("ppmr keygen /etc/ppmr/key")
    key = target.run("cat /etc/ppmr/key").stdout
    source.run(f"umask 077; printf %s '{key}' >/etc/ppmr/key")
    target.run(
        "sed 's/^allow-restart/allow-root-restart/' /usr/share/ppmr/target.conf >/etc/ppmr/target.conf"
    )
    source.run(
        "sed 's/TARGET/10.77.0.2/; s/NAME/out/' /usr/share/ppmr/source.conf >/etc/ppmr/source.d/out.conf"
    )
    target.run("systemctl enable --now ppmr-target")
    source.run("systemctl enable --now ppmr-source@out")
    return source, target


def count(machine):
    words = machine.run("cat /var/tmp/count", check=False).stdout.split()
    return int(words[0]) if len(words) == 2 and words[1] == machine.name else 0


def runs_on(machine):
    before = count(machine)
    with contextlib.suppress(LabError):
        wait_until(lambda: count(machine) > before, 3, "the program to count")
        return True
    return False


def bytes_at(target):
    status = target.run("ppmr status --json", check=False).stdout
    return sum(json.loads(line).get("bytes", 0) for line in status.splitlines() if line)


def test_upgrade_of_both_nodes_in_the_middle_of_a_move_does_not_disturb_it(served):
    source, target = served
    source.run("echo 7000 >/proc/sys/kernel/ns_last_pid")
    source.run(
        ["setsid", "--fork", "sh", "-c", 'exec perl -e "$0" </dev/null >/dev/null 2>&1', PROGRAM]
    )
    wait_until(lambda: count(source) > 0, 60, "the program to count")
    pid = source.run("pgrep -x perl").stdout.strip()
    moving = source.start(f"ppmr migrate --pid {pid} --mount /run/ppmr/out --timeout 10")
    try:
        wait_until(lambda: bytes_at(target) > 4 << 20, 30, "memory to arrive")
        assert moving.poll() is None
        for machine in (target, source):
            machine.run("dpkg --install /root/ppmr_*.deb")
        said = moving.communicate(timeout=120)[0]
    finally:
        moving.kill()
    assert moving.returncode == 0, said
    assert runs_on(target) and not runs_on(source)
    for machine, unit in ((source, "ppmr-source@out"), (target, "ppmr-target")):
        assert machine.run(f"systemctl is-active {unit}").stdout == "active\n"
        assert machine.run("ppmr migrate --recover", check=False).returncode == 0
        assert "perl" in machine.run("ppmr history").stdout
