"""Processes that use RDMA themselves release it for the move, and resume it where they run
afterwards."""
import signal

import pytest

from lab.node import wait_until
from lab.programs import Program
from lab.tracking import tracks_writes

MOVED, ABORTED = 0, 11
DEVICE = "/dev/infiniband/uverbs0"
SKIP_WITHOUT_ROUNDS = pytest.mark.skipif(
    not tracks_writes(), reason="NOT TESTED: rounds: this kernel does not track writes"
)
# Gives the node a directory /dev of its own. In it the device of FUSE stands for a device of RDMA:
# CRIU cannot dump either of them.
OWN_DEVICES = f"""
mkdir /run/dev && mount -t tmpfs none /run/dev && mkdir -p /run/dev/infiniband /run/dev/shm /run/dev/pts
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx /dev/net /dev/fuse /run/dev
mount --rbind /dev/shm /run/dev/shm
mount --rbind /dev/pts /run/dev/pts
mount --rbind /run/dev /dev
mknod {DEVICE} c 10 229
"""


@pytest.fixture
def pauses(lab):
    """A file with the states at which migrations pause."""
    path = lab.directory / "pauses"
    path.touch()
    return path


@pytest.fixture
def migrations(nodes, make_migrations, pauses):
    for node in (nodes.source, nodes.target):
        node.run(["sh", "-ec", OWN_DEVICES])
    return make_migrations(environment={"PPMR_PAUSE_FILE": str(pauses)})


@pytest.fixture
def start(lab, migrations):
    users = []

    def start_user(behaviour=""):
        directory = lab.home / f"user{len(users)}"
        arguments = [directory, DEVICE, *([behaviour] if behaviour else [])]
        users.append(Program(migrations.source_at, "rdma_user", arguments, directory))
        users[-1].wait_for_lines(2)
        return users[-1]

    yield start_user
    for user in users:
        for node in (migrations.source_at, migrations.target_at):
            node.signal(user.pid, signal.SIGKILL)


def await_line(user, node, **wanted):
    def there():
        lines = [line for line in user.lines() if line["node"] == node.name]
        return lines and wanted.items() <= lines[-1].items()

    wait_until(there, 20, f"a line of {node.name} with {wanted}")


def check_stayed(migrations, user, done, reason, **wanted):
    assert done.code == ABORTED and reason in done.output, done.output
    await_line(user, migrations.source_at, device=1, **wanted)
    assert {line["node"] for line in user.lines()} == {migrations.source_at.name}


@pytest.mark.parametrize("options", [[], ["--eager"]], ids=["lazy", "eager"])
def test_process_releases_its_device_and_resumes_at_the_target(migrations, start, options):
    user = start()
    done = migrations.migrate(user.pid, options=options).ok()
    await_line(user, migrations.target_at, device=1, releases=1, resumes=1)
    [released] = [event for event in done.events if event["event"] == "rdma-released"]
    assert released["processes"] == 1
    [warning] = [event for event in done.events if event["event"] == "finding"]
    assert DEVICE in warning["sentence"] and not warning["stops"]


def test_every_process_of_a_tree_gets_the_request(migrations, start):
    user = start("children=3")
    done = migrations.migrate(user.pid).ok()
    await_line(user, migrations.target_at, device=1, releases=4, resumes=4)
    assert [e["processes"] for e in done.events if e["event"] == "rdma-released"] == [4]


def test_dry_run_warns_and_sends_no_request(migrations, start):
    user = start()
    done = migrations.migrate(user.pid, options=["--dry-run"])
    assert done.code == MOVED and "to release it before the dump" in done.output
    user.wait_for_lines(2)
    assert user.lines()[-1]["releases"] == 0


@pytest.mark.parametrize("options", [[], ["--dry-run"]], ids=["move", "dry run"])
def test_hindrance_that_a_process_knows_of_is_a_finding(migrations, start, options):
    user = start("hindered")
    done = migrations.migrate(user.pid, options=options)
    assert done.code == ABORTED, done.output
    assert "cannot release RDMA: a peer is deaf" in done.output
    user.wait_for_lines(2)
    assert user.lines()[-1]["releases"] == 0


@SKIP_WITHOUT_ROUNDS
def test_process_is_copied_in_rounds_and_released_after_them(migrations, start):
    user = start("shows")
    done = migrations.migrate(user.pid).ok()
    await_line(user, migrations.target_at, device=1, releases=1, resumes=1)
    order = [event["event"] for event in done.events]
    assert "copied" in order and order.index("rdma-released") > order.index("copied"), order


@SKIP_WITHOUT_ROUNDS
def test_refusal_after_the_rounds_leaves_the_process_as_it_was(migrations, start):
    user = start("shows-refuse")
    done = migrations.migrate(user.pid)
    assert done.code == ABORTED and "a transfer cannot be interrupted" in done.output, done.output
    assert "copied" in [event["event"] for event in done.events]
    await_line(user, migrations.source_at, device=1, releases=1)


@SKIP_WITHOUT_ROUNDS
def test_dry_run_expects_rounds_of_a_process_that_is_released_after_them(migrations, start):
    done = migrations.migrate(start("shows").pid, options=["--dry-run"]).ok()
    (move,) = next(event for event in done.events if event["event"] == "estimate")["moves"]
    assert not move["why_frozen"] and move["rounds"] >= 1, move


def test_process_that_did_not_register_stays_and_the_message_has_the_remedy(migrations):
    source = migrations.source_at
    pid = source.spawn(["sh", "-c", f"exec sleep 1000 3<>{DEVICE}"])
    wait_until(lambda: "sleep" in source.read_text(f"/proc/{pid}/comm"), 10, "the device's user")
    done = migrations.migrate(pid)
    assert done.code == ABORTED
    assert "OMPI_MCA_pml=ob1" in done.output and source.alive(pid), done.output
    source.signal(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "behaviour, reason, resumes",
    [
        ("refuse", "a transfer cannot be interrupted", 0),
        ("silent", "does not release its RDMA devices", 0),
        ("keep", f"still uses {DEVICE}", 1),
    ],
)
def test_process_that_does_not_release_stays(migrations, start, behaviour, reason, resumes):
    user = start(behaviour)
    options = ["--release-timeout", "0.5"] if behaviour == "silent" else []
    done = migrations.migrate(user.pid, options=options)
    check_stayed(migrations, user, done, reason, resumes=resumes)


def test_process_resumes_after_an_abort(migrations, start, pauses):
    user = start()
    pauses.write_text("source:sealed")
    running = migrations.start_migrate(user.pid)
    migrations.wait_until_paused("source", "sealed", running)
    migrations.target_at.signal_process(migrations.target.process, signal.SIGKILL)
    migrations.go_on("source", "sealed")
    check_stayed(migrations, user, running.wait(), "target", releases=1, resumes=1)


def test_process_resumes_if_the_coordinator_is_killed(migrations, start, pauses):
    user = start()
    pauses.write_text("source:sealed")
    running = migrations.start_migrate(user.pid)
    migrations.wait_until_paused("source", "sealed", running)
    running.kill()
    migrations.go_on("source", "sealed")
    await_line(user, migrations.source_at, device=1, releases=1, resumes=1)
    pauses.write_text("")
    migrations.recover()
    migrations.migrate(user.pid).ok()
    await_line(user, migrations.target_at, device=1, releases=2)


def test_original_and_copy_resume(migrations, start):
    user = start()
    migrations.migrate(user.pid, options=["--leave-running"]).ok()
    for node in (migrations.source_at, migrations.target_at):
        await_line(user, node, device=1, resumes=1)
