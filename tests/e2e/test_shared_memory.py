"""Shared memory is copied while the processes run, and CRIU leaves it out of its images."""
import pytest

from lab.checker import SHARED_CHECKER, Checker
from lab.workers import pause_at

MIB = 1 << 20


@pytest.fixture
def checker(lab, nodes):
    checker = Checker(lab, nodes, mib=32, program=SHARED_CHECKER)
    yield checker
    checker.end()


def filled_at_target(migrations):
    """The lines of the list of memories that were filled for CRIU."""
    words = ["sh", "-c", f"cat {migrations.states['target']}/*/work-0/memory-apart"]
    return migrations.target_at.run(words).stdout.splitlines()


@pytest.mark.parametrize(
    "options",
    [[], ["--stop-and-copy"], ["--eager"], ["--post-copy"]],
    ids=["live", "stop-and-copy", "eager", "post-copy"],
)
def test_shared_memory_is_right_to_the_byte(nodes, migrations, checker, options):
    done = migrations.migrate(checker.pid, options=options).ok()
    assert len(filled_at_target(migrations)) == 2
    rounds = [event["bytes"] for event in done.events if event["event"] == "files_copied"]
    assert rounds[0] == 2 * 32 * MIB
    assert done.summary["trees"][0]["bytes"] > 2 * 32 * MIB
    checker.check_runs_at(nodes.target)


def test_shared_memory_that_no_process_writes_arrives(lab, nodes, migrations):
    checker = Checker(lab, nodes, mib=4, program=SHARED_CHECKER, options=["--idle"])
    migrations.migrate(checker.pid).ok()
    checker.check_runs_at(nodes.target)
    checker.end()


def test_restore_that_is_repeated_gets_the_same_memory(lab, nodes, make_migrations):
    migrations = make_migrations(environment=pause_at(lab, "target:ready"))
    checker = Checker(lab, nodes, mib=32, program=SHARED_CHECKER)
    running = migrations.start_migrate(checker.pid)
    migrations.wait_until_paused("target", "ready", running)
    nodes.target.run(
        ["pkill", "-KILL", "-f", "^ppmr migration-restore|^criu: restore|migration-relay"]
    )
    migrations.go_on("target", "ready")
    running.wait().ok()
    checker.check_runs_at(nodes.target)
    checker.end()


def test_rehearsal_of_a_process_with_shared_memory_succeeds(nodes, migrations, checker):
    migrations.migrate(checker.pid, options=["--rehearse"]).ok()
    checker.check_runs_at(nodes.source)
