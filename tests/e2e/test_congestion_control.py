"""Near peers use cubic whatever the system has, as a timer for every burst of BBR costs more than it gains there; far ones use what the system has."""
from contextlib import contextmanager

from lab.node import wait_until
from lab.ppmr import Mounts

OF_THE_SYSTEM = "reno"  # every kernel has it, and none as its own
SETTING = "net.ipv4.tcp_congestion_control"
CONNECTIONS = 3  # one for control, two streams


@contextmanager
def system_has(name, nodes):
    before = nodes[0].run(["sysctl", "-n", SETTING]).stdout.strip()
    for node in nodes:
        node.run(["sysctl", "-qw", f"{SETTING}={name}"])
    try:
        yield
    finally:
        for node in nodes:
            node.run(["sysctl", "-qw", f"{SETTING}={before}"])


def expect(name, source_at, target_at, directory):
    with Mounts(source_at, target_at, directory, ["--transport", "tcp"]) as mounts:

        def used():
            shown = source_at.run(
                ["ss", "-tniH", "state", "established", f"dport = :{mounts.port}"]
            ).stdout
            return [line.split()[0] for line in shown.splitlines() if line.startswith("\t")]

        wait_until(
            lambda: used() == [name] * CONNECTIONS, 10, f"{CONNECTIONS} connections with {name}"
        )


def test_a_near_peer(nodes, lab, ppmr):
    with system_has(OF_THE_SYSTEM, [nodes.source, nodes.target]):
        expect("cubic", nodes.source, nodes.target, lab.directory)


def test_a_far_peer(machines, tmp_path, ppmr):
    machines.a.run(["tc", "qdisc", "replace", "dev", "link0", "root", "netem", "delay", "5ms"])
    try:
        with system_has(OF_THE_SYSTEM, machines.nodes):
            expect(OF_THE_SYSTEM, machines.a, machines.b, machines.a.private / tmp_path.name)
    finally:
        machines.a.run(["tc", "qdisc", "delete", "dev", "link0", "root"])
