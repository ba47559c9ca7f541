"""Congestion control: connections to a near peer use cubic, connections to a far peer use the
system's setting.

With a near peer, BBR's timers cost more than they gain.
"""
from contextlib import contextmanager

import pytest

from lab.node import wait_until
from lab.ppmr import Mounts

SYSTEMS_SETTING = "reno"  # every kernel has it, and no kernel uses it by default
SETTING = "net.ipv4.tcp_congestion_control"
CONNECTIONS = 3  # one control connection, two streams


@contextmanager
def system_setting(name, nodes):
    before = nodes[0].run(["sysctl", "-n", SETTING]).stdout.strip()
    for node in nodes:
        node.run(["sysctl", "-qw", f"{SETTING}={name}"])
    try:
        yield
    finally:
        for node in nodes:
            node.run(["sysctl", "-qw", f"{SETTING}={before}"])


def expect_connections_with(name, source_at, target_at, directory):
    with Mounts(source_at, target_at, directory, ["--transport", "tcp"]) as mounts:

        def used():
            shown = source_at.run(
                ["ss", "-tniH", "state", "established", f"dport = :{mounts.port}"]
            ).stdout
            return [line.split()[0] for line in shown.splitlines() if line.startswith("\t")]

        wait_until(
            lambda: used() == [name] * CONNECTIONS, 10, f"{CONNECTIONS} connections with {name}"
        )


def test_connection_to_near_peer_uses_cubic(nodes, lab, ppmr):
    with system_setting(SYSTEMS_SETTING, [nodes.source, nodes.target]):
        expect_connections_with("cubic", nodes.source, nodes.target, lab.directory)


@pytest.mark.long
def test_connection_to_far_peer_uses_congestion_control_of_system(machines, tmp_path, ppmr):
    machines.a.run(["tc", "qdisc", "replace", "dev", "link0", "root", "netem", "delay", "5ms"])
    try:
        with system_setting(SYSTEMS_SETTING, machines.nodes):
            expect_connections_with(
                SYSTEMS_SETTING, machines.a, machines.b, machines.a.private / tmp_path.name
            )
    finally:
        machines.a.run(["tc", "qdisc", "delete", "dev", "link0", "root"])
