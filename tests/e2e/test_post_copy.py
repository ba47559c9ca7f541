"""`ppmr migrate --post-copy`: the process runs at the target while its memory is still being
transferred.
"""
import os
import signal
import time

import pytest

from lab.criu import IS_A_SUPERVISORS, criu_that, find_criu
from lab.node import wait_until
from lab.workers import check_all_memory, check_moved, check_stayed, pause_at, start_workers

LOST, ABORTED, OPEN = 10, 11, 12
SIZE_MIB = 64
SLOW = "100mbit"
PEER_TIMEOUT = 2  # seconds


def tree_of(migrations, role):
    return migrations.records(role)[-1]["trees"][0]


def start_slow(migrations, nodes, worker, options=()):
    """Returns when the process runs at the target and most of its memory is still at the source."""
    nodes.link.limit(SLOW)
    running = migrations.start_migrate(worker.pid, options=["--post-copy", "--stop-and-copy", *options])

    def runs():
        assert running.running(), running.wait().output
        records = migrations.records("target")
        return records and records[-1]["trees"][0]["phase"] == "running"

    wait_until(runs, 20, "the process to run at the target")
    return running


def test_process_runs_before_its_memory_has_arrived(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1, size_mib=SIZE_MIB)
    running = start_slow(migrations, nodes, worker)
    assert nodes.source.alive(worker.pid), "the frozen pages are needed"
    done = running.wait().ok()
    moved = done.summary["trees"][0]
    transfer_s = SIZE_MIB * 8 * 1.048576 / 100
    assert moved["downtime_s"] < transfer_s / 4 < moved["fill_s"], moved
    findings = [event["sentence"] for event in done.events if event["event"] == "finding"]
    assert any("--post-copy" in sentence for sentence in findings), "no warning"
    filling = [event for event in done.events if event.get("phase") == "filling"]
    assert filling and all(event["migration"] == moved["migration"] for event in filling)
    assert any(0 < event["part_bytes"] < event["part_expected_bytes"] for event in filling)
    nodes.link.limit()
    check_moved(worker, nodes)
    worker.end()


@pytest.fixture
def impatient_migrations(make_migrations):
    """Migrations between daemons whose peer timeout is two seconds."""
    options = ["--peer-timeout", PEER_TIMEOUT]
    return make_migrations(source_options=options, target_options=options)


def test_process_survives_a_link_that_is_cut_for_longer_than_the_peer_timeout(
    lab, nodes, impatient_migrations
):
    migrations = impatient_migrations
    [worker] = start_workers(lab, nodes, 1, size_mib=3 * SIZE_MIB)  # more than the pool holds
    running = start_slow(migrations, nodes, worker, ["--timeout", 60])
    nodes.link.set_up(False)
    time.sleep(3 * PEER_TIMEOUT)
    assert tree_of(migrations, "target")["phase"] == "running", "the memory was there"
    nodes.link.set_up(True)
    nodes.link.limit()
    running.wait().ok()
    check_all_memory(worker, nodes)
    assert migrations.source.status()["reconnections"] > 0


def test_process_survives_a_stopped_daemon_of_the_source(lab, nodes, impatient_migrations):
    migrations = impatient_migrations
    [worker] = start_workers(lab, nodes, 1, size_mib=3 * SIZE_MIB)
    running = start_slow(migrations, nodes, worker, ["--timeout", 60])
    migrations.source.signal(signal.SIGSTOP)
    time.sleep(3 * PEER_TIMEOUT)
    migrations.source.signal(signal.SIGCONT)
    nodes.link.limit()
    running.wait().ok()
    check_moved(worker, nodes)
    worker.end()


def await_patience(migrations, seconds):
    """Waits until both daemons have this patience for a silent peer."""
    for daemon in (migrations.source, migrations.target):
        wait_until(
            lambda: daemon.status()["peers"][0]["silence_max_ms"] == seconds * 1000,
            20,
            f"the patience of the {daemon.role} to be {seconds} s",
        )


@pytest.mark.long
def test_link_may_be_cut_when_the_coordinator_is_dead(lab, nodes, impatient_migrations):
    migrations = impatient_migrations
    [worker] = start_workers(lab, nodes, 1, size_mib=3 * SIZE_MIB)
    nodes.link.limit(SLOW)
    running = migrations.start_migrate(
        worker.pid,
        options=["--post-copy", "--stop-and-copy", "--timeout", 60],
        environment=pause_at(lab, "source:committed"),
    )
    migrations.wait_until_paused("source", "committed", running)
    os.kill(running.host_pid, signal.SIGKILL)
    running.wait()
    await_patience(migrations, 60)
    worker.wait_for_lines(1, nodes.target)
    nodes.link.set_up(False)
    time.sleep(3 * PEER_TIMEOUT)
    nodes.link.set_up(True)
    nodes.link.limit()
    check_moved(worker, nodes)
    wait_until(
        lambda: tree_of(migrations, "target")["phase"] == "complete", 60, "all memory to arrive"
    )
    worker.end()


def test_process_continues_although_criu_fails_after_its_release(
    lab, nodes, make_migrations, tmp_path
):
    """CRIU fails in this way if it has lost its relay. The guard is gone, too, so only the pager
    keeps the process from reading zeros."""
    kills = 'pkill -KILL -f "^ppmr (guard-pages|migration-relay)"'
    fails = f'{IS_A_SUPERVISORS} && {{ {find_criu()} "$@"; {kills}; touch "{tmp_path}/failed"; exit 1; }}'
    migrations = make_migrations(environment={"PPMR_CRIU": str(criu_that(tmp_path, fails))})
    [worker] = start_workers(lab, nodes, 1, size_mib=SIZE_MIB)
    running = start_slow(migrations, nodes, worker)
    assert (tmp_path / "failed").exists()
    wait_until(
        lambda: nodes.target.run(["pgrep", "-f", "guard-pages"], check=False).stdout == "",
        5,
        "the page guard to end",
    )
    nodes.link.limit()
    running.wait().ok()
    check_all_memory(worker, nodes)
    assert migrations.records("target")[-1]["state"] == "finished"


def test_process_is_lost_if_the_link_stays_cut_for_longer_than_the_timeout(
    lab, nodes, impatient_migrations
):
    migrations = impatient_migrations
    [worker] = start_workers(lab, nodes, 1, size_mib=3 * SIZE_MIB)
    running = start_slow(migrations, nodes, worker, ["--timeout", 2 * PEER_TIMEOUT])
    nodes.link.set_up(False)
    wait_until(lambda: not nodes.target.alive(worker.pid), 30, "the process at the target to end")
    wait_until(
        lambda: "MEMORY LOST" in tree_of(migrations, "target")["lost"],
        20,
        "the loss to be recorded",
    )
    assert running.wait().code in (LOST, OPEN)
    wait_until(lambda: not nodes.source.alive(worker.pid), 30, "the process at the source to end")
    nodes.link.set_up(True)
    worker.end()


def test_killed_coordinator_leaves_no_process_without_its_memory(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1, size_mib=SIZE_MIB)
    running = start_slow(migrations, nodes, worker)
    os.kill(running.host_pid, signal.SIGKILL)
    running.wait()
    assert nodes.source.alive(worker.pid), "the frozen pages are needed"
    wait_until(
        lambda: tree_of(migrations, "target")["phase"] == "complete", 60, "all memory to arrive"
    )
    wait_until(lambda: not nodes.source.alive(worker.pid), 20, "the frozen process to be killed")
    wait_until(
        lambda: migrations.records("source")[-1]["state"] == "finished", 20, "the source to finish"
    )
    nodes.link.limit()
    check_moved(worker, nodes)
    worker.end()


def test_frozen_pages_survive_the_kill_of_criu_at_the_source(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1, size_mib=SIZE_MIB)
    running = start_slow(migrations, nodes, worker)
    nodes.source.signal(tree_of(migrations, "source")["criu"][0], signal.SIGKILL)
    running.wait().ok()
    nodes.link.limit()
    check_moved(worker, nodes)
    worker.end()


def test_recover_keeps_frozen_pages_until_the_memory_has_moved(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1, size_mib=SIZE_MIB)
    running = start_slow(migrations, nodes, worker)
    os.kill(running.host_pid, signal.SIGKILL)
    running.wait()
    open_still = migrations.recover("source", check=False)
    assert open_still.code == OPEN and "does not have all memory" in open_still.output
    assert nodes.source.alive(worker.pid)
    nodes.link.limit()
    wait_until(lambda: migrations.recover("source", check=False).code == 0, 60, "the move to end")
    wait_until(
        lambda: tree_of(migrations, "target")["phase"] == "complete", 60, "all memory to arrive"
    )
    check_moved(worker, nodes)
    worker.end()


def test_interrupted_link_only_pauses_the_process(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1, size_mib=SIZE_MIB)
    running = start_slow(migrations, nodes, worker)
    nodes.link.set_up(False)
    time.sleep(2)  # the length of the interruption
    nodes.link.set_up(True)
    nodes.link.limit()
    running.wait().ok()
    check_moved(worker, nodes)
    worker.end()


@pytest.mark.parametrize("role", ["source", "target"])
def test_process_is_lost_with_a_daemon_before_its_memory_has_arrived(lab, nodes, migrations, role):
    [worker] = start_workers(lab, nodes, 1, size_mib=SIZE_MIB)
    running = start_slow(migrations, nodes, worker, ["--timeout", 5])
    daemon = migrations.source if role == "source" else migrations.target
    daemon.signal(signal.SIGKILL)
    done = running.wait()
    assert done.code in (LOST, OPEN), done.output
    for node in (nodes.source, nodes.target):
        wait_until(lambda: not node.alive(worker.pid), 30, "the process to end")
    worker.end()


def page_readers(node):
    return node.find_processes(lambda words: words[1:2] == [b"page-reader"])


def fill(migrations, mib):
    """Returns whether another checkpoint of this many MiB fits into the target."""
    path = migrations.out / "another checkpoint"
    written = migrations.source.at.run(
        ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={mib}", "conv=fsync"], check=False
    )
    return written.returncode == 0


def test_memory_for_a_decided_process_stays_reserved(lab, nodes, make_migrations):
    """Another checkpoint that would fill the target fails; the process does not."""
    migrations = make_migrations(target_options=["--memory-limit", "320MiB"])
    [worker] = start_workers(lab, nodes, 1, size_mib=3 * SIZE_MIB)
    running = start_slow(migrations, nodes, worker)
    [reader] = page_readers(nodes.source)
    os.kill(reader, signal.SIGSTOP)
    nodes.link.limit()
    filled = fill(migrations, 200)
    os.kill(reader, signal.SIGCONT)
    running.wait().ok()
    assert not filled
    check_moved(worker, nodes)
    worker.end()


@pytest.mark.parametrize("options", [[], ["--post-copy"]], ids=["default", "post-copy"])
def test_process_stays_if_the_target_runs_out_of_memory(lab, nodes, make_migrations, options):
    migrations = make_migrations(target_options=["--memory-limit", "320MiB"])
    [worker] = start_workers(lab, nodes, 1, size_mib=3 * SIZE_MIB)
    running = migrations.start_migrate(
        worker.pid, options=options, environment=pause_at(lab, "source:dumping")
    )
    migrations.wait_until_paused("source", "dumping", running)
    assert fill(migrations, 200)
    migrations.go_on("source", "dumping")
    done = running.wait()
    assert done.code == ABORTED and "--memory-limit" in done.output, done.output
    check_stayed(worker, nodes)
    nodes.source.run(["rm", migrations.out / "another checkpoint"])
    migrations.migrate(worker.pid, options=options).ok()
    check_moved(worker, nodes)
    worker.end()


def test_process_is_lost_with_the_page_reader_before_its_memory_has_arrived(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1, size_mib=3 * SIZE_MIB)  # more than the pool holds
    running = start_slow(migrations, nodes, worker)
    [reader] = page_readers(nodes.source)
    os.kill(reader, signal.SIGKILL)
    done = running.wait()
    assert done.code in (LOST, OPEN), done.output
    assert "the page reader has ended" in done.output
    for node in (nodes.source, nodes.target):
        wait_until(lambda: not node.alive(worker.pid), 30, "the process to end")
    worker.end()


def test_memory_follows_when_a_stopped_page_reader_continues(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1, size_mib=3 * SIZE_MIB)
    running = start_slow(migrations, nodes, worker, ["--timeout", 2])
    [reader] = page_readers(nodes.source)
    os.kill(reader, signal.SIGSTOP)
    nodes.link.limit()
    time.sleep(4)  # longer than --timeout
    assert nodes.source.alive(worker.pid), "the frozen pages are needed"
    os.kill(reader, signal.SIGCONT)
    running.wait().ok()
    check_moved(worker, nodes)
    wait_until(lambda: not page_readers(nodes.source), 10, "the page reader to end")
    worker.end()


def test_process_stays_if_the_page_reader_is_killed_before_the_decision(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1, size_mib=2 * SIZE_MIB)
    nodes.link.limit(SLOW)  # the page reader ends when all is in the pool
    running = migrations.start_migrate(
        worker.pid, options=["--stop-and-copy"], environment=pause_at(lab, "source:frozen")
    )
    migrations.wait_until_paused("source", "frozen", running)
    [reader] = page_readers(nodes.source)
    os.kill(reader, signal.SIGKILL)
    nodes.link.limit()
    migrations.go_on("source", "frozen")
    done = running.wait()
    assert done.code == ABORTED and "the page reader has ended" in done.output, done.output
    check_stayed(worker, nodes)
    worker.end()


def test_process_stays_after_a_failure_before_the_decision(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1, size_mib=SIZE_MIB)
    nodes.link.limit(SLOW)
    running = migrations.start_migrate(
        worker.pid,
        options=["--post-copy", "--stop-and-copy"],
        environment=pause_at(lab, "source:sealed"),
    )
    migrations.wait_until_paused("source", "sealed", running)
    os.kill(running.host_pid, signal.SIGKILL)
    running.wait()
    migrations.go_on("source", "sealed")
    nodes.link.limit()
    wait_until(
        lambda: migrations.records("source")[-1]["state"] == "aborted", 20, "the migration to abort"
    )
    check_stayed(worker, nodes)
    worker.end()


@pytest.mark.parametrize("option", [["--eager"], ["--leave-running"]])
def test_options_that_exclude_post_copy_are_refused(lab, nodes, migrations, option):
    [worker] = start_workers(lab, nodes, 1)
    done = migrations.migrate(worker.pid, options=["--post-copy", *option])
    assert done.code == 2 and "excludes" in done.output, done.output
    check_stayed(worker, nodes)
    worker.end()
