"""Servers of Debian move with the connection of their client, and are what they were: each thing
that the kernel shows of their processes is the same before and after (lab/fingerprint.py)."""
import json
import re
import signal
from pathlib import Path

import pytest

from lab.fingerprint import differs, fingerprint
from lab.moving_address import MovingAddress
from lab.node import wait_until
from lab.services import SERVICES, Exim

TALKER = Path(__file__).resolve().parents[1] / "workloads/talker.py"
OPTIONS = ["--tcp-established", "--network-lock", "skip", "--ghost-limit", "64M", "--file-locks"]
PORT, CAP_SYS_RESOURCE = 7080, 24


class Client:
    def __init__(self, node, address, steps, directory):
        self.lines = directory / "answers"
        words = json.dumps([[part.hex() for part in step] for step in steps])
        command = ["/usr/bin/python3", TALKER, address, PORT, self.lines, words]
        self.pid = node.spawn(command, log=directory / "client-log")

    def count(self):
        text = self.lines.read_text() if self.lines.exists() else ""
        assert "lost" not in text, text[-300:]
        return text.count("\n")

    def wait_for(self, more):
        before = self.count()
        wait_until(lambda: self.count() >= before + more, 30, f"{more} answers")


def lacks_right_for(service):
    """CRIU needs CAP_SYS_RESOURCE for processes of other users."""
    status = Path("/proc/self/status").read_text()
    has = int(re.search(r"^CapEff:\s+(\w+)", status, re.M)[1], 16) >> CAP_SYS_RESOURCE & 1
    return not has and service.user == Exim.user


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_service_moves_with_its_client(lab, nodes, migrations, service):
    if service.missing():
        pytest.skip(f"{service.missing()} is not installed: third_party/install services")
    if lacks_right_for(service):
        pytest.skip(f"NOT TESTED: processes of {service.user} (no CAP_SYS_RESOURCE here)")
    moving, directory = MovingAddress(lab, nodes.source, nodes.target), lab.home / "service"
    pid = service.start(nodes.source, moving.address, PORT, directory)
    client = Client(moving.third, moving.address, service.steps(directory), directory)
    client.wait_for(20)
    moving.third.signal(client.pid, signal.SIGSTOP)  # so that nothing changes
    before = fingerprint(nodes.source, pid)
    moving.leave()
    migrations.migrate(pid, criu_options=OPTIONS).ok()
    moving.arrive()
    after = fingerprint(nodes.target, pid)
    moving.third.signal(client.pid, signal.SIGCONT)
    client.wait_for(20)
    nodes.source.await_end(pid)
    nodes.target.signal(pid, signal.SIGKILL)
    changed = {
        name: values
        for name, values in differs(before, after).items()
        if not service.changes_itself(name, *values)
    }
    assert not changed, json.dumps(changed, indent=1)
