"""What dpkg and systemd may do while a process moves between two Debian machines: whatever happens,
one copy runs."""
import contextlib
import json
import random
import subprocess
import time

import pytest

from lab.node import LabError, wait_until

pytestmark = [pytest.mark.xdist_group("package"), pytest.mark.first]

# A program that counts, with memory that takes a second to send.
PROGRAM = r"""
my $memory = join '', map { pack 'N*', map { int rand 4294967296 } 1 .. 1024 } 1 .. 48 << 8;
for (my $n = 1; ; $n++) {
  open my $host, '<', '/proc/sys/kernel/hostname'; my $name = <$host>; close $host;
  open my $next, '>', '/var/tmp/next'; print $next "$n $name"; close $next;
  rename '/var/tmp/next', '/var/tmp/count';
  select undef, undef, undef, 0.02;
}
"""
# Settings of both units: what takes minutes by default takes seconds.
UNIT_LIMITS = "[Service]\\nWatchdogSec=2\\nTimeoutAbortSec=2\\nRestartSec=200ms\\n"


def in_network(machine, *command):
    """Runs a program of this host in the network of a machine."""
    subprocess.run(
        ["nsenter", "--target", str(machine.pid), "--net", *command],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def served(two_machines):
    """The machines with both daemons as services, joined by a link of 200 Mbit/s."""
    source, target = two_machines
    for machine in two_machines:
        machine.run("apt install --yes /root/ppmr_*.deb")
        in_network(
            machine, *"tc qdisc add dev eth0 root tbf rate 200mbit burst 1mb latency 50ms".split()
        )
        for unit in ("ppmr-target", "ppmr-source@out"):
            drop_in = f"/etc/systemd/system/{unit}.service.d"
            machine.run(f"mkdir -p {drop_in} && printf '{UNIT_LIMITS}' >{drop_in}/quick.conf")
        machine.run("systemctl daemon-reload")
    target.run("ppmr keygen /etc/ppmr/key")
    key = target.run("cat /etc/ppmr/key").stdout
    source.run(f"umask 077; printf %s '{key}' >/etc/ppmr/key")
    target.run(
        "sed -i 's/^allow-restart/allow-root-restart/' /etc/ppmr/target.conf"
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


def upgrade(machine):
    machine.run("dpkg --install /root/ppmr_*.deb")


def kill(machine, unit):
    """Kills the daemon as the kernel does when memory is short."""
    machine.run(f"systemctl kill --kill-whom=main --signal=KILL {unit}")


def hang(machine, unit):
    """The watchdog of systemd must end a daemon that hangs."""
    machine.run(f"systemctl kill --kill-whom=main --signal=STOP {unit}")


EVENTS = {
    "upgrade of both": [(upgrade, 1), (upgrade, 0)],
    "target killed": [(kill, 1, "ppmr-target")],
    "source killed": [(kill, 0, "ppmr-source@out")],
    "target hangs": [(hang, 1, "ppmr-target")],
    "source hangs": [(hang, 0, "ppmr-source@out")],
}


def await_service(machine, unit):
    wait_until(
        lambda: machine.run(f"systemctl is-active {unit}", check=False).stdout == "active\n",
        60,
        f"{unit} to be active",
    )


def move_disturbed_by(event, source, target):
    """Checks that exactly one copy of a new process runs after the event, and ends the copy."""
    source.run("echo 7000 >/proc/sys/kernel/ns_last_pid")
    source.run(
        ["setsid", "--fork", "sh", "-c", 'exec perl -e "$0" </dev/null >/dev/null 2>&1', PROGRAM]
    )
    wait_until(lambda: count(source) > 0, 60, "the program to count")
    pid = source.run("pgrep -x perl").stdout.strip()
    before = bytes_at(target)
    moving = source.start(f"ppmr migrate --pid {pid} --mount /run/ppmr/out --timeout 10")
    try:
        wait_until(lambda: bytes_at(target) - before > 4 << 20, 30, "memory to arrive")
        assert moving.poll() is None
        for act, machine, *words in EVENTS[event]:
            act((source, target)[machine], *words)
        said = moving.communicate(timeout=120)[0]
    finally:
        moving.kill()
    moved = moving.returncode == 0
    assert moved or moving.returncode == 11, said
    assert moved or "upgrade" not in event, said
    for machine, unit in ((source, "ppmr-source@out"), (target, "ppmr-target")):
        await_service(machine, unit)
        assert machine.run("ppmr migrate --recover", check=False).returncode == 0
        assert "perl" in machine.run("ppmr history").stdout
    assert [runs_on(source), runs_on(target)] == [not moved, moved], said
    for machine in (source, target):
        machine.run("pkill -KILL -x perl; rm -f /var/tmp/count", check=False)


def test_exactly_one_copy_runs_after_each_event_of_the_services(served, long):
    seed = int(time.time())
    print(f"seed {seed}")
    for event in EVENTS if long else random.Random(seed).sample(list(EVENTS), 2):
        began = time.monotonic()
        move_disturbed_by(event, *served)
        print(f"{event}: {time.monotonic() - began:.1f} s")
