"""Interrupted migrations come to their end without a person: these tests do not run --recover."""
import json
import shlex
import signal

import pytest

from lab.criu import criu_that
from lab.node import wait_until
from lab.ppmr import find_ppmr
from lab.workers import check_moved, check_stayed, pause_at, start_workers

# A settler starts every 20 s.
SETTLED = 45


@pytest.fixture
def settling(lab, make_migrations):
    return lambda states: make_migrations(settles=True, environment=pause_at(lab, states))


def states(migrations):
    return [migrations.records(role)[0]["state"] for role in ("source", "target")]


def move_until(state, settling, lab, nodes):
    """Starts the move of a worker, whose coordinator stops before it leaves the state."""
    migrations = settling(f"source:{state}")
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid)
    migrations.wait_until_paused("source", state, running)
    return migrations, worker, running


def kill_programs(node, names, others):
    """Stops the named programs first, so that none does anything about the end of another."""
    node.run(["pkill", "-STOP", "-f", names])
    node.run(["pkill", "-KILL", "-f", f"{names}|{others}"])


def kill_programs_of_source(nodes):
    kill_programs(nodes.source, "ppmr migrate |migration-relay", "criu")


SUPERVISORS = "migration-restore|migration-relay"


def kill_programs_of_target(nodes):
    kill_programs(nodes.target, SUPERVISORS, "serve-pages|criu")


def restart_in_record(node, migrations, role):
    """Gives the record the boot ID of an earlier boot, as after a restart of the node."""
    record = migrations.records(role)[0]
    version = migrations.states[role] / f"{record['id']}.{role}" / f"{record['version'] + 1}.json"
    node.host_path(version).write_text(json.dumps({**record, "boot_id": "another boot"}))


def wait_for_ready_target(migrations):
    wait_until(
        lambda: migrations.records("target")[0]["state"] == "ready", 20, "the target to be ready"
    )


def test_daemon_aborts_what_a_killed_coordinator_has_left(nodes, lab, settling):
    migrations, worker, running = move_until("dumping", settling, lab, nodes)
    running.kill()
    wait_until(lambda: states(migrations) == ["aborted"] * 2, SETTLED, "both nodes to abort")
    worker.wait_for_lines(3, nodes.source)
    record = migrations.records("source")[0]
    assert record["peer_notified"] and record["tasks_resumed"]
    worker.end()


def test_coordinator_killed_in_a_round_leaves_no_memory_at_either_node(
    nodes, lab, make_migrations
):
    migrations = make_migrations(settles=True)
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid, options=["--max-rate", "1M"])
    wait_until(lambda: nodes.target.names(migrations.in_), 20, "memory at the target")
    running.kill()
    for node, mount in ((nodes.target, migrations.in_), (nodes.source, migrations.out)):
        wait_until(lambda: not node.names(mount), SETTLED, f"no checkpoint in {mount}")
    worker.wait_for_lines(3, nodes.source)
    worker.end()


def test_daemon_finishes_a_decided_move_without_any_program_of_the_move(nodes, lab, settling):
    migrations, worker, running = move_until("committed", settling, lab, nodes)
    kill_programs_of_source(nodes)
    wait_until(lambda: states(migrations) == ["finished"] * 2, SETTLED, "both nodes to finish")
    check_moved(worker, nodes)
    worker.end()


@pytest.mark.parametrize(
    ("state", "role", "ends"),
    [("committed", "target", ["finished"] * 2), ("sealed", "source", ["aborted"] * 2)],
)
def test_renamed_source_settles_at_another_address_with_another_key(
    nodes, lab, settling, state, role, ends
):
    """Another host name is another identity of the source, if its key is shared."""
    migrations, worker, running = move_until(state, settling, lab, nodes)
    wait_for_ready_target(migrations)
    kill_programs_of_source(nodes)
    nodes.source.run(["hostname", "renamed"])
    migrations.renew_elsewhere()
    wait_until(lambda: states(migrations) == ends, SETTLED, f"both nodes to be {ends}")
    worker.node = migrations.node(role)
    worker.wait_for_lines(10)
    assert worker.node.alive(worker.pid)
    worker.end()


def test_restarted_source_hands_over_to_a_target_that_is_ready(nodes, lab, settling):
    """The boot ID in the record is that of an earlier boot, as after a restart of the node."""
    migrations, worker, running = move_until("sealed", settling, lab, nodes)
    wait_for_ready_target(migrations)
    kill_programs_of_source(nodes)
    nodes.source.signal(worker.pid, signal.SIGKILL)
    assert migrations.records("source")[0]["state"] == "sealed"
    restart_in_record(nodes.source, migrations, "source")
    wait_until(lambda: states(migrations) == ["finished"] * 2, SETTLED, "both nodes to finish")
    check_moved(worker, nodes)
    worker.end()


def test_restarted_target_is_reported_to_have_lost_its_copy(nodes, lab, settling):
    """The target restarts after the decision: the source must not say that the process moved."""
    migrations, worker, running = move_until("committed", settling, lab, nodes)
    kill_programs_of_target(nodes)
    restart_in_record(nodes.target, migrations, "target")
    migrations.go_on("source", "committed")
    done = running.wait(90)
    assert done.code == 10 and "LOST" in done.output, done.output
    source = migrations.records("source")[0]
    assert source["trees"][0]["lost"], source
    worker.end()


def test_operator_lets_a_copy_run_whose_source_is_lost_for_good(nodes, lab, settling):
    migrations, worker, running = move_until("sealed", settling, lab, nodes)
    wait_for_ready_target(migrations)
    kill_programs(nodes.source, "ppmr", "criu")  # the daemon and its settler, too
    nodes.source.signal(worker.pid, signal.SIGKILL)
    identity = migrations.records("target")[0]["id"]

    def resolve(typed, *options):
        words = [find_ppmr(), "migrate", "--resolve", identity, *options]
        words += ["--state-dir", str(migrations.states["target"])]
        shell = f"printf '%s\\n' '{typed}' | {shlex.join(map(str, words))} 2>&1"
        return nodes.target.run(["sh", "-c", shell], check=False)

    name = nodes.source.name
    wrong = resolve("another", "--run-here")
    assert wrong.returncode != 0 and "nothing was changed" in wrong.stdout, wrong.stdout
    alive = resolve(name, "--run-here", "--fence", "exit 3")
    assert alive.returncode != 0 and "may be alive" in alive.stdout, alive.stdout
    assert migrations.records("target")[0]["state"] == "ready"
    resolved = resolve(name, "--run-here", "--fence", "true")
    assert resolved.returncode == 0 and "run twice" in resolved.stdout, resolved.stdout
    check_moved(worker, nodes)
    again = resolve(name, "--discard")
    assert again.returncode != 0, "it runs"
    worker.end()


@pytest.mark.parametrize("state", ["finished", "aborted"])
def test_memory_of_a_killed_supervisor_is_freed_when_its_move_is_over(nodes, lab, settling, state):
    """The supervisor dies after the record's last state, and before it removes the checkpoints."""
    held = {"finished": "target:finished", "aborted": "source:sealed target:aborted"}
    migrations = settling(held[state])
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid)
    if state == "aborted":
        migrations.wait_until_paused("source", "sealed", running)
        wait_for_ready_target(migrations)
        # The agent may write the state, and the supervisor would end when it reads it.
        nodes.target.run(["pkill", "-STOP", "-f", SUPERVISORS])
        running.signal(signal.SIGINT)
        migrations.go_on("source", "sealed")
    migrations.wait_until_paused("target", state)
    kill_programs_of_target(nodes)
    migrations.go_on("target", state)
    assert migrations.target_at.names(migrations.in_) != [], "nothing was left to remove"
    wait_until(
        lambda: migrations.target_at.names(migrations.in_) == [], SETTLED, "the checkpoints to go"
    )
    worker.end()


def child_of(worker):
    return worker.lines()[-1]["child"]


@pytest.mark.parametrize("which", ["root", "child"])
def test_restored_process_that_is_killed_before_it_runs_is_restored_again(
    nodes, lab, settling, which
):
    """CRIU would wait for it without an end."""
    migrations, worker, running = move_until("committed", settling, lab, nodes)
    wait_for_ready_target(migrations)
    nodes.target.signal(worker.pid if which == "root" else child_of(worker), signal.SIGKILL)
    migrations.go_on("source", "committed")
    running.wait(90).ok()
    check_moved(worker, nodes)
    worker.end()


@pytest.mark.parametrize("which", ["root", "child"])
def test_restored_process_that_is_killed_after_its_hook_is_restored_again(
    nodes, lab, settling, which
):
    """After its hook has ended, CRIU does not notice the death of a restored process."""
    migrations, worker, running = move_until("committed", settling, lab, nodes)
    wait_for_ready_target(migrations)
    tree = migrations.records("target")[0]["trees"][0]
    criu = tree["criu"][0]
    nodes.target.signal(criu, signal.SIGSTOP)
    migrations.go_on("source", "committed")
    works = nodes.target.host_path(migrations.states["target"])
    wait_until(lambda: list(works.glob("*.target/work-0/let-go")), 20, "the hook to let CRIU go on")
    nodes.target.signal(worker.pid if which == "root" else child_of(worker), signal.SIGKILL)
    nodes.target.signal(criu, signal.SIGCONT)
    running.wait(60).ok()
    check_moved(worker, nodes)
    worker.end()


def test_child_that_is_killed_while_memory_arrives_aborts_the_move(nodes, lab, migrations):
    """The target must not vote for a tree that lacks a process."""
    [worker] = start_workers(lab, nodes, 1)
    child = child_of(worker)
    nodes.link.limit("16mbit")  # the memory takes eight seconds
    running = migrations.start_migrate(worker.pid, options=["--stop-and-copy"])

    guard = ["pgrep", "-f", "guard-pages"]  # the relay starts it, then its hook
    wait_until(
        lambda: nodes.target.run(guard, check=False).stdout, 20, "CRIU to ask its hook"
    )
    nodes.target.signal(child, signal.SIGKILL)
    done = running.wait(60)
    nodes.link.limit()
    assert done.code == 11 and "was killed before it ran" in done.output, done.output
    check_stayed(worker, nodes)
    worker.end()


def test_second_restore_may_take_longer_than_the_death_of_the_first(
    nodes, lab, make_migrations, tmp_path
):
    """The processes of the first restore are dead; the second one is not judged by them."""
    first = tmp_path / "first"
    slowly = f"[ ! -e {first} ] || sleep 6"
    environment = pause_at(lab, "source:committed")
    migrations = make_migrations(
        settles=True, environment={**environment, "PPMR_CRIU": str(criu_that(tmp_path, slowly))}
    )
    [worker] = start_workers(lab, nodes, 1)
    running = migrations.start_migrate(worker.pid)
    migrations.wait_until_paused("source", "committed", running)
    wait_for_ready_target(migrations)
    first.touch()
    nodes.target.signal(worker.pid, signal.SIGKILL)
    migrations.go_on("source", "committed")
    running.wait(60).ok()
    check_moved(worker, nodes)
    worker.end()


def test_interruption_after_the_decision_is_answered_and_ends_nothing(nodes, lab, settling):
    migrations, worker, running = move_until("committed", settling, lab, nodes)
    wait_for_ready_target(migrations)
    nodes.link.set_up(False)
    migrations.go_on("source", "committed")
    nodes.source.await_end(worker.pid)
    running.signal(signal.SIGINT)

    def answered():
        return [event for event in running.events() if "interrupted after" in str(event)]

    wait_until(answered, 30, "an answer to the interruption")
    nodes.link.set_up(True)
    running.wait(90)
    wait_until(lambda: states(migrations) == ["finished"] * 2, SETTLED, "both nodes to finish")
    check_moved(worker, nodes)
    worker.end()
