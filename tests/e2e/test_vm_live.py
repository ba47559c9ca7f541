"""Live moves with the kernel of Debian 12, which tracks writes with soft-dirty bits. The machine
that runs the other tests may have a newer kernel."""
import signal

import pytest

from lab.migrations import Migrations
from lab.programs import REPOSITORY, SteadyWorker, check_continuity, gap_between

MEMORY_TESTS = REPOSITORY / "bazel-bin/processes/memory/live_memory_test"


@pytest.fixture
def migrations(machines):
    release = machines.a.run(["uname", "-r"]).stdout.split(".")
    if (int(release[0]), int(release[1])) >= (6, 7):
        pytest.skip("NOT TESTED: soft-dirty bits: the machines have a kernel of Linux 6.7 or later")
    migrations = Migrations(
        machines.a,
        machines.b,
        "/tmp/live",
        ["--pool-size", "16MiB", "--transport", "verbs"],
        ["--memory-limit", "512MiB", "--pool-size", "192MiB"],
        name="live",
    )
    migrations.await_ready()
    yield migrations
    migrations.close()


def test_threads_that_write_all_the_time_move_live_with_soft_dirty_bits(machines, migrations):
    worker = SteadyWorker(machines.a, machines.home / "live", threads=2, size_mib=32)
    worker.wait_for_lines(10)
    # An emulated machine may read memory more slowly than these threads write it.
    done = migrations.migrate(worker.pid, options=["--max-downtime", "5s"], timeout=180).ok()
    assert not [event for event in done.events if event.get("event") == "warning"]
    assert "copied" in [event.get("event") for event in done.events]
    worker.node = machines.b
    worker.wait_for_lines(30, machines.b)
    gap_between(worker.lines(), *machines.nodes)
    check_continuity(worker.lines())
    audit = worker.audit()
    assert audit["wrong_words"] == 0 and audit["digest"] == audit["expected"]
    worker.node.signal(worker.pid, signal.SIGKILL)
    worker.node.await_end(worker.pid)


def test_rounds_lose_no_write_with_soft_dirty_bits(machines, migrations):
    # Leaves out the tests of injected calls, which moves do not use here: they take long in a
    # machine.
    which = "--gtest_filter=LiveRounds.*:DeviceWrites.*-*DisturbNoSystemCall:*LoseNoSignal"
    done = machines.a.run([MEMORY_TESTS, which], timeout=180, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "LoseNoWriteOfThreadsThatNeverStop" in done.stdout
    assert "NOT TESTED: live rounds" not in done.stdout
    assert "OK ] DeviceWrites.AreSentAgain" in done.stdout, done.stdout[-3000:]
