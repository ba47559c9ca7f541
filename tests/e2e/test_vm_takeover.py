"""A takeover after the power of the source's machine was cut, between two machines (tests/vm)."""
import json
import random
import signal
import time
from types import SimpleNamespace

import pytest

from lab.checker import Checker
from lab.migrations import Migrations
from lab.protection import Protection, say_times

LOSSES, LOSSES_LONG = 1, 20


@pytest.fixture
def make_migrations(machines):
    made = []

    def make(name):
        made.append(
            Migrations(
                machines.a,
                machines.b,
                "/tmp/takeover",
                ["--pool-size", "16MiB", "--transport", "tcp"],
                ["--memory-limit", "512MiB", "--pool-size", "192MiB"],
                name=name,
            )
        )
        return made[-1]

    yield make
    for migrations in made:
        migrations.close()


def test_process_goes_on_when_its_machine_has_lost_its_power(machines, make_migrations, long):
    a, b = machines.nodes
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    taken = []
    for number in range(LOSSES_LONG if long else LOSSES):
        machines.repair()
        migrations = make_migrations(f"takeover-{number}")
        migrations.await_ready()
        nodes = SimpleNamespace(source=a, target=b)
        ledger = Checker(machines, nodes, mib=16, name=f"ledger-{number}")
        protection = Protection(migrations, ledger.pid, every="2", name=f"ledger-{number}")
        protection.wait_for_epochs(2, timeout=120)
        time.sleep(chance.uniform(0, 3))  # the moment of the loss
        a.kill()
        done = protection.take_over("--truncate", timeout=180)
        taken.append(json.loads(done.stdout))
        ledger.wait_for_lines(20, b)
        ledger.check_continuous()
        assert {host for _, host, _ in ledger.lines()} == {a.name, b.name}
        assert b.alive(ledger.pid) and not a.running()
        b.signal(ledger.pid, signal.SIGKILL)
        b.await_end(ledger.pid)
        migrations.close()
    say_times(taken)
