"""Epochs at several partners: a partner that is slow, dead or back, and takeovers at either."""
import json
import signal

import pytest

from lab.checker import Checker
from lab.migrations import Migrations
from lab.node import wait_until
from lab.ppmr import find_ppmr
from lab.protection import Protection, lose

MIB = 1 << 20
NAME = "ledger"


@pytest.fixture
def ledger(lab, nodes):
    ledger = Checker(lab, nodes, mib=16)
    yield ledger
    ledger.end()


class Two:
    """A process with two partners: `first` at the target, `second` at a third node."""

    def __init__(self, migrations, second, pid):
        self.first, self.second, self.pid = migrations, second, pid

    def protect(self, *options):
        self.protection = Protection(
            self.first, self.pid, options=options, others=[self.second], every="1"
        )
        return self.protection

    def events(self, kind, at=None):
        found = [event for event in self.protection.events() if event.get("event") == kind]
        return [event for event in found if at is None or event.get("partner") == at.address]

    def wait_for_kept(self, at, count=1, timeout=60):
        """The partner keeps `count` further epochs."""
        begun = len(self.events("kept", at))
        wait_until(
            lambda: len(self.events("kept", at)) >= begun + count
            or not self.protection.running.running(),
            timeout,
            f"{count} epochs at {at.address}; {self.protection.events()[-5:]}",
        )
        assert self.protection.running.running(), self.protection.running.wait(1).output

    def epoch(self, at):
        return self.protection.kept(at)[NAME]["epoch"]


@pytest.fixture
def two(lab, nodes, migrations, ledger):
    third = lab.node("third")
    lab.join(nodes.source, third)
    with Migrations(nodes.source, third, lab.directory / "private", name="second") as second:
        two = Two(migrations, second, ledger.pid)
        two.protection = None
        yield two
        if two.protection:
            two.protection.end()


def test_epochs_go_on_without_a_dead_partner_which_catches_up_later(nodes, ledger, two):
    """The daemon of the first partner dies in the middle of an epoch, and epochs go on at the
    second. When the daemon is back, it gets what it has missed. After the loss of the source, only
    the first partner takes over without a decision of the operator."""
    protection = two.protect("--policy", "any", "--max-rate", "64MiB")
    two.wait_for_kept(two.first)
    two.wait_for_kept(two.second)
    begun = len(two.events("kept", two.second))
    two.first.target.kill()
    two.wait_for_kept(two.second, 4)
    assert len(two.events("kept", two.second)) >= begun + 4
    protection.wait_for_epochs(1)
    wait_until(lambda: two.events("warning", two.first), 60, "a warning about the dead partner")
    [warning, *_] = two.events("warning", two.first)
    assert "does not get epoch" in warning["sentence"]
    missed = two.epoch(two.second) - two.epoch(two.first)
    assert missed >= 3
    two.first.restart_dead()
    two.wait_for_kept(two.first)
    [back] = [event for event in two.events("kept", two.first) if event["is_back"]]
    assert back["sent_bytes"] < 12 * MIB, "only what it does not have"
    ledger.check_continuous()
    lose(nodes.source)
    kept = protection.kept(two.second)[NAME]
    assert kept["first_partner"] == two.first.address
    alone = protection.takeover(
        NAME, "--fence", "true", "--dead-after", "3", at=two.second, check=False
    )
    assert alone.returncode == 2 and "takes it over without a person" in alone.stderr
    not_first = protection.take_over("--truncate", at=two.second, check=False)
    assert not_first.returncode == 2 and f"--instead-of {two.first.address}" in not_first.stderr
    taken = json.loads(protection.take_over("--truncate").stdout)
    assert taken["pid"] == ledger.pid
    ledger.wait_for_lines(20, nodes.target)
    ledger.check_continuous()


def test_second_partner_goes_on_instead_of_the_first(nodes, ledger, two):
    protection = two.protect()
    two.wait_for_kept(two.second, 2)
    lose(nodes.source)
    lose(nodes.target)
    taken = json.loads(
        protection.take_over("--instead-of", two.first.address, "--truncate", at=two.second).stdout
    )
    assert taken["pid"] == ledger.pid
    ledger.wait_for_lines(20, two.second.target_at)
    ledger.check_continuous()


def test_policy_says_when_an_epoch_counts(ledger, two):
    """With the policy `all`, an epoch does not count while one partner takes nothing. The other
    partner still gets its epochs."""
    protection = two.protect("--policy", "all")
    protection.wait_for_epochs(1)
    two.second.target.signal(signal.SIGSTOP)
    try:
        stopped_at = two.epoch(two.first)
        two.wait_for_kept(two.first, 4)
        # An epoch that the stopped partner already had may still have been reported.
        counted = protection.epochs()[-1]
        assert counted["number"] <= stopped_at + 1
        [shown] = two.first.source.status()["protected"]
        assert shown["epoch"] == counted["number"]
        ledger.check_continuous()
    finally:
        two.second.target.signal(signal.SIGCONT)
    protection.wait_for_epochs(2, timeout=90)
    [last, *_] = reversed(protection.epochs())
    assert {each["partner"] for each in last["partners"]} == {two.first.address, two.second.address}
    ledger.check_continuous()


def test_partner_that_is_away_at_the_beginning_joins_later(nodes, ledger, two):
    two.second.target.kill()
    two.protect("--policy", "any")
    two.wait_for_kept(two.first, 2)
    two.second.restart_dead()
    two.wait_for_kept(two.second)
    nodes.source.signal(ledger.pid, signal.SIGKILL)
    done = two.protection.running.wait(60)
    assert done.code == 0, done.output
    assert two.protection.kept() == {} == two.protection.kept(two.second)
    assert nodes.source.names("/run/ppmr/captured") == []


# -- copies


def lines_of(ledger, node):
    return [line for line in ledger.lines() if line[1] == node.name]


def check_unbroken(lines):
    """Checks the lines of one copy. All copies append to one file."""
    turns = [int(turn) for turn, _, _ in lines]
    assert turns == list(range(turns[0], turns[0] + len(turns)))
    assert {wrong for _, _, wrong in lines} == {"0"}


def test_one_epoch_runs_at_two_partners_and_the_source_goes_on(two, nodes, ledger):
    protection = two.protect("--keep", "50")
    for at in (two.first, two.second):
        two.wait_for_kept(at, 2)
    epochs = [
        {each["epoch"] for each in protection.kept(at)[NAME]["kept_epochs"]}
        for at in (two.first, two.second)
    ]
    number = max(epochs[0] & epochs[1])
    for at in (two.first, two.second):
        done = protection.takeover(NAME, "--copy", "--epoch", number, at=at)
        copied = json.loads(done.stdout)
        assert copied["copy"] and copied["name"] == f"{NAME}@copy" and copied["epoch"] == number
        assert copied["pid"] == ledger.pid
    third = two.second.target_at
    for node in (nodes.target, third):
        ledger.wait_for_lines(50, node)
        two.wait_for_kept(two.first, 1)  # the source is protected as before
    assert nodes.source.alive(ledger.pid)
    firsts = []
    for node in (nodes.source, nodes.target, third):
        lines = lines_of(ledger, node)
        check_unbroken(lines)
        firsts.append(int(lines[0][0]))
    assert firsts[1] == firsts[2], "both go on from the same epoch"
    again = protection.takeover(NAME, "--copy", check=False)
    assert again.returncode != 0 and f"pid {ledger.pid} of {NAME} is taken" in again.stderr
    assert nodes.target.alive(ledger.pid)
    of_copy = protection.takeover(f"{NAME}@copy", "--fence", "true", check=False)
    assert of_copy.returncode == 2 and "is a copy" in of_copy.stderr
    # The node of the original is lost. The original cannot go on at the target until its copy there
    # has ended.
    lose(nodes.source)
    blocked = protection.take_over(check=False)
    assert blocked.returncode != 0 and f"runs here as pid {ledger.pid}" in blocked.stderr
    for node in (nodes.target, third):
        node.signal(ledger.pid, signal.SIGKILL)
        node.await_end(ledger.pid)
    protection.take_over()
    assert nodes.target.alive(ledger.pid)


KILLED = """
"$@" & command=$!
while ! grep -q '"takeover":"[0-9a-f]' "$0" 2>/dev/null; do :; done
kill -9 $command
"""


def test_copy_whose_command_was_killed_is_discarded(two, nodes, ledger):
    protection = two.protect()
    two.wait_for_kept(two.first, 2)
    copy = f"{NAME}@copy"
    state = f"/run/ppmr/epochs/{copy}/state.json"
    words = [find_ppmr(), "takeover", "--state-dir", two.first.states["target"], NAME, "--copy"]
    nodes.target.run(["sh", "-c", KILLED, state, *words], timeout=30)
    wait_until(lambda: copy not in protection.kept(), 60, "the copy to be discarded", interval=1)
    assert copy not in nodes.target.names("/run/ppmr/epochs")
    assert not nodes.target.alive(ledger.pid)
    assert json.loads(protection.takeover(NAME, "--copy").stdout)["pid"] == ledger.pid


LISTENER = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listens", file=open(sys.argv[3], "w", buffering=1))
time.sleep(1000)
"""


def test_copy_that_cannot_have_its_address_is_refused_by_name(lab, nodes, migrations):
    address, port = "10.99.0.1", 4711

    def change(node, what):
        node.run(["ip", "address", what, f"{address}/32", "dev", "lo"])

    def listen(node, first_pid):
        note = lab.home / f"listens-{first_pid}"
        words = ["/usr/bin/python3", "-c", LISTENER, address, port, note]
        pid = node.spawn(words, first_pid=first_pid)
        wait_until(lambda: note.exists() and note.read_text(), 20, "the listener")
        return pid

    for node in (nodes.source, nodes.target):
        change(node, "add")
    pid = listen(nodes.source, 3000)
    protection = Protection(migrations, pid, name="server")
    protection.wait_for_epochs(1)

    def refused(why):
        done = protection.takeover("server", "--copy", check=False)
        assert done.returncode == 1 and f"{address}:{port}: {why}" in done.stderr, done.stderr
        assert not nodes.target.alive(pid)
        assert list(protection.kept()) == ["server"]

    taker = listen(nodes.target, 5000)
    refused("another program here uses")
    nodes.target.signal(taker, signal.SIGKILL)
    nodes.target.await_end(taker)
    change(nodes.target, "del")
    refused("this node does not have")
    change(nodes.target, "add")
    copied = json.loads(protection.takeover("server", "--copy").stdout)
    assert copied["pid"] == pid and nodes.target.alive(pid) and nodes.source.alive(pid)
    protection.wait_for_epochs(1)
    for node in (nodes.source, nodes.target):
        node.signal(pid, signal.SIGKILL)
