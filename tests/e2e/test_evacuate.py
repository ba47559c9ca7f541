"""One command makes several migrations: `ppmr migrate --independent`, `ppmr evacuate`."""
import signal


from lab.node import wait_until
from lab.workers import check_moved, check_stayed, pause_at, start_workers, take_pid

MOVED, ABORTED = 0, 11


def test_independent_migrations_succeed_and_fail_separately(lab, nodes, migrations):
    workers = start_workers(lab, nodes, 3)
    running = migrations.start_migrate(
        *[worker.pid for worker in workers],
        options=["--independent", "--jobs", 3],
        environment=pause_at(lab, "source:dumping"),
    )
    wait_until(
        lambda: len(migrations.paused("source", "dumping")) == 3,
        20,
        "all three migrations to start",
    )
    take_pid(nodes.target, workers[1].pid)
    migrations.go_on("source", "dumping")
    done = running.wait()
    assert done.code == ABORTED, done.output
    results = {tree["pid"]: tree["result"] for tree in done.summary["trees"]}
    assert results == {
        workers[0].pid: "moved",
        workers[1].pid: "stayed",
        workers[2].pid: "moved",
    }, done.output
    nodes.target.signal(workers[1].pid, signal.SIGKILL)
    check_moved(workers[0], nodes)
    check_stayed(workers[1], nodes)
    check_moved(workers[2], nodes)
    for worker in workers:
        worker.end()


def test_evacuate_moves_only_matching_processes(lab, nodes, migrations):
    workers = start_workers(lab, nodes, 3)
    first, second, third = workers
    done = migrations.evacuate("--match", f"steady_worker {lab.home}/worker-[01] ", "--dry-run")
    assert done.code == MOVED and all(nodes.source.alive(worker.pid) for worker in workers)
    done = migrations.evacuate("--match", f"steady_worker {lab.home}/worker-[01] ").ok()
    selection = next(event for event in done.events if event.get("event") == "selection")
    assert sorted(tree["pid"] for tree in selection["leave"]) == sorted([first.pid, second.pid])
    for worker in (first, second):
        check_moved(worker, nodes)
        worker.end()
    assert len(migrations.records("source")) == 2, "evacuate did not make one migration per process"
    check_stayed(third, nodes)
    third.end()


def test_evacuate_moves_other_processes_when_one_cannot_move(lab, nodes, migrations):
    stuck, free = start_workers(lab, nodes, 2)
    take_pid(nodes.target, stuck.pid)
    done = migrations.evacuate("--match", f"steady_worker {lab.home}/worker-")
    assert done.code == ABORTED and str(stuck.pid) in done.output
    nodes.target.signal(stuck.pid, signal.SIGKILL)
    check_moved(free, nodes)
    check_stayed(stuck, nodes)
    for worker in (stuck, free):
        worker.end()


def test_evacuate_without_match_moves_no_process(migrations):
    done = migrations.evacuate("--match", "no such program at all")
    assert done.code == MOVED and migrations.records("source") == []
