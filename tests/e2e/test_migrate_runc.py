"""`ppmr migrate --runc`: a container of runc's moves with one command, and whatever goes wrong, exactly one copy runs."""
import json
import signal
import subprocess

import pytest

from lab.containers import Counter, make_bundle
from lab.criu import find_criu
from lab.migrate import MigrationWorld
from lab.node import wait_until
from lab.programs import SteadyWorker, check_continuity
from lab.readme import run_section

MOVED, ABORTED, USAGE = 0, 11, 2


@pytest.fixture
def world(own_cgroup, lab, nodes, need_command, pauses):
    need_command("runc")
    with MigrationWorld(
        nodes.source,
        nodes.target,
        lab.directory / "private",
        target_options=["--pool-size", "64MiB"],
        environment={"PPMR_PAUSE_FILE": str(pauses)},
    ) as world:
        yield world


class Job:
    """A container named job that counts, on the source."""

    def __init__(self, lab, world, root, cgroup, directory=None, change=lambda config: None):
        self.world, self.name = world, "job"
        data = lab.home / "data"
        data.mkdir()
        self.bundle = directory or lab.home / "bundle"
        make_bundle(world.source, self.bundle, root, data, cgroup)
        config = world.source.host_path(self.bundle / "config.json")
        changed = json.loads(config.read_text())
        change(changed)
        config.write_text(json.dumps(changed))
        self.counter = Counter(data)
        world.source.run(
            ["sh", "-c", f"runc run --detach --bundle {self.bundle} job </dev/null >/dev/null 2>&1"]
        )
        self.counter.wait_for(20)

    def at(self, node):
        """What runc knows of it on a node; None: nothing."""
        # Not by `runc list`, which fails while runc removes any of them.
        done = node.run(["runc", "state", self.name], check=False)
        if done.returncode != 0:
            assert "does not exist" in done.stderr, done.stderr
            return None
        return json.loads(done.stdout)

    def check_runs(self, node, other):
        assert self.at(node)["status"] == "running"
        wait_until(
            lambda: self.at(other) is None, 10, f"runc on {other.name} to forget the container"
        )
        assert node.alive(self.at(node)["pid"])
        self.counter.wait_for(20)
        self.counter.check()

    def check_moved(self):
        self.check_runs(self.world.target, self.world.source)

    def check_stayed(self):
        self.check_runs(self.world.source, self.world.target)

    def remove(self):
        for node in (self.world.source, self.world.target):
            node.run(["runc", "delete", "--force", self.name], check=False)


@pytest.fixture
def start(lab, world, root_file_system, own_cgroup):
    jobs = []

    def start_job(**options):
        jobs.append(Job(lab, world, root_file_system, own_cgroup, **options))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.remove()


@pytest.fixture
def pauses(lab):
    """The states at which a migration stops; see MIGRATION.md."""
    path = lab.directory / "pauses"
    path.touch()
    return path


def migrate(world, *options, **more):
    return world.migrate(options=["--runc", "job", *options], **more)


def start_migrate(world):
    return world.start_migrate(options=["--runc", "job"])


def states(world):
    return {world.records(role)[-1]["state"] for role in ("source", "target")}


def check_clean_retry(world, job, pauses):
    wait_until(
        lambda: world.target.run(["ls", world.mounts.in_]).stdout == "",
        10,
        "the checkpoint to be removed",
    )
    pauses.write_text("")
    migrate(world).ok()
    job.check_moved()


def check_one_runs(world, job, done, pauses):
    if done.code == MOVED:
        job.check_moved()
    else:
        assert done.code == ABORTED, done.said
        job.check_stayed()
        check_clean_retry(world, job, pauses)


@pytest.mark.parametrize("options", [[], ["--eager"]], ids=["lazily", "eagerly"])
def test_a_container_moves_and_is_known_to_runc_over_there(world, start, options):
    job = start()
    done = migrate(world, *options).ok()
    job.check_moved()
    tree = done.summary["trees"][0]
    assert (tree["result"], tree["name"], tree["lazily"]) == ("moved", "job", options == [])
    for role in ("source", "target"):
        record = world.records(role)[-1]
        assert (record["state"], record["owner"]) == ("finished", "target")
    # runc there can do with it what it does with its own.
    inside = world.target.run(
        ["runc", "exec", "job", "sh", "-c", "echo $$; busybox tail -n 1 /data/lines"]
    ).stdout.split()
    assert int(inside[1]) > 20
    world.target.run(["runc", "kill", "job", "KILL"])
    wait_until(lambda: job.at(world.target)["status"] == "stopped", 10, "the container to end")
    world.target.run(["runc", "delete", "job"])


def test_the_command_of_the_readme(world, start):
    world.source.run(["mount", "-t", "tmpfs", "none", "/var/lib"])  # the records: a node's own here
    job = start()
    run_section(world.mounts, "Move a container of runc's")
    job.check_moved()


@pytest.mark.parametrize("state", ["dumping", "frozen"])
def test_interrupted_before_the_decision_it_goes_on_where_it_was(world, start, pauses, state):
    job = start()
    pauses.write_text(f"source:{state}")
    running = start_migrate(world)
    world.wait_until_paused("source", state, running)
    running.signal(signal.SIGINT)
    world.go_on("source", state)
    check_one_runs(world, job, running.wait(), pauses)


# A ready target alone would not keep the coordinator from its decision.
@pytest.mark.parametrize(
    "states_reached", [[("source", "sealed")], [("source", "sealed"), ("target", "ready")]]
)
def test_a_coordinator_that_is_killed_before_the_decision_changes_nothing(
    world, start, pauses, states_reached
):
    job = start()
    pauses.write_text(" ".join(f"{role}:{state}" for role, state in states_reached))
    running = start_migrate(world)
    for role, state in states_reached:
        world.wait_until_paused(role, state, running)
    running.kill()
    for role, state in states_reached:
        world.go_on(role, state)
    wait_until(lambda: states(world) == {"aborted"}, 20, "both nodes to give it up")
    world.recover()
    job.check_stayed()
    check_clean_retry(world, job, pauses)


def test_a_coordinator_that_is_killed_after_the_decision_changes_nothing(world, start, pauses):
    job = start()
    pauses.write_text("source:committed")
    running = start_migrate(world)
    world.wait_until_paused("source", "committed", running)
    running.kill()
    world.go_on("source", "committed")
    wait_until(
        lambda: job.at(world.source) is None, 20, "runc on the source to forget the container"
    )
    world.recover()
    job.check_moved()
    assert states(world) == {"finished"}


def test_when_nobody_is_left_on_the_source_recover_finishes_it_for_runc_too(world, start, pauses):
    job = start()
    pauses.write_text("source:committed")
    running = start_migrate(world)
    world.wait_until_paused("source", "committed", running)
    world.source.run(
        ["pkill", "-9", "-f", "ppmr migrate |runc checkpoint|migration-relay|criu: dump"]
    )
    running.kill()
    assert job.at(world.source) is not None, "runc could not take it off its list"
    world.recover()
    job.check_moved()


@pytest.mark.parametrize("victim", ["runc checkpoint", "migration-relay", "criu: dump"])
def test_whoever_is_killed_on_the_source_one_copy_runs(world, start, pauses, victim):
    job = start()
    pauses.write_text("source:frozen")
    running = start_migrate(world)
    world.wait_until_paused("source", "frozen", running)
    world.source.run(["pkill", "-9", "-f", victim])
    world.go_on("source", "frozen")
    check_one_runs(world, job, running.wait(), pauses)


@pytest.mark.parametrize("victim", ["runc restore", "migration-relay", "criu: restore"])
def test_whoever_is_killed_on_the_target_one_copy_runs(world, start, pauses, victim):
    job = start()
    pauses.write_text("source:sealed target:ready")
    running = start_migrate(world)
    world.wait_until_paused("source", "sealed", running)
    world.wait_until_paused("target", "ready", running)
    world.target.run(["pkill", "-9", "-f", victim])
    world.go_on("target", "ready")
    world.go_on("source", "sealed")
    check_one_runs(world, job, running.wait(), pauses)


def test_a_restore_that_fails_leaves_it_where_it_was(
    own_cgroup, lab, nodes, need_command, root_file_system, tmp_path
):
    need_command("runc")
    broken = tmp_path / "criu"
    broken.write_text(
        f'#!/bin/sh\n[ "$1" = swrk ] && [ "$(cat /proc/sys/kernel/hostname)" = target ] && exit 1\nexec {find_criu()} "$@"\n'
    )
    broken.chmod(0o755)
    with MigrationWorld(
        nodes.source,
        nodes.target,
        lab.directory / "private",
        environment={"PPMR_CRIU": str(broken)},
    ) as world:
        job = Job(lab, world, root_file_system, own_cgroup)
        try:
            done = migrate(world)
            assert done.code == ABORTED and "runc restore" in done.said
            job.check_stayed()
        finally:
            job.remove()


def test_a_container_and_a_process_share_one_fate(lab, world, start, pauses):
    job = start()
    worker = SteadyWorker(world.source, lab.home / "worker", size_mib=16, threads=1)
    worker.wait_for_lines(10)
    world.migrate(worker.pid, options=["--runc", "job"]).ok()
    job.check_moved()
    worker.node = world.target
    worker.wait_for_lines(10, world.target)
    check_continuity(worker.lines())
    worker.end()
    assert len(world.records("source")) == 1


def refused(world, job, sentence, code=ABORTED, options=(), criu_options=()):
    for more in (["--dry-run"], []):
        done = migrate(world, *options, *more, criu_options=criu_options)
        assert done.code == code and sentence in done.said, done.said
    assert world.records("source") == []
    job.counter.wait_for(5)


def test_what_is_different_at_the_target_is_said_before_anything_is_touched(lab, world, start):
    job = start(directory=world.source.scratch("bundles") / "job")
    refused(world, job, f"the bundle {job.bundle} of the container job is not at the target")
    there = world.target.scratch("bundles") / "job"
    world.target.run(["mkdir", there])
    config = world.source.run(["cat", job.bundle / "config.json"]).stdout
    world.target.run(["sh", "-c", 'cat >"$0"', there / "config.json"], input=config + " ")
    refused(world, job, "is another one at the target")
    world.target.run(["sh", "-c", 'cat >"$0"', there / "config.json"], input=config)
    assert migrate(world, "--dry-run").code == 0
    world.target.run(["sh", "-c", f"runc create --bundle {there} job </dev/null >/dev/null 2>&1"])
    refused(world, job, "the container job is there at the target already")
    world.target.run(["runc", "delete", "--force", "job"])
    migrate(world).ok()
    job.check_moved()


def test_a_container_that_needs_what_the_target_lacks(lab, world, start):
    here = world.source.scratch("mounted")

    def mount_it(config):
        config["mounts"].append(
            {"destination": "/tmp", "type": "bind", "source": str(here), "options": ["bind"]}
        )

    job = start(change=mount_it)
    refused(world, job, f"the container job needs {here} at the target")


def test_a_container_that_cannot_be_moved_as_it_is(world, start):
    job = start()
    inside = world.source.popen(
        ["runc", "exec", "job", "busybox", "sleep", "60"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(
        lambda: "put into the container job" in migrate(world, "--dry-run").said,
        10,
        "what was put into it to be seen",
    )
    world.source.signal_process(inside, signal.SIGKILL)
    inside.wait()
    world.source.run(["pkill", "-9", "-f", "sleep 60"], check=False)
    world.source.run(["runc", "pause", "job"])
    done = migrate(world, "--dry-run")
    assert done.code == ABORTED and "the container job is paused" in done.said
    world.source.run(["runc", "resume", "job"])
    assert migrate(world, "--dry-run").code == 0
    done = world.migrate(options=["--runc", "nosuch"])
    assert done.code == USAGE and "runc has no container nosuch" in done.said
    for options, criu_options, sentence in (
        (["--leave-running"], [], "no copying"),
        (["--pre-copy", 2], [], "--pre-copy"),
        ([], ["--ghost-limit", "64M"], "--ghost-limit"),
    ):
        refused(world, job, sentence, code=USAGE, options=options, criu_options=criu_options)
    job.check_stayed()
