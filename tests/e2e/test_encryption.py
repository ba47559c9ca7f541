"""An attacker between the nodes records everything and flips bits: a process's memory stays secret
and genuine."""
import pytest

from lab.node import wait_until
from lab.programs import SteadyWorker
from lab.tap import TappedMigrations
from lab.workers import check_all_memory, check_moved, check_stayed

MOVED, ABORTED = 0, 11
SECRET = b"correct horse battery staple 0123456789"

# Holds the secret in 16 MiB of its memory, and in few bytes, and reports every 20 ms that it is
# still there.
KEEPER = """
import sys, time
secret = bytes.fromhex(sys.argv[1])
memory, large = bytearray(secret), bytearray(secret * (16777216 // len(secret)))
with open(sys.argv[2], "ab", buffering=0) as log:
    while True:
        right = memory == secret and large.count(secret) == len(large) // len(secret)
        log.write(b"right\\n" if right else b"WRONG\\n")
        time.sleep(0.02)
"""


@pytest.fixture
def make_tapped(ppmr, lab, nodes):
    opened = []

    def make(*options):
        private = lab.directory / "private"
        opened.append(TappedMigrations(nodes.source, nodes.target, private, options, options))
        return opened[-1]

    yield make
    for migrations in opened:
        migrations.close()


def encryption_at(daemon):
    return [peer["encryption"] for peer in daemon.status()["peers"]]


class Keeper:
    def __init__(self, lab, node):
        self.log = lab.home / "keeper.log"
        # The interpreter would keep its arguments in its memory, too.
        self.pid = node.spawn(
            ["/usr/bin/python3", "-SEc", KEEPER, SECRET.hex(), self.log], log=lab.home / "errors"
        )
        self.goes_on()

    def goes_on(self):
        before = self.log.stat().st_size if self.log.exists() else 0
        wait_until(
            lambda: self.log.exists() and self.log.stat().st_size > before + 30,
            20,
            "the keeper of the secret to go on",
        )
        assert b"WRONG" not in self.log.read_bytes()


@pytest.mark.parametrize("trusted", [False, True], ids=["encrypted", "trusted-fabric"])
def test_secret_of_a_moving_process_is_nowhere_in_a_recording(lab, nodes, make_tapped, trusted):
    migrations = make_tapped(*(["--trusted-fabric"] if trusted else []))
    keeper = Keeper(lab, nodes.source)
    expected = ["none" if trusted else "aes-256-gcm"]
    assert encryption_at(migrations.source) == encryption_at(migrations.target) == expected
    migrations.migrate(keeper.pid).ok()
    assert nodes.target.alive(keeper.pid) and not nodes.source.alive(keeper.pid)
    keeper.goes_on()
    found, passed = migrations.recorded(SECRET)
    assert passed > 16 << 20, "the process did not move through the tap"
    # Without encryption the recording has the secret. This shows that the search finds it.
    assert (found > 100_000) if trusted else (found == 0), f"found {found} times in {passed} bytes"
    nodes.target.signal(keeper.pid, 9)


def test_flipped_bits_are_refused_and_pages_fetched_again(lab, nodes, make_tapped):
    migrations = make_tapped()
    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=64)
    worker.wait_for_lines(10)
    migrations.flip(1)
    migrations.migrate(worker.pid).ok()
    assert migrations.flips_left() == 0
    check_all_memory(worker, nodes)
    assert "the source encrypted" in migrations.target.output()


def test_process_stays_at_the_source_if_its_pages_are_always_changed(lab, nodes, make_tapped):
    migrations = make_tapped()
    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=64)
    worker.wait_for_lines(10)
    migrations.flip(1_000_000)
    done = migrations.migrate(worker.pid)
    assert done.code == ABORTED, done.output
    check_stayed(worker, nodes)
    assert nodes.target.run(["pgrep", "steady_worker"], check=False).stdout == ""
    migrations.flip(0)
    migrations.migrate(worker.pid).ok()
    check_moved(worker, nodes)
    worker.end()
