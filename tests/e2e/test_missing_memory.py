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
    assert "MEMORY LOST" in migrations.records("target")[-1]["trees"][0]["lost"]
    assert done.code in (LOST, OPEN) and done.summary["trees"][0]["result"] == "LOST"
    wait_until(
        lambda: nodes.target.run(["pgrep", "-f", "guard-pages"], check=False).stdout == "",
        5,
        "the page guard to end",
    )


PAGER, GUARD = "^/proc/self/exe serve-pages", "^ppmr guard-pages"
RELAY, CRIU = "^[^ ]* migration-relay", "^criu: (dump|restore) --rpc"
SUPERVISOR, PAGE_READER = "^ppmr migration-restore", "^ppmr page-reader"
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def send_to_all(node, patterns, numbers):
    """Sends signals to all processes of the node that match, as `systemctl kill` does."""
    pids = []
    for pattern in patterns:
        found = node.run(["pgrep", "-f", pattern], check=False).stdout.split()
        assert found, f"no process matches {pattern}"
        pids += found
    for number in numbers:
        node.run(["kill", f"-{int(number)}", *pids])


def test_pager_and_guard_survive_signals_to_their_group(lab, nodes, migrations):
    worker, running, pager = run_without_its_memory(lab, nodes, migrations)
    send_to_all(nodes.target, (PAGER, GUARD, SUPERVISOR), ENDING_SIGNALS)
    nodes.target.signal(pager, signal.SIGCONT)
    running.wait().ok()
    assert migrations.records("target")[-1]["trees"][0]["lost"] == ""
    check_all_memory(worker, nodes)


def test_supervisor_reports_no_kill_that_did_not_happen(lab, nodes, migrations):
    """Pager and guard are both killed: nothing keeps zeros away, and nothing kills the process."""
    worker, running, pager = run_without_its_memory(lab, nodes, migrations)
    [guard] = nodes.target.run(["pgrep", "-f", GUARD]).stdout.split()
    for victim in (guard, pager):
        nodes.target.signal(victim, signal.SIGKILL)
        nodes.target.await_end(victim)
    assert running.wait().code in (LOST, OPEN)
    error = migrations.records("target")[-1]["trees"][0]["lost"]
    assert "MEMORY LOST" in error and "it may have read zeros" in error, error
    assert "was killed, because" not in error
    assert not nodes.target.alive(worker.pid), "it goes on with wrong memory"
    nodes.source.await_end(worker.pid)


def test_loss_is_noticed_without_supervisor_and_guard(lab, nodes, migrations):
    worker, running, pager = run_without_its_memory(lab, nodes, migrations)
    [supervisor] = nodes.target.run(["pgrep", "-f", SUPERVISOR]).stdout.split()
    [guard] = nodes.target.run(["pgrep", "-f", GUARD]).stdout.split()
    for victim in (supervisor, guard, pager):
        nodes.target.signal(victim, signal.SIGKILL)
    running.wait()
    migrations.recover("target", check=False)
    wait_until(
        lambda: "it may have read zeros" in migrations.records("target")[-1]["trees"][0]["lost"],
        20,
        "the loss to be recorded",
    )
    nodes.target.await_end(worker.pid)


def signals_of(node, pid):
    text = node.read_text(f"/proc/{pid}/status")
    return [line for line in text.splitlines() if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]


def test_move_survives_signals_to_all_its_processes(lab, nodes, migrations):
    """Only `ppmr migrate` ends at a signal. CRIU must not die in a dump, which could end the
    process."""
    [worker] = start_workers(lab, nodes, 1)
    before = signals_of(nodes.source, worker.pid)
    nodes.link.limit("20mbit")  # the page reader lives until the link has carried the memory
    running = migrations.start_migrate(
        worker.pid,
        options=["--stop-and-copy"],
        environment=pause_at(lab, "source:frozen source:sealed"),
    )
    migrations.wait_until_paused("source", "frozen", running)
    send_to_all(nodes.source, (RELAY, CRIU, PAGE_READER), ENDING_SIGNALS)
    nodes.link.limit()
    migrations.go_on("source", "frozen")
    migrations.wait_until_paused("source", "sealed", running)
    wait_until(
        lambda: migrations.records("target")[0]["state"] == "ready", 10, "the target to be ready"
    )
    send_to_all(nodes.source, (RELAY, CRIU), ENDING_SIGNALS)
    send_to_all(nodes.target, (RELAY, CRIU, SUPERVISOR, PAGER, GUARD), ENDING_SIGNALS)
    migrations.go_on("source", "sealed")
    running.wait().ok()
    assert signals_of(nodes.target, worker.pid) == before
    check_all_memory(worker, nodes)


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
    assert migrations.records("target")[-1]["trees"][0]["lost"] == ""
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
