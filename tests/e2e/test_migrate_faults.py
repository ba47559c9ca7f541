"""`ppmr migrate` with faults around it: a full disk, many clients, an interrupted round, a killed
supervisor."""
import os
import signal
import socket
import time

import pytest

from lab.criu import IS_A_SUPERVISORS, criu_that
from lab.node import happens, wait_until
from lab.ppmr import find_ppmr
from lab.programs import find_program
from lab.workers import (
    check_moved,
    check_stayed,
    pause_at,
    start_workers,
    take_pid,
)

MOVED, ABORTED, OPEN = 0, 11, 12


def test_full_disk_neither_kills_nor_resumes_frozen_process(lab, nodes, migrations):
    nodes.source.run(
        [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            "size=512k,mode=0700",
            "records",
            migrations.states["source"],
        ]
    )
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(
        worker.pid,
        options=["--timeout", 1],
        environment=pause_at(lab, "source:frozen"),
    )
    migrations.wait_until_paused("source", "frozen", running)
    filler = migrations.states["source"] / "filler"
    nodes.source.run(["sh", "-c", f"cat /dev/zero >{filler}"], check=False)
    migrations.go_on("source", "frozen")
    # The frozen process waits for longer than --timeout.
    assert not happens(lambda: not nodes.source.alive(worker.pid) or not running.running(), 4)
    assert migrations.records("source")[0]["state"] in ("frozen", "sealed")
    nodes.source.run(["rm", filler])
    done = running.wait()
    assert done.code == ABORTED, done.output
    check_stayed(worker, nodes)
    worker.end()


def test_next_migration_aborts_unfinished_migration_of_killed_coordinator(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid, environment=pause_at(lab, "source:dumping"))
    migrations.wait_until_paused("source", "dumping", running)
    os.kill(running.host_pid, signal.SIGKILL)
    running.wait()
    migrations.go_on("source", "dumping")
    assert [record["state"] for record in migrations.records("source")] == ["dumping"]
    migrations.migrate(worker.pid).ok()
    assert sorted(record["state"] for record in migrations.records("source")) == [
        "aborted",
        "finished",
    ]
    check_moved(worker, nodes)
    worker.end()


def test_second_coordinator_names_the_migration_that_moves_the_process(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid, environment=pause_at(lab, "source:sealed"))
    migrations.wait_until_paused("source", "sealed", running)
    late = migrations.migrate(worker.pid)
    assert late.code == ABORTED, late.output
    [record] = migrations.records("source")
    assert f"migration {record['id']} moves process {worker.pid}" in late.output
    migrations.go_on("source", "sealed")
    running.wait().ok()
    check_moved(worker, nodes)
    worker.end()


def test_migration_that_cannot_be_recorded_does_not_start(lab, nodes, migrations):
    nodes.source.run(
        [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            "nr_inodes=1,mode=0700",
            "records",
            migrations.states["source"],
        ]
    )
    [worker] = start_workers(lab, nodes, 1)
    done = migrations.migrate(worker.pid)
    assert done.code == ABORTED and "No space left" in done.err, done.output
    assert "--recover" not in done.output, "the message suggests a recovery, but there is no record"
    check_stayed(worker, nodes)
    worker.end()


def test_migration_aborts_if_criu_at_source_gets_sigstop(lab, nodes, make_migrations, tmp_path):
    stops = f'[ "$1" = swrk ] && ! {{ {IS_A_SUPERVISORS}; }} && kill -STOP $$'
    migrations = make_migrations(environment={"PPMR_CRIU": str(criu_that(tmp_path, stops))})
    [worker] = start_workers(lab, nodes, 1)
    done = migrations.migrate(worker.pid, options=["--timeout", 1])
    assert done.code == ABORTED, done.output
    check_stayed(worker, nodes)
    worker.end()


# Rounds take long on a slow link.
@pytest.mark.parametrize(
    "options", [[], ["--stop-and-copy"], ["--eager"]], ids=["live", "lazy", "eager"]
)
def test_timeout_does_not_limit_the_transfer(lab, nodes, migrations, options):
    [worker] = start_workers(lab, nodes, 1, size_mib=64)
    nodes.link.limit("150mbit")
    began = time.monotonic()
    done = migrations.migrate(worker.pid, options=["--timeout", 2, *options]).ok()
    moved = done.summary["trees"][0]
    transfer_s = moved["dump_s"] + moved["seal_s"] if options else time.monotonic() - began
    assert transfer_s > 2.5, "the transfer was shorter than --timeout"
    nodes.link.limit()
    check_moved(worker, nodes)
    worker.end()


def test_migration_succeeds_despite_many_silent_clients(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1)
    sources = [
        line.split(" - ")[1].split()[1]
        for line in nodes.target.mountinfo().splitlines()
        if str(migrations.in_) in line
    ]
    clients = []
    for _ in range(300):  # the daemon closes these connections after some seconds
        clients.append(socket.socket(socket.AF_UNIX))
        clients[-1].connect(str(nodes.target.host_path(sources[0])))
    migrations.migrate(worker.pid).ok()
    check_moved(worker, nodes)
    worker.end()
    for client in clients:
        client.close()


@pytest.mark.parametrize("options", [[], ["--eager"]], ids=["lazy", "eager"])
def test_killed_supervisor_is_replaced(lab, nodes, make_migrations, options):
    migrations = make_migrations(environment=pause_at(lab, "source:committed"))
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid, options=options)
    migrations.wait_until_paused("source", "committed", running)
    [supervisor] = nodes.target.run(["pgrep", "-f", "^ppmr migration-restore"]).stdout.split()
    # Stops the supervisor before the process runs, so that the supervisor does not notice that it
    # runs.
    nodes.target.signal(supervisor, signal.SIGSTOP)
    migrations.go_on("source", "committed")
    worker.wait_for_lines(5, nodes.target)
    nodes.target.signal(supervisor, signal.SIGKILL)
    running.wait().ok()
    check_moved(worker, nodes)
    assert migrations.records("target")[0]["state"] == "finished"
    assert (
        nodes.target.run(["ls", migrations.in_]).stdout == ""
    ), "the checkpoint is still at the target"
    worker.end()


def test_recover_repeats_restore_that_failed_after_the_vote(lab, nodes, make_migrations, tmp_path):
    broken = criu_that(
        tmp_path,
        f'{IS_A_SUPERVISORS} && [ -e "{tmp_path}/fail" ] && {{ echo "Error (criu/x.c:1): no restore today"; exit 1; }}',
    )
    environment = {"PPMR_CRIU": str(broken), **pause_at(lab, "target:ready")}
    migrations = make_migrations(environment=environment)
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid)
    migrations.wait_until_paused("target", "ready", running)
    (tmp_path / "fail").touch()
    nodes.target.run(
        ["pkill", "-KILL", "-f", "^ppmr migration-restore|^criu: restore|migration-relay"]
    )
    done = running.wait()
    assert (
        done.code == OPEN and "no restore today" in done.output and "--recover" in done.output
    ), done.output
    assert not nodes.source.alive(worker.pid)
    (tmp_path / "fail").unlink()
    assert migrations.recover("target", check=False).code == OPEN
    wait_until(
        lambda: migrations.records("target")[0]["state"] == "finished",
        20,
        "the process to be restored",
    )
    check_moved(worker, nodes)
    assert (
        migrations.recover("target").code == MOVED and not migrations.records("target")[0]["error"]
    )
    worker.end()


def await_ready_target_before_the_decision(migrations, pid):
    running = migrations.start_migrate(pid)
    migrations.wait_until_paused("source", "sealed", running)
    wait_until(
        lambda: migrations.records("target")[0]["state"] == "ready", 10, "the target to be ready"
    )
    return running


def test_restore_that_fails_before_the_decision_aborts_the_migration(
    lab, nodes, make_migrations, tmp_path
):
    """The target is ready, then its restore fails for good. The coordinator must not commit on that
    vote."""
    broken = criu_that(
        tmp_path,
        f'{IS_A_SUPERVISORS} && [ -e "{tmp_path}/fail" ] && {{ echo "Error (criu/x.c:1): no restore today"; exit 1; }}',
    )
    environment = {"PPMR_CRIU": str(broken), **pause_at(lab, "source:sealed")}
    migrations = make_migrations(environment=environment)
    [worker] = start_workers(lab, nodes, 1)
    running = await_ready_target_before_the_decision(migrations, worker.pid)
    (tmp_path / "fail").touch()
    nodes.target.run(["pkill", "-KILL", "-f", "^criu: restore|migration-relay"])
    wait_until(
        lambda: migrations.records("target")[0]["trees"][0]["error"],
        20,
        "the supervisor to give up",
    )
    assert migrations.records("target")[0]["state"] == "ready", "the target aborted by itself"
    migrations.go_on("source", "sealed")
    done = running.wait()
    assert done.code == ABORTED and "no restore today" in done.output, done.output
    check_stayed(worker, nodes)
    assert nodes.target.run(["ls", migrations.in_]).stdout == "", "a checkpoint is left"
    worker.end()


def test_restart_of_target_daemon_before_decision_aborts_migration(lab, nodes, make_migrations):
    """The target's record is still ready, but its images were lost with the daemon."""
    migrations = make_migrations(environment=pause_at(lab, "source:sealed"))
    [worker] = start_workers(lab, nodes, 1)
    running = await_ready_target_before_the_decision(migrations, worker.pid)
    migrations.target.signal(signal.SIGKILL)
    migrations.target.process.wait()
    migrations.restart_dead()
    migrations.go_on("source", "sealed")
    done = running.wait()
    assert done.code == ABORTED, done.output
    check_stayed(worker, nodes)
    worker.end()


def test_migration_continues_if_its_output_cannot_be_written(lab, nodes, migrations):
    """Every write to /dev/full fails, like a write to a terminal that has gone."""
    workers = start_workers(lab, nodes, 2)
    for worker, style in zip(workers, ([], ["--json"])):
        words = [find_ppmr(), "migrate", "--mount", migrations.out, "--pid", worker.pid]
        words += ["--state-dir", migrations.states["source"], *style]
        nodes.source.run(["sh", "-c", 'exec "$0" "$@" >/dev/full 2>/dev/full', *words])
        check_moved(worker, nodes)
        worker.end()


def supervisors_of(node):
    """Returns the oldest first: the process that was started, and its child, which supervises a
    copy.
    """
    return [
        int(pid)
        for pid in node.run(["pgrep", "-f", "^ppmr migration-restore"], check=False).stdout.split()
    ]


@pytest.mark.parametrize("killed", ["both", "the one that was started"])
def test_killed_supervisor_of_a_copy_never_leads_to_a_second_copy(
    lab, nodes, make_migrations, killed
):
    directory = lab.home / "witness"
    directory.mkdir()
    migrations = make_migrations(environment=pause_at(lab, "target:ready"))
    pid = nodes.source.spawn([find_program("witness"), directory])
    wait_until(lambda: (directory / "log").exists(), 10, "the witness to get under way")

    def copies():
        return nodes.target.run(["pgrep", "-x", "witness"], check=False).stdout.split()

    running = migrations.start_migrate(pid, options=["--leave-running"])
    migrations.wait_until_paused("target", "ready", running)
    started, process_one = supervisors_of(nodes.target)
    if killed == "both":
        nodes.target.signal(process_one, signal.SIGKILL)
        nodes.target.await_end(process_one)  # and with it the hook in its namespace
    else:
        nodes.target.signal(
            process_one, signal.SIGSTOP
        )  # so that the supervisor does not record that the copy runs
    nodes.target.signal(started, signal.SIGKILL)
    migrations.go_on("target", "ready")
    wait_until(copies, 10, "the copy")
    if killed != "both":
        keeps = migrations.records("target")[0]["trees"][0]["supervisor"][0]
        assert keeps == process_one, "the record names another supervisor"
        nodes.target.signal(process_one, signal.SIGCONT)
    running.wait().ok()
    assert len(copies()) == 1 and nodes.source.alive(pid)
    nodes.target.signal(int(copies()[0]), signal.SIGKILL)
    nodes.source.signal(pid, signal.SIGKILL)


def test_process_name_that_is_not_utf8_is_no_obstacle(lab, nodes, migrations):
    log = lab.home / "counts"
    script = "printf '\\377\\376' >/proc/$$/comm; n=0; while :; do n=$((n + 1)); echo $n; /bin/sleep 0.02; done >>$0"
    pid = nodes.source.spawn(["sh", "-c", script, log])
    wait_until(lambda: log.exists() and log.read_text().count("\n") > 5, 10, "the counts")
    migrations.migrate(pid).ok()
    before = log.read_text().count("\n")
    wait_until(lambda: log.read_text().count("\n") > before + 5, 10, "the counts to go on")
    assert nodes.target.alive(pid) and not nodes.source.alive(pid)
    assert migrations.recover().code == MOVED, "its record cannot be read"
    nodes.target.signal(pid, signal.SIGKILL)


def test_obstacle_of_one_independent_migration_does_not_affect_others(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1)
    pipe = lab.home / "pipe"
    os.mkfifo(pipe)
    connected = [nodes.source.spawn(["sh", "-c", f"sleep 60 <>{pipe}"]) for _ in range(2)]
    gone = nodes.source.spawn(["true"])
    nodes.source.await_end(gone)
    done = migrations.migrate(worker.pid, *connected, gone, options=["--independent"])
    assert done.code == ABORTED, done.output
    for pid in (*connected, gone):
        assert f"{pid}" in done.output
    check_moved(worker, nodes)
    worker.end()
    for pid in connected:
        assert nodes.source.alive(pid)
        nodes.source.signal(pid, signal.SIGKILL)


def test_both_nodes_abort_migration_whose_coordinator_is_killed_before_decision(
    lab, nodes, migrations
):
    """The relay at the source decides without the coordinator."""
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid, environment=pause_at(lab, "source:sealed"))
    migrations.wait_until_paused("source", "sealed", running)
    wait_until(
        lambda: migrations.records("target")[0]["state"] == "ready", 10, "the target to be ready"
    )
    running.signal(signal.SIGKILL)
    wait_until(
        lambda: [migrations.records(role)[0]["state"] for role in ("source", "target")]
        == ["aborted"] * 2,
        10,
        "both nodes to record the abort",
    )
    check_stayed(worker, nodes)
    nodes.target.await_end(worker.pid)
    worker.end()


def test_migration_succeeds_with_blanks_in_paths(lab, nodes, make_migrations):
    migrations = make_migrations(name="with some blanks")
    [worker] = start_workers(lab, nodes, 1)
    migrations.migrate(
        worker.pid, criu_options=["--network-lock", "iptables", "--ghost-limit", "4M"]
    ).ok()
    check_moved(worker, nodes)
    worker.end()


def test_restored_process_is_not_released_if_release_cannot_be_recorded(lab, nodes, migrations):
    """Without the record, a later recovery would restore the process a second time."""
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(
        worker.pid,
        options=["--eager"],
        environment=pause_at(lab, "source:committed"),
    )
    migrations.wait_until_paused("source", "committed", running)
    wait_until(
        lambda: migrations.records("target")[0]["state"] == "ready", 10, "the target to be ready"
    )
    mark = (
        nodes.target.host_path(migrations.states["target"])
        / f"{migrations.records('target')[0]['id']}.target"
        / "work-0"
        / "let-go"
    )
    mark.symlink_to("/there/is/no/such/directory")  # the next restore removes this link
    migrations.go_on("source", "committed")
    running.wait().ok()
    check_moved(worker, nodes)
    assert "work-0/let-go: No such file" in migrations.logs(), "the first restore was not refused"
    worker.end()


@pytest.mark.parametrize("state", ["dumping", "frozen"])
def test_process_stays_if_the_daemon_of_the_source_is_stopped(lab, nodes, migrations, state):
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid, environment=pause_at(lab, f"source:{state}"))
    migrations.wait_until_paused("source", state, running)
    migrations.source.signal(signal.SIGSTOP)
    migrations.go_on("source", state)
    done = running.wait(timeout=60)
    migrations.source.signal(signal.SIGCONT)
    assert done.code == ABORTED and "did not reply" in done.output, done.output
    check_stayed(worker, nodes)
    worker.end()


def test_process_stays_if_the_daemon_of_the_source_is_stopped_during_the_transfer(
    lab, nodes, migrations
):
    [worker] = start_workers(lab, nodes, 1, size_mib=192)  # the process needs more than the pool
    nodes.link.limit("100mbit")
    running = migrations.start_migrate(worker.pid)
    wait_until(
        lambda: migrations.source.status()["pool"]["free"] <= 1, 30, "memory to be on its way"
    )
    migrations.source.signal(signal.SIGSTOP)
    done = running.wait(timeout=60)
    migrations.source.signal(signal.SIGCONT)
    assert done.code == ABORTED and "did not reply" in done.output, done.output
    check_stayed(worker, nodes)
    worker.end()


def test_checkpoint_that_is_sealed_after_an_abort_is_removed(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1, size_mib=48)
    nodes.link.limit("100mbit")
    running = migrations.start_migrate(worker.pid, environment=pause_at(lab, "source:dumping"))
    migrations.wait_until_paused("source", "dumping", running)
    take_pid(nodes.target, worker.pid)
    migrations.go_on("source", "dumping")
    wait_until(
        lambda: migrations.records("source")[0]["peer_notified"], 30, "both nodes to have aborted"
    )
    assert migrations.target.status()["store"]["used_bytes"] < 40 << 20, "the memory was there"
    assert running.wait().code == ABORTED
    assert nodes.target.run(["ls", migrations.in_]).stdout == ""
    nodes.target.signal(worker.pid, signal.SIGKILL)
    check_stayed(worker, nodes)
    worker.end()


def test_process_that_its_user_has_stopped_stays_stopped_after_an_abort(
    lab, nodes, make_migrations
):
    migrations = make_migrations(environment=pause_at(lab, "source:sealed"))
    [worker] = start_workers(lab, nodes, 1)
    nodes.source.signal(worker.pid, signal.SIGSTOP)
    running = migrations.start_migrate(worker.pid)
    migrations.wait_until_paused("source", "sealed", running)
    running.signal(signal.SIGINT)
    migrations.go_on("source", "sealed")
    done = running.wait()
    assert done.code == ABORTED, done.output
    state = nodes.source.run(["ps", "-o", "stat=", "-p", worker.pid]).stdout
    assert state.startswith("T"), state
    nodes.source.signal(worker.pid, signal.SIGCONT)
    worker.wait_for_lines(3, nodes.source)
    worker.end()
