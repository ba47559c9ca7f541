"""Epochs at several partners: a partner that is slow, dead or back, and takeovers at either."""
import json
import signal

import pytest

from lab.checker import Checker
from lab.migrations import Migrations
from lab.node import wait_until
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


def test_dead_partner_holds_nobody_and_catches_up(nodes, ledger, two):
    """Its daemon dies in the middle of an epoch; epochs go on; it is back, and gets what it has
    missed. Then it is taken over, and the other one only by a person."""
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
    assert alone.returncode == 2 and "only that partner takes it over alone" in alone.stderr
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
    """A partner that takes nothing holds the epochs that count, not those of the other."""
    protection = two.protect("--policy", "all")
    protection.wait_for_epochs(1)
    two.second.target.signal(signal.SIGSTOP)
    try:
        stopped_at = two.epoch(two.first)
        two.wait_for_kept(two.first, 4)
        # One that the stopped partner had already may still have been reported.
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


def test_partner_that_is_away_at_the_beginning_comes_later(nodes, ledger, two):
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
