"""Moves between machines whose kernel does not track written memory."""
import signal

import pytest

from lab.migrations import Migrations
from lab.programs import SteadyWorker, check_continuity, gap_between


@pytest.fixture
def migrations(machines):
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


@pytest.mark.long
def test_move_is_not_live_on_an_older_kernel_and_says_so(machines, migrations):
    release = machines.a.run(["uname", "-r"]).stdout.split(".")
    if (int(release[0]), int(release[1])) >= (6, 7):
        pytest.skip("NOT TESTED: kernels before Linux 6.7: the machines have a newer one")
    worker = SteadyWorker(machines.a, machines.home / "live", threads=2, size_mib=32)
    worker.wait_for_lines(10)
    done = migrations.migrate(worker.pid, timeout=180).ok()
    warnings = [event["sentence"] for event in done.events if event.get("event") == "warning"]
    assert any("sent while it is frozen" in text and "Linux 6.7" in text for text in warnings)
    assert not any(event.get("event") == "copied" for event in done.events)
    worker.node = machines.b
    worker.wait_for_lines(30, machines.b)
    gap_between(worker.lines(), *machines.nodes)
    check_continuity(worker.lines())
    audit = worker.audit()
    assert audit["wrong_words"] == 0 and audit["digest"] == audit["expected"]
    worker.node.signal(worker.pid, signal.SIGKILL)
    worker.node.await_end(worker.pid)
