"""A CRIU that is killed while it holds connections leaves them in repair mode and locked by filter
rules."""
import json
import os
import signal

import pytest

from lab.moving_address import MovingAddress
from lab.node import wait_until
from lab.ppmr import find_ppmr
from lab.workers import pause_at

ABORTED = 11
PORT = 5555


class Conversation:
    """A process on the source answers a peer on a third node, over TCP."""

    def __init__(self, lab, nodes, repository):
        self._source, self._log = nodes.source, lab.home / "conversation"
        program = ["/usr/bin/python3", str(repository / "tests/workloads/conversation_over_tcp.py")]
        self.moving = moving = MovingAddress(lab, nodes.source, nodes.target)
        words = [*program, "answer", moving.address, str(PORT)]
        self.pid = nodes.source.spawn(words, log=self._log)
        nodes.source.await_listener(PORT)
        self.peer = moving.third.popen([*program, "ask", moving.address, str(PORT)])
        self.goes_on()

    def said(self):
        lines = self._log.read_text().splitlines()
        assert "closed" not in lines, "the connection was closed"
        return int(lines[-1].split()[0]) if lines else 0

    def goes_on(self, seconds=20):
        wanted = self.said() + 50
        wait_until(lambda: self.said() >= wanted, seconds, "the conversation to go on")

    def close(self):
        self._source.run(["kill", "-9", self.pid], check=False)
        self.peer.kill()
        self.peer.wait()


@pytest.fixture
def conversation(lab, nodes, pytestconfig):
    conversation = Conversation(lab, nodes, pytestconfig.rootpath)
    yield conversation
    conversation.close()


def start(migrations, conversation, lab, method="iptables"):
    conversation.moving.share_address()
    running = migrations.start_migrate(
        conversation.pid,
        criu_options=["--tcp-established", "--network-lock", method],
        environment=pause_at(lab, "source:frozen"),
    )
    migrations.wait_until_paused("source", "frozen", running)
    return running


def filter_rules(node):
    saved = node.run(["iptables-save", "-t", "filter"]).stdout
    return [line for line in saved.splitlines() if line.startswith("-A")]


@pytest.mark.parametrize("method", ["iptables", "nftables"])
def test_connection_goes_on_after_criu_was_killed(lab, nodes, migrations, conversation, method):
    running = start(migrations, conversation, lab, method)
    nodes.source.run(["pkill", "-9", "-f", "criu: dump"])
    migrations.go_on("source", "frozen")
    assert running.wait().code == ABORTED
    conversation.goes_on()
    assert filter_rules(nodes.source) == []


def test_daemon_gives_connection_back_after_all_programs_of_the_move_were_killed(
    lab, nodes, make_migrations, conversation
):
    migrations = make_migrations(settles=True)
    running = start(migrations, conversation, lab)
    os.kill(running.host_pid, signal.SIGKILL)
    nodes.source.run(["pkill", "-9", "-f", "migration-relay|criu: dump"])
    running.wait()
    conversation.goes_on(seconds=50)  # the daemon looks every 20 s
    assert filter_rules(nodes.source) == []


def doctor(node):
    done = node.run([find_ppmr(), "doctor", "--json"], check=False, timeout=90)
    lines = map(json.loads, done.stdout.splitlines())
    return [line["message"] for line in lines if line.get("check") == "filter-rules"]


def criu_tables(node):
    # The doctor reads the tables of nftables, so the test needs no program `nft`.
    return doctor(node) + filter_rules(node)


@pytest.mark.parametrize("method", ["iptables", "nftables"])
def test_filter_rules_of_a_moved_connection_go_with_its_address(
    lab, nodes, make_migrations, conversation, method
):
    """While the source has the address, its kernel must not answer the peer."""
    migrations = make_migrations(settles=True)
    conversation.moving.leave()
    migrations.migrate(
        conversation.pid, criu_options=["--tcp-established", "--network-lock", method]
    ).ok()
    conversation.moving.arrive()
    conversation.goes_on()
    [message] = doctor(nodes.source)
    assert f"{conversation.moving.address}:{PORT}" in message
    if method == "iptables":
        assert len(filter_rules(nodes.source)) == 2
    nodes.source.run(["ip", "address", "del", f"{conversation.moving.address}/32", "dev", "lo"])
    wait_until(  # the daemon looks every 20 s
        lambda: not criu_tables(nodes.source), 45, "the filter rules to go", interval=1
    )
    conversation.goes_on()
    nodes.target.signal(conversation.pid, signal.SIGKILL)
