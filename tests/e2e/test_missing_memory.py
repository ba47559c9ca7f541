"""A process runs at the target before all of its memory has arrived, and then a failure occurs."""
import signal


from lab.node import LabError, wait_until
from lab.programs import SteadyWorker, check_continuity, find_program
from lab.workers import check_all_memory, check_moved, pagers_of, pause_at, start_workers

LOST, OPEN = 10, 12


def run_without_its_memory(lab, nodes, migrations):
    """Moves a worker until it runs at the target while its pager still fills in memory. That takes
    a fraction of a second, so a loaded machine may need several attempts. Returns the worker, the
    running migration and the pager, which is stopped.
    """
    for attempt in range(6):
        worker = SteadyWorker(nodes.source, lab.home / f"worker-{attempt}", size_mib=384, threads=1)
        worker.wait_for_lines(10)
        running = migrations.start_migrate(worker.pid, options=["--timeout", 10])
        worker.wait_for_lines(1, nodes.target)
        for pager in pagers_of(nodes.target):
            stopped = nodes.target.run(["kill", "-STOP", pager], check=False).returncode == 0
            if stopped and nodes.target.alive(pager):
                return worker, running, pager
        running.wait().ok()
        nodes.target.signal(worker.pid, signal.SIGKILL)
        nodes.target.await_end(worker.pid)
    raise LabError("all memory was always in place before the failure: nothing was tested")


def test_process_whose_memory_is_lost_is_killed_and_never_reads_zeros(lab, nodes, migrations):
    worker, running, pager = run_without_its_memory(lab, nodes, migrations)
    nodes.target.signal(pager, signal.SIGKILL)
    nodes.target.await_end(worker.pid)
    check_continuity(worker.lines())
    nodes.source.await_end(worker.pid)
    done = running.wait()
    assert "MEMORY LOST" in migrations.records("target")[-1]["error"]
    assert done.code in (LOST, OPEN) and done.summary["trees"][0]["result"] == "LOST"
    wait_until(
        lambda: nodes.target.run(["pgrep", "-f", "guard-pages"], check=False).stdout == "",
        5,
        "the page guard to end",
    )


def test_memory_arrives_although_the_target_daemon_is_killed(lab, nodes, migrations):
    worker, running, pager = run_without_its_memory(lab, nodes, migrations)
    migrations.target.kill()
    nodes.target.signal(pager, signal.SIGCONT)
    nodes.target.await_end(pager, timeout=60)
    migrations.restart_dead()
    running.wait()
    wait_until(
        lambda: migrations.records("target")[-1]["state"] == "finished", 10, "the move to end"
    )
    assert migrations.records("target")[-1]["error"] == ""
    check_all_memory(worker, nodes)


def test_memory_arrives_although_the_supervisor_is_killed(lab, nodes, migrations):
    worker, running, pager = run_without_its_memory(lab, nodes, migrations)
    [supervisor] = nodes.target.run(["pgrep", "-f", "^ppmr migration-restore"]).stdout.split()
    nodes.target.signal(supervisor, signal.SIGKILL)
    nodes.target.signal(pager, signal.SIGCONT)
    nodes.target.await_end(pager, timeout=60)
    running.wait()
    check_all_memory(worker, nodes)


def test_shell_can_fork_while_memory_of_another_process_is_still_missing(lab, nodes, migrations):
    numbers, directory = lab.home / "numbers", lab.home / "worker"
    directory.mkdir()
    script = '"$1" "$2" 256 1 1 & number=0; while :; do number=$((number + 1)); /bin/echo $number; done >>"$3"'
    shell = nodes.source.spawn(
        ["sh", "-c", script, "shell", find_program("steady_worker"), directory, numbers]
    )
    wait_until(lambda: (directory / "ready").exists(), 30, "the worker to start")
    done = migrations.migrate(shell).ok()
    assert done.summary["trees"][0]["lazily"]
    before = numbers.read_text().count("\n")
    wait_until(lambda: numbers.read_text().count("\n") > before + 50, 20, "the shell to go on")
    lines = numbers.read_text().splitlines()[:-1]
    assert lines == [str(number) for number in range(1, len(lines) + 1)]
    nodes.target.signal(shell, signal.SIGKILL)


def test_pager_is_replaced_if_killed_before_process_runs(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid, environment=pause_at(lab, "source:sealed"))
    migrations.wait_until_paused("source", "sealed", running)
    wait_until(
        lambda: migrations.records("target")[0]["state"] == "ready", 10, "the target to be ready"
    )
    nodes.target.signal(pagers_of(nodes.target)[0], signal.SIGKILL)
    migrations.go_on("source", "sealed")
    running.wait().ok()
    check_moved(worker, nodes)
    worker.end()
