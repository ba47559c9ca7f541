"""Live moves between two machines, over RDMA. Their kernels track written memory with soft-dirty
bits, unlike newer ones."""
import itertools
import signal

import pytest
from test_sharing import CHILDREN, PREFORK, SIZE_MIB, digest_of

from lab.memory import anonymous_mib
from lab.migrations import Migrations
from lab.node import wait_until
from lab.programs import Program, SteadyWorker, check_continuity, gap_between

MIB = 1 << 20
ABORTED, OPEN = 11, 12
DEBIANS_CRIU = "/usr/sbin/criu"
_numbers = itertools.count(1)

MODES = pytest.mark.parametrize("mode", [[], ["--post-copy"]], ids=["default", "post-copy"])
MODES_RARELY = pytest.mark.parametrize(
    "mode",
    [[], pytest.param(["--post-copy"], marks=pytest.mark.long)],
    ids=["default", "post-copy"],
)


@pytest.fixture
def make_migrations(ppmr, machines):
    made = []

    def make(environment=None):
        number = next(_numbers)
        migrations = Migrations(
            machines.a,
            machines.b,
            f"/tmp/live-{number}",
            ["--pool-size", "16MiB", "--transport", "verbs"],
            ["--memory-limit", "512MiB", "--pool-size", "192MiB"],
            name=f"live{number}",
            environment=environment,
        )
        made.append(migrations)
        migrations.await_ready()
        return migrations

    yield make
    for migrations in made:
        migrations.close()


@pytest.fixture
def migrations(make_migrations):
    return make_migrations()


@pytest.fixture
def directory(machines):
    directory = machines.home / f"live-{next(_numbers)}"
    yield directory
    # Processes that a failed test has left would occupy the pids of the next test.
    for node in machines.nodes:
        node.run(["pkill", "-KILL", "-f", f"{directory}\\b"], check=False)


def events(done, what):
    return [event for event in done.events if event.get("event") == what]


def start_worker(machines, directory, **options):
    worker = SteadyWorker(machines.a, directory, threads=2, **options)
    worker.wait_for_lines(10)
    return worker


def end(node, *pids):
    for pid in map(int, pids):
        node.signal(pid, signal.SIGKILL)
    for pid in map(int, pids):
        node.await_end(pid)


def pager_log(node, migrations):
    logs = f"{migrations.states['target']}/*.target/work-*/pager.log"
    return node.run(["sh", "-c", f"cat {logs}"]).stdout


def check_served_lazily(machines, migrations):
    log = pager_log(machines.b, migrations)
    assert "served " in log and "are restored before" not in log, log


def check_audit(worker):
    audit = worker.audit()
    assert (
        audit["wrong_words"] == 0 and audit["digest"] == audit["expected"]
    ), "a page is not as it was last written"


def check_moved(machines, worker):
    """Checks that every page has the value last written, and that every line follows the previous
    line.
    """
    worker.node = machines.b
    worker.wait_for_lines(30, machines.b)
    gap_between(worker.lines(), *machines.nodes)
    check_continuity(worker.lines())
    check_audit(worker)


@MODES
def test_only_pages_written_since_the_rounds_are_sent_and_no_write_is_lost(
    machines, migrations, directory, mode
):
    size_mib = 96
    # 0.4 % of the pages per second, which is little even if the first round takes half a minute.
    worker = start_worker(machines, directory, size_mib=size_mib, pages_per_s=100)
    done = migrations.migrate(worker.pid, timeout=180, options=mode).ok()
    rounds = events(done, "copied")
    assert [entry["round"] for entry in rounds] == list(range(len(rounds)))
    assert rounds[0]["bytes"] >= size_mib * MIB
    for entry in rounds[1:]:
        assert entry["bytes"] < size_mib * MIB / 4, "a later round copied as much as the first"
    tree = done.summary["trees"][0]
    assert (tree["lazily"], tree["post_copy"]) == (True, "--post-copy" in mode)
    rest = tree["bytes"] - sum(entry["bytes"] for entry in rounds)
    assert 0 < rest < size_mib * MIB / 4, "more than what was written since was sent"
    assert migrations.target.status()["rdma"]["bytes_read"] >= 0.9 * tree["bytes"]
    check_moved(machines, worker)
    end(worker.node, worker.pid)
    assert machines.b.run(["ls", migrations.in_]).stdout == ""
    check_served_lazily(machines, migrations)


def move_changing_memory(machines, migrations, directory, mode):
    changer = Program(machines.a, "memory_changer", [directory, 32, 100], directory)
    changer.wait_for_lines(100)
    done = migrations.migrate(changer.pid, timeout=180, options=mode).ok()
    assert events(done, "copied")
    changer.node = machines.b
    # So that each mapping is checked several times.
    changer.wait_for_lines(500, machines.b, timeout=60)
    lines = changer.lines()
    gap_between(lines, *machines.nodes)
    assert [line["line"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[-1]["wrong"] == 0, "a page is lost, or as it was in a round"
    end(changer.node, changer.pid)
    check_served_lazily(machines, migrations)


# During the rounds the process writes, unmaps, moves and returns pages, and forks.
@MODES_RARELY
def test_memory_that_changes_during_the_rounds_has_its_last_values(
    machines, migrations, directory, mode
):
    move_changing_memory(machines, migrations, directory, mode)


@pytest.mark.long
@MODES
def test_live_move_works_with_criu_of_debian(machines, make_migrations, directory, mode):
    if not machines.a.exists(DEBIANS_CRIU):
        pytest.skip(f"no {DEBIANS_CRIU}: run third_party/install")
    migrations = make_migrations({"PPMR_CRIU": DEBIANS_CRIU})
    move_changing_memory(machines, migrations, directory, mode)


@MODES_RARELY
def test_processes_share_the_memory_that_rounds_have_sent(machines, migrations, directory, mode):
    directory.mkdir()
    pid = machines.a.spawn(["/usr/bin/python3", "-c", PREFORK, directory])
    wait_until(
        lambda: len(list(directory.glob("ready*"))) == CHILDREN + 1, 60, "the children to start"
    )
    before_mib = anonymous_mib(machines.a, directory)
    assert before_mib < 2 * SIZE_MIB
    done = migrations.migrate(pid, timeout=180, options=mode).ok()
    assert events(done, "copied")
    assert anonymous_mib(machines.b, directory) < 1.15 * before_mib
    (directory / "check").touch()
    for number in range(CHILDREN + 1):
        digest = directory / f"digest{number}"
        wait_until(digest.exists, 60, f"the digest of process {number}")
        assert digest.read_text() == digest_of(number)
    end(machines.b, *machines.b.run(["pgrep", "-f", directory]).stdout.split())


@MODES_RARELY
def test_process_that_writes_nothing_moves(machines, migrations, mode):
    pid = machines.a.spawn(["sleep", "1000"])
    done = migrations.migrate(pid, options=mode).ok()
    assert done.summary["trees"][0]["lazily"]
    assert machines.b.alive(pid) and not machines.a.alive(pid)
    end(machines.b, pid)


# As without rounds, the pager has all memory from the vote on.
@pytest.mark.long
def test_no_page_of_a_round_is_lost_when_the_daemon_of_the_target_is_killed(
    machines, migrations, directory
):
    worker = start_worker(machines, directory, size_mib=192, pages_per_s=200)
    running = migrations.start_migrate(worker.pid, options=["--timeout", "15s"])
    worker.wait_for_lines(1, machines.b, timeout=60)
    migrations.target.kill()
    pager = machines.b.run(["pgrep", "-f", "serve-pages"], check=False).stdout
    assert pager, "all pages were in place before the kill: nothing is tested"
    check_moved(machines, worker)
    end(worker.node, worker.pid)
    # Without the daemon, the coordinator gets no reply from the target.
    assert running.wait(60).code == OPEN


def await_transfer(migrations, mib):
    """Waits until more than this many bytes have arrived, which shows that the first round is in
    progress.
    """
    wait_until(
        lambda: migrations.target.status()["store"]["used_bytes"] > mib * MIB,
        60,
        "the first round to transfer",
        interval=0.02,
    )


def take_pid(node, pid):
    """Starts a process with this pid."""
    script = f"echo {pid - 1} >/proc/sys/kernel/ns_last_pid; sleep 1000 >/dev/null 2>&1 & echo $!"
    wait_until(
        lambda: node.run(["sh", "-c", script]).stdout.strip() == str(pid), 20, f"pid {pid}", 0.01
    )


# The rounds have reset the marks of written pages: the next migration begins anew.
@pytest.mark.long
def test_process_moves_after_an_aborted_live_move(machines, migrations, directory):
    worker = start_worker(machines, directory, size_mib=32, pages_per_s=200)
    running = migrations.start_migrate(worker.pid)
    await_transfer(migrations, 4)
    take_pid(machines.b, worker.pid)
    machines.b.keep_helpers_low()
    done = running.wait(120)
    assert done.code == ABORTED, done.output
    assert events(done, "sealed"), "the last dump was not complete"
    worker.wait_for_lines(30, machines.a)
    check_audit(worker)
    end(machines.b, worker.pid)
    migrations.migrate(worker.pid, timeout=120).ok()
    check_moved(machines, worker)
    end(worker.node, worker.pid)


@pytest.mark.long
def test_failed_link_during_a_round_keeps_process_at_source(machines, migrations, directory):
    worker = start_worker(machines, directory, size_mib=96, pages_per_s=1000)
    running = migrations.start_migrate(worker.pid)
    await_transfer(migrations, 8)
    machines.cut_link()
    try:
        done = running.wait(180)
    finally:
        machines.restore_link()
    assert done.code == ABORTED, done.output
    worker.wait_for_lines(30, machines.a)
    check_continuity(worker.lines())
    check_audit(worker)
    end(worker.node, worker.pid)
    assert {line["node"] for line in worker.lines()} == {machines.a.name}


@pytest.mark.long
def test_evacuate_is_live(machines, migrations, directory):
    workers = [
        start_worker(machines, directory / str(number), size_mib=16, pages_per_s=100)
        for number in range(2)
    ]
    options = ["--post-copy", "--match", f"steady_worker {directory}"]
    done = migrations.evacuate(*options, timeout=180).ok()
    assert [tree["post_copy"] for tree in done.summary["trees"]] == [True, True]
    for worker in workers:
        check_moved(machines, worker)
        end(worker.node, worker.pid)
