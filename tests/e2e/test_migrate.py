"""`ppmr migrate`: one command moves running processes. After every failure exactly one copy
runs."""
import json
import shutil
import signal
from pathlib import Path

import pytest

from lab.criu import IS_A_SUPERVISORS, WITHOUT_USERFAULTFD, criu_that
from lab.node import wait_until
from lab.ppmr import Mounts, find_ppmr
from lab.programs import SteadyWorker, find_program, gap_between
from lab.proofs import Before, prove
from lab.workers import check_moved, check_stayed, pause_at, start_workers, take_pid

GROWTH_MAX_KIB = 4096  # growth by any number of migrations: malloc keeps one arena per thread
MOVED, ABORTED, OPEN = 0, 11, 12


@pytest.mark.parametrize("options", [[], ["--eager"]], ids=["lazy", "eager"])
def test_worker_with_all_kinds_of_state_moves(lab, nodes, migrations, options):
    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=96)
    worker.wait_for_lines(30)
    before = Before(worker)
    done = migrations.migrate(worker.pid, options=options).ok()
    worker.node = nodes.target
    worker.wait_for_lines(30, nodes.target)
    claims = prove(worker, before, nodes.source, nodes.target)
    worker.end()
    assert [claim for claim in claims if not claim[1]] == []
    tree = done.summary["trees"][0]
    assert tree["result"] == "moved" and tree["pid"] == worker.pid and tree["bytes"] > 96 << 20
    assert tree["lazily"] == (options == [])
    last, first = gap_between(worker.lines(), nodes.source, nodes.target)
    seen = (first["real_ns"] - last["real_ns"]) / 1e9
    assert (
        0 < tree["downtime_s"] <= seen + 0.2
    ), "the reported downtime is longer than the one that the program measured"
    for role in ("source", "target"):
        record = migrations.records(role)[-1]
        assert (record["state"], record["owner"]) == ("finished", "target")
    assert (
        nodes.target.run(["ls", migrations.in_]).stdout == ""
    ), "the checkpoint is still at the target"


@pytest.mark.parametrize("options", [[], ["--post-copy"], ["--eager"]], ids=" ".join)
def test_process_larger_than_the_memory_of_the_target_moves(lab, nodes, make_migrations, options):
    spill = lab.home / "spill"
    spill.mkdir()
    limits = ["--memory-limit", "64MiB", "--spill-dir", spill]
    migrations = make_migrations(target_options=limits)
    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=192)
    worker.wait_for_lines(10)
    migrations.migrate(worker.pid, options=options).ok()
    check_moved(worker, nodes)
    worker.end()


def test_audit_trails_of_both_nodes_name_the_moved_processes_and_the_peer(
    lab, nodes, make_migrations
):
    audits = {role: lab.directory / f"audit-{role}.json" for role in ("source", "target")}
    migrations = make_migrations(
        source_options=["--audit-file", audits["source"]],
        target_options=["--audit-file", audits["target"]],
    )
    (worker,) = start_workers(lab, nodes, 1)
    done = migrations.migrate(worker.pid).ok()
    check_moved(worker, nodes)
    worker.end()

    def lines(role, event):
        text = nodes.source.host_path(audits[role]).read_text()
        return [line for line in map(json.loads, text.splitlines()) if line["event"] == event]

    def outcomes(role, event):
        return [line["outcome"] for line in lines(role, event)]

    moved = done.summary["trees"][0]["migration"]
    assert outcomes("source", "migration") == ["begun", "moved"]
    begun = lines("source", "migration")[0]
    assert (begun["migration"], begun["uids"], begun["by_uid"]) == (moved, [0], 0)
    assert begun["trees"][0]["pid"] == worker.pid
    assert outcomes("target", "migration") == ["prepared", "running"]
    wait_until(lambda: len(lines("target", "restart")) == 2, 5, "the end of the restart")
    assert outcomes("target", "restart") == ["running", "complete"]
    for line in [*lines("target", "migration"), *lines("target", "restart")]:
        assert (line["migration"], line["peer"]) == (moved, f"tls-psk {nodes.source.name}")
    restart = lines("target", "restart")[0]
    assert (restart["pid"], restart["uids"]) == (worker.pid, [0])
    accepted = [line for line in lines("target", "connection") if line["outcome"] == "accepted"]
    assert {"source", "data", "migrate"} == {line["service"] for line in accepted}


def test_several_processes_move_in_one_migration(lab, nodes, migrations):
    workers = start_workers(lab, nodes, 3)
    done = migrations.migrate(*[worker.pid for worker in workers]).ok()
    for worker in workers:
        check_moved(worker, nodes)
        worker.end()
    assert len(migrations.records("source")) == 1, "several records for one migration"
    moved = {tree["pid"]: tree["result"] for tree in done.summary["trees"]}
    assert moved == {worker.pid: "moved" for worker in workers}


def test_one_failed_restore_keeps_all_processes_at_source(lab, nodes, migrations):
    workers = start_workers(lab, nodes, 3)
    # Another process takes the pid during the dump, after preflight has checked the pid.
    taken = workers[1].pid
    running = migrations.start_migrate(
        *[worker.pid for worker in workers],
        environment=pause_at(lab, "source:dumping"),
    )
    migrations.wait_until_paused("source", "dumping", running)
    take_pid(nodes.target, taken)
    migrations.go_on("source", "dumping")
    done = running.wait()
    assert done.code == ABORTED, done.output
    assert str(taken) in done.err, "the message does not name the process"
    nodes.target.signal(taken, signal.SIGKILL)
    for worker in workers:
        check_stayed(worker, nodes)
    assert {
        record["state"] for role in ("source", "target") for record in migrations.records(role)
    } == {"aborted"}
    wait_until(
        lambda: nodes.target.run(["ls", migrations.in_]).stdout == "",
        10,
        "the checkpoints to be removed",
    )
    migrations.migrate(*[worker.pid for worker in workers]).ok()
    for worker in workers:
        check_moved(worker, nodes)
        worker.end()


def test_move_begins_again_when_a_pid_that_was_taken_is_free(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid, environment=pause_at(lab, "source:dumping"))
    migrations.wait_until_paused("source", "dumping", running)
    take_pid(nodes.target, worker.pid)
    migrations.go_on("source", "dumping")
    wait_until(
        lambda: migrations.records("source")[0]["state"] == "aborted", 30, "the restore to fail"
    )
    nodes.target.signal(worker.pid, signal.SIGKILL)
    migrations.wait_until_paused("source", "dumping", running)
    migrations.go_on("source", "dumping")
    done = running.wait().ok()
    check_moved(worker, nodes)
    worker.end()
    warnings = [event["sentence"] for event in done.events if event["event"] == "warning"]
    assert any("begins again" in sentence for sentence in warnings), done.output
    assert [record["state"] for record in migrations.records("source")] == ["aborted", "finished"]


def test_process_with_a_reused_pid_is_not_moved(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid, environment=pause_at(lab, "source:dumping"))
    migrations.wait_until_paused("source", "dumping", running)
    nodes.source.signal(worker.pid, signal.SIGKILL)
    nodes.source.await_end(worker.pid)
    take_pid(nodes.source, worker.pid)
    migrations.go_on("source", "dumping")
    done = running.wait()
    assert done.code == ABORTED, done.output
    assert "has its pid now" in done.err
    assert nodes.source.alive(worker.pid), "the other process runs on"
    nodes.source.signal(worker.pid, signal.SIGKILL)


def test_interrupt_before_decision_keeps_process_at_source(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid, environment=pause_at(lab, "source:frozen"))
    migrations.wait_until_paused("source", "frozen", running)
    running.signal(signal.SIGINT)
    migrations.go_on("source", "frozen")
    done = running.wait()
    assert done.code in (ABORTED, MOVED), done.output
    (check_stayed if done.code == ABORTED else check_moved)(worker, nodes)
    worker.end()


def test_target_without_allow_restart_refuses_migration(lab, nodes):
    with Mounts(nodes.source, nodes.target, lab.directory / "private") as mounts:
        [worker] = start_workers(lab, nodes, 1)
        done = nodes.source.run(
            [
                find_ppmr(),
                "migrate",
                "--pid",
                worker.pid,
                "--mount",
                mounts.out,
                "--state-dir",
                nodes.source.scratch("state"),
            ],
            check=False,
        )
        assert done.returncode != 0 and "--allow-restart" in done.stderr
        check_stayed(worker, nodes)
        worker.end()


def test_preflight_reports_obstacle_before_any_change(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1)
    take_pid(nodes.target, worker.pid)
    for options in (["--dry-run"], []):
        done = migrations.migrate(worker.pid, options=options)
        assert done.code == ABORTED
        finding = next(
            event for event in done.events if event.get("event") == "finding" and event["stops"]
        )
        assert str(worker.pid) in finding["sentence"]
    nodes.target.signal(worker.pid, signal.SIGKILL)
    assert migrations.migrate(worker.pid, options=["--dry-run"]).code == 0
    assert migrations.records("source") == migrations.records("target") == []
    check_stayed(worker, nodes)
    worker.end()


# Has anonymous shared memory, and a System V segment whose id is the inode number of that memory
# plus an offset. Prints "whole" while both have their contents, else "LOST".
TWO_KINDS_OF_SHARED_MEMORY = """
import ctypes, mmap, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype, libc.shmat.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
mapping, mib = mmap.mmap(-1, 2 << 20), 1 << 20
mapping[:] = b"m" * len(mapping)
[inode] = [int(line.split()[4]) for line in open("/proc/self/maps") if "/dev/zero" in line]
with open("/proc/sys/kernel/shm_next_id", "w") as wanted:
    wanted.write(str(inode + int(sys.argv[1])))
address = libc.shmat(libc.shmget(0, mib, 0o600), None, 0)
ctypes.memset(address, ord("s"), mib)
while True:
    print("whole" if mapping[:] == b"m" * len(mapping) and ctypes.string_at(address, mib) == b"s" * mib else "LOST", flush=True)
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "offset, code", [(0, ABORTED), (1, MOVED)], ids=["same number", "different numbers"]
)
def test_migration_is_refused_if_shared_memory_inode_equals_system_v_id(
    lab, nodes, migrations, offset, code
):
    log = lab.home / "log"
    pid = nodes.source.spawn(
        ["unshare", "--ipc", "/usr/bin/python3", "-SEc", TWO_KINDS_OF_SHARED_MEMORY, offset],
        log=log,
    )
    wait_until(lambda: "whole" in log.read_text(), 10, "the program to run")
    done = migrations.migrate(pid)
    assert done.code == code, done.output
    if code == ABORTED:
        assert any(
            "System V segment" in event["sentence"]
            for event in done.events
            if event.get("event") == "finding" and event["stops"]
        )
    lines = len(log.read_text().splitlines())
    wait_until(lambda: len(log.read_text().splitlines()) > lines + 10, 10, "the program to go on")
    (nodes.target if code == MOVED else nodes.source).signal(pid, signal.SIGKILL)
    assert set(log.read_text().split()) == {"whole"}


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--action-script", "/bin/true"], "not passed on"),
        (["--root", "/tmp"], "not passed on"),
        (["--external", "file[/etc/passwd]:x"], "not passed on"),
    ],
)
def test_unsupported_criu_options_are_refused(lab, nodes, migrations, words, sentence):
    [worker] = start_workers(lab, nodes, 1)
    done = migrations.migrate(worker.pid, criu_options=words)
    assert done.code == 2 and sentence in done.output
    check_stayed(worker, nodes)
    worker.end()


def test_wrong_pids_and_mounts_are_refused(lab, nodes, migrations):
    assert "999999" in migrations.migrate(999999).output
    for node, pid, mount, code, message in (
        (nodes.source, 1, migrations.out, 2, ""),
        (nodes.target, 3000, migrations.in_, 2, "target mount"),
        (nodes.source, 3000, "/", 5, ""),
    ):
        state = migrations.states[node.name]
        words = [find_ppmr(), "migrate", "--pid", pid, "--mount", mount, "--state-dir", state]
        done = node.run(words, check=False)
        assert done.returncode == code and message in done.stderr
    assert migrations.recover().code == 0
    assert migrations.recover(options=["--recover", "0" * 32], check=False).code == 2


def test_recover_finishes_committed_migration(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(
        worker.pid,
        options=["--eager"],
        environment=pause_at(lab, "source:committed"),
    )
    migrations.wait_until_paused("source", "committed", running)
    # Kill everything that could finish it.
    criu = nodes.source.run(["pgrep", "-f", "criu: dump"]).stdout.split()
    nodes.source.run(["pkill", "-9", "-f", "migration-relay"])
    running.kill()
    for pid in criu:
        nodes.source.signal(pid, signal.SIGKILL)
    assert migrations.records("target")[0]["state"] == "ready"
    assert migrations.recover("target", check=False).code == OPEN, "the target decided"
    done = migrations.recover()
    assert done.events[0]["owner"] == "target" and not done.events[0]["open"]
    check_moved(worker, nodes)
    worker.end()


def test_recover_aborts_undecided_migration(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid, environment=pause_at(lab, "source:sealed"))
    migrations.wait_until_paused("source", "sealed", running)
    nodes.source.run(["pkill", "-9", "-f", "migration-relay"])
    running.kill()
    migrations.recover()
    check_stayed(worker, nodes)
    nodes.target.await_end(worker.pid)
    assert migrations.recover("target").code == 0
    migrations.migrate(worker.pid).ok()
    check_moved(worker, nodes)
    worker.end()


def test_migration_is_eager_on_kernel_without_userfaultfd(lab, nodes, make_migrations, tmp_path):
    without = criu_that(tmp_path, WITHOUT_USERFAULTFD)
    migrations = make_migrations(environment={"PPMR_CRIU": str(without)})
    [worker] = start_workers(lab, nodes, 1)
    done = migrations.migrate(worker.pid).ok()
    assert not done.summary["trees"][0]["lazily"]
    check_moved(worker, nodes)
    worker.end()


def test_aborted_migrations_leak_no_resources(lab, nodes, make_migrations, tmp_path, long):
    count = 200 if long else 12
    broken = criu_that(
        tmp_path,
        f'{IS_A_SUPERVISORS} && [ -e "{tmp_path}/fail" ] && {{ echo "Error (criu/x.c:1): no restore today"; exit 1; }}',
    )
    (tmp_path / "fail").touch()
    migrations = make_migrations(environment={"PPMR_CRIU": str(broken)})
    [worker] = start_workers(lab, nodes, 1, size_mib=8)

    def footprint():
        found = {}
        for daemon in (migrations.source, migrations.target):
            node = daemon.at
            found[daemon.role] = {
                "descriptors": len(list(Path(f"/proc/{daemon.host_pid}/fd").iterdir())),
                "threads": len(list(Path(f"/proc/{daemon.host_pid}/task").iterdir())),
                "mounts": len(node.mounts()),
                "processes": len(node.run(["ps", "-e", "-o", "pid="]).stdout.split()),
            }
        found["slots"] = migrations.source.status()["pool"]["in_use"]
        found["stored"] = migrations.target.status()["store"]["used_bytes"]
        found["checkpoints"] = len(migrations.target.status()["checkpoints"])
        return found

    def memory_kib():
        """Returns the memory of both daemons, without the store's memory for checkpoints."""
        ready = migrations.target.status()["store"]["ready_bytes"] // 1024
        return [
            migrations.source.memory_kib()["VmRSS"],
            migrations.target.memory_kib()["VmRSS"] - ready,
        ]

    def settled_footprint():
        """Waits until the daemons have finished their background work: the footprint is the same
        twice in succession.
        """
        migrations.await_ready()
        seen = []
        wait_until(
            lambda: seen.append(footprint()) or seen[-1:] == seen[-2:-1],
            15,
            "the daemons to be idle",
            interval=0.3,
        )
        return seen[-1]

    def abort(times):
        for _ in range(times):
            done = migrations.migrate(worker.pid)
            assert done.code == ABORTED and "no restore today" in done.output, done.output

    abort(3)
    before, memory = settled_footprint(), memory_kib()
    abort(count)
    wait_until(
        lambda: footprint() == before,
        15,
        f"the daemons to return to {before}; now {footprint()}",
        interval=0.3,
    )
    migrations.await_ready()
    grown = [now - was for now, was in zip(memory_kib(), memory)]
    assert all(
        kib < GROWTH_MAX_KIB for kib in grown
    ), f"the daemons have grown by {grown} KiB in {count} migrations"
    check_stayed(worker, nodes)
    (tmp_path / "fail").unlink()
    migrations.migrate(worker.pid).ok()
    check_moved(worker, nodes)
    worker.end()


def test_migration_succeeds_after_binary_of_running_daemons_was_replaced(
    lab, nodes, make_migrations, tmp_path, monkeypatch
):
    new, used = find_ppmr(), tmp_path / "ppmr"
    shutil.copy(new, used)
    monkeypatch.setenv("PPMR", str(used))
    migrations = make_migrations()
    [worker] = start_workers(lab, nodes, 1)
    used.unlink()
    shutil.copy(new, used)
    migrations.migrate(worker.pid).ok()
    check_moved(worker, nodes)
    worker.end()


def test_leave_running_option_copies_process_to_target(lab, nodes, migrations):
    # CRIU refuses to restore an open file that has grown. A witness has no file open.
    directory = lab.home / "witness"
    directory.mkdir()
    pid = nodes.source.spawn([find_program("witness"), directory])
    wait_until(lambda: (directory / "log").exists(), 10, "the witness to start")

    def lines_of(node):
        return (directory / "log").read_text().count(f" {node.name} ")

    done = migrations.migrate(pid, options=["--leave-running"]).ok()
    assert [tree["result"] for tree in done.summary["trees"]] == ["copied"]
    for node in (nodes.source, nodes.target):
        before = lines_of(node)
        wait_until(lambda: lines_of(node) > before + 50, 10, f"lines from {node.name}")
    assert nodes.source.alive(pid) and not nodes.target.alive(
        pid
    ), "the copy is not in a new pid namespace"
    assert (
        nodes.target.run(["umount", migrations.in_], check=False).returncode == 0
    ), "the copy keeps the mount busy"
    nodes.target.run(["pkill", "-9", "-x", "witness"])
    nodes.source.signal(pid, signal.SIGKILL)
