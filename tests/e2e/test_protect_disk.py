"""Epochs on the disk of the partner (`ppmr target --keep-dir`): they outlive its memory."""
import json
import random
import time

import pytest

from lab.checker import Checker
from lab.node import wait_until
from lab.ppmr import find_ppmr
from lab.protection import Protection, lose

NAME = "ledger"
KILLS, KILLS_LONG = 2, 60


class Disk:
    """The --keep-dir of a partner."""

    def __init__(self, node):
        self.node, self.directory = node, node.scratch("kept")
        self.key = self.new_key()

    def new_key(self):
        key = self.node.scratch("keys") / f"key-{random.randrange(1 << 32)}"
        self.node.run([find_ppmr(), "keygen", key])
        return key

    @property
    def options(self):
        return ["--keep-dir", self.directory, "--keep-key", self.key]

    def files(self):
        return [name for name in self.node.names(self.directory / "epochs") if name != "lock"]


@pytest.fixture
def disk(nodes):
    return Disk(nodes.target)


@pytest.fixture
def migrations(make_migrations, disk):
    return make_migrations(target_options=disk.options)


@pytest.fixture
def ledger(lab, nodes):
    ledger = Checker(lab, nodes, mib=16)
    yield ledger
    ledger.end()


def reboot(migrations):
    """Everything at the partner ends at once, and its memory is lost."""
    node = migrations.target_at
    lose(node)
    wait_until(lambda: not migrations.target.running(), 10, "the daemon to end")
    node.run(["umount", "--lazy", "/run/ppmr/epochs"])
    migrations.restart_dead()


def on_disk(protection):
    return protection.kept().get(NAME, {}).get("on_disk", {}).get("epoch", 0)


def wait_for_disk(protection, epoch=1):
    wait_until(lambda: on_disk(protection) >= epoch, 30, f"epoch {epoch} on the disk")
    return on_disk(protection)


def wait_for_return(protection):
    def returned():
        kept = protection.kept().get(NAME, {})
        return kept if kept.get("epoch", 0) > 0 else None

    return wait_until(returned, 30, "the epoch to return")


def test_epoch_outlives_both_nodes(nodes, ledger, migrations, disk):
    protection = Protection(migrations, ledger.pid)
    protection.wait_for_epochs(2)
    kept = wait_for_disk(protection)
    shown = wait_until(
        lambda: migrations.source.status()["protected"][0].get("on_disk", {}).get("epoch"),
        10,
        "the status of the source to show it",
    )
    assert shown >= 1
    lose(nodes.source)
    reboot(migrations)
    back = wait_for_return(protection)
    assert back["epoch"] == back["on_disk"]["epoch"] >= kept and back["state"] == "kept"
    listed = migrations.target_at.run(
        [find_ppmr(), "takeover", "--state-dir", migrations.states["target"]]
    )
    assert "kept on disk" in listed.stdout
    taken = json.loads(protection.take_over("--truncate").stdout)
    assert taken["epoch"] == back["epoch"]
    ledger.wait_for_lines(20, nodes.target)
    ledger.check_continuous()
    wait_until(lambda: not disk.files(), 10, "the epoch of a process that runs here to be removed")


def test_protection_goes_on_with_a_partner_that_has_restarted(nodes, ledger, migrations, disk):
    protection = Protection(migrations, ledger.pid)
    wait_for_disk(protection)
    reboot(migrations)
    wait_for_return(protection)
    protection.wait_for_epochs(2, timeout=60)
    newest = protection.epochs()[-1]["number"]
    wait_for_disk(protection, newest)
    assert ledger_runs_once(nodes, ledger)
    nodes.source.signal(ledger.pid, 9)
    assert protection.running.wait(30).code == 0
    assert not disk.files(), "it is forgotten before the end is reported"


def test_what_was_on_the_disk_outlives_kills_at_random_moments(ledger, migrations, long):
    """A kill may come while an epoch is being written. Then the disk has the epoch before it."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    protection = Protection(migrations, ledger.pid)
    wait_for_disk(protection)
    for _ in range(KILLS_LONG if long else KILLS):
        time.sleep(chance.uniform(0, 1.5))  # the moment of the loss
        reported = on_disk(protection)
        reboot(migrations)
        assert wait_for_return(protection)["epoch"] >= reported
        protection.wait_for_epochs(1, timeout=60)


def test_epoch_that_cannot_be_read_is_listed_with_the_reason(nodes, ledger, migrations, disk):
    protection = Protection(migrations, ledger.pid)
    wait_for_disk(protection)
    protection.end()
    file = disk.directory / "epochs" / f"{NAME}.kept"
    nodes.target.run(["sh", "-c", f"printf damaged | dd of={file} conv=notrunc bs=1 seek=100000"])
    reboot(migrations)
    found = wait_until(lambda: protection.kept().get(NAME), 30, "the reason")
    assert found["state"] == "unreadable" and str(file) in found["on_disk"]["error"]
    refused = protection.take_over(check=False)
    assert refused.returncode == 2 and "cannot be read" in refused.stderr
    protection.takeover(NAME, "--discard")
    assert not disk.files() and not protection.kept()


def ledger_runs_once(nodes, ledger):
    return nodes.source.alive(ledger.pid) and not nodes.target.alive(ledger.pid)
