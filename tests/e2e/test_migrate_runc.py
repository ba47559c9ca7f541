"""`ppmr migrate --runc`: one command moves a runc container. After every failure exactly one copy
runs."""
import json
import os
import shutil
import signal
import subprocess

import pytest

from lab.containers import COUNT, Counter, make_bundle
from lab.criu import find_criu
from lab.memory import anonymous_mib
from lab.node import wait_until
from lab.programs import SteadyWorker, check_continuity, find_program
from lab.readme import run_section
from lab.tracking import tracks_writes

MOVED, ABORTED, USAGE = 0, 11, 2


@pytest.fixture
def migrations(own_cgroup, make_migrations, need_command, pauses):
    need_command("runc")
    return make_migrations(environment={"PPMR_PAUSE_FILE": str(pauses)})


class Job:
    """A container named job that counts, started on the source."""

    def __init__(self, lab, migrations, root, cgroup, directory=None, change=lambda config: None):
        self.migrations, self.name = migrations, "job"
        data = lab.home / "data"
        data.mkdir()
        self.bundle = directory or lab.home / "bundle"
        make_bundle(migrations.source_at, self.bundle, root, data, cgroup)
        config = migrations.source_at.host_path(self.bundle / "config.json")
        changed = json.loads(config.read_text())
        change(changed)
        config.write_text(json.dumps(changed))
        self.counter = Counter(data)
        migrations.source_at.run(
            ["sh", "-c", f"runc run --detach --bundle {self.bundle} job </dev/null >/dev/null 2>&1"]
        )
        self.counter.wait_for(20)

    def at(self, node):
        """Returns the state of the container on a node, or None if runc does not list the container
        there.
        """
        # `runc list` fails while runc removes any container.
        done = node.run(["runc", "state", self.name], check=False)
        if done.returncode != 0:
            assert "does not exist" in done.stderr, done.stderr
            return None
        return json.loads(done.stdout)

    def check_runs(self, node, other):
        assert self.at(node)["status"] == "running"
        wait_until(
            lambda: self.at(other) is None, 10, f"runc on {other.name} to remove the container"
        )
        assert node.alive(self.at(node)["pid"])
        self.counter.wait_for(20)
        self.counter.check()

    def check_moved(self):
        self.check_runs(self.migrations.target_at, self.migrations.source_at)

    def check_stayed(self):
        self.check_runs(self.migrations.source_at, self.migrations.target_at)

    def remove(self):
        for node in (self.migrations.source_at, self.migrations.target_at):
            node.run(["runc", "delete", "--force", self.name], check=False)


@pytest.fixture
def start(lab, migrations, root_file_system, own_cgroup):
    jobs = []

    def start_job(**options):
        jobs.append(Job(lab, migrations, root_file_system, own_cgroup, **options))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.remove()


@pytest.fixture
def pauses(lab):
    """A file that lists the states at which migrations pause."""
    path = lab.directory / "pauses"
    path.touch()
    return path


def migrate(migrations, *options, **more):
    return migrations.migrate(options=["--runc", "job", *options], **more)


def start_migrate(migrations, **more):
    return migrations.start_migrate(options=["--runc", "job"], **more)


def states(migrations):
    return {migrations.records(role)[-1]["state"] for role in ("source", "target")}


def check_clean_retry(migrations, job, pauses):
    wait_until(
        lambda: migrations.target_at.run(["ls", migrations.in_]).stdout == "",
        10,
        "the checkpoint to be removed",
    )
    pauses.write_text("")
    migrate(migrations).ok()
    job.check_moved()


def check_one_runs(migrations, job, done, pauses):
    if done.code == MOVED:
        job.check_moved()
    else:
        assert done.code == ABORTED, done.output
        job.check_stayed()
        check_clean_retry(migrations, job, pauses)


def test_rehearsed_container_goes_on_and_moves_afterwards(start, migrations):
    job = start()
    rehearsed = migrate(migrations, "--rehearse").ok()
    assert [tree["result"] for tree in rehearsed.summary["trees"]] == ["would move"]
    job.check_stayed()
    migrate(migrations).ok()
    job.check_moved()


def test_files_in_memory_move_with_their_attributes(start, migrations):
    make = (
        "busybox head -c 20000000 /dev/urandom >/scratch/file; "
        "busybox ln /scratch/file /scratch/link; "
        "busybox chown 7:8 /scratch/file; busybox chmod 640 /scratch/file; "
        "busybox truncate -s 1G /scratch/sparse; "
        "busybox ln -s /nowhere '/scratch/a name'; busybox mkfifo -m 620 /scratch/fifo; "
        "busybox mkdir -m 1777 /scratch/directory; busybox touch -d 2001-02-03 /scratch/directory"
    )
    look = (
        "busybox stat -c '%n %s %b %u %g %a %h %F %Y' /scratch/*; busybox sha256sum /scratch/file; "
        "busybox grep scratch /proc/mounts"
    )

    def change(config):
        config["process"]["args"] = [
            "sh",
            "-c",
            f"{make}; ({look}) >/data/before; "
            f"(while [ ! -e /data/look ]; do busybox sleep 0.1; done; "
            f"({look}) >/data/after.part; busybox mv /data/after.part /data/after) & {COUNT}",
        ]
        config["mounts"].append(
            {"destination": "/scratch", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]}
        )

    job = start(change=change)
    data = job.counter.file.parent
    migrate(migrations).ok()
    job.check_moved()
    (data / "look").touch()
    wait_until(lambda: (data / "after").exists(), 20, "the container to go on")
    assert (data / "after").read_text() == (data / "before").read_text()


SCRATCH = {"destination": "/scratch", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]}


@pytest.fixture
def start_writer(start, root_file_system):
    """Starts a container that writes to a file in its tmpfs through a mapping."""
    shutil.copy(find_program("file_writer"), root_file_system / "bin")

    def start_one(*options):
        def change(config):
            files = ["/scratch/file", "32", "/data/lines", "/data/stop", "/data/is"]
            config["process"]["args"] = ["/bin/file_writer", *files, *options]
            config["mounts"].append(SCRATCH)

        return start(change=change)

    return start_one


@pytest.fixture
def writer(start_writer):
    return start_writer()


def check_file_is_right(job):
    data = job.counter.file.parent
    (data / "stop").touch()
    wait_until(lambda: (data / "is").exists() and (data / "is").read_text(), 20, "the result")
    assert (data / "is").read_text() == "right\n"


@pytest.mark.parametrize("options", [[], ["--eager"]], ids=["live", "eager"])
def test_file_that_is_written_through_a_mapping_is_right_to_the_byte(writer, migrations, options):
    migrate(migrations, *options).ok()
    writer.check_moved()
    check_file_is_right(writer)


def check_deleted_file_is_right(job, migrations, done):
    job.check_moved()
    rounds = [event["bytes"] for event in done.events if event["event"] == "files_copied"]
    assert rounds[0] >= 32 << 20, "the file has waited until the container was frozen"
    listed = ["runc", "exec", "job", "busybox", "ls", "-a", "/scratch"]
    wait_until(
        lambda: ".ppmr" not in migrations.target_at.run(listed).stdout, 10, "the name to be removed"
    )
    check_file_is_right(job)


GHOSTS = ["--ghost-limit=64M"]


@pytest.mark.parametrize("options", [[], ["--eager"]], ids=["live", "eager"])
def test_file_that_is_deleted_travels_while_the_container_runs(start_writer, migrations, options):
    job = start_writer("--deleted")
    done = migrate(migrations, *options, criu_options=GHOSTS).ok()
    check_deleted_file_is_right(job, migrations, done)


def test_restore_that_is_repeated_gets_the_same_deleted_file(start_writer, migrations, pauses):
    job = start_writer("--deleted")
    pauses.write_text("target:ready")
    running = start_migrate(migrations, criu_options=GHOSTS)
    migrations.wait_until_paused("target", "ready", running)
    restore = "^ppmr migration-restore|^criu: restore|migration-relay"
    migrations.target_at.run(["pkill", "-KILL", "-f", restore])
    migrations.go_on("target", "ready")
    check_deleted_file_is_right(job, migrations, running.wait().ok())


def mounts_in_state(node):
    mounts = node.run(["cat", "/proc/self/mountinfo"]).stdout.splitlines()
    return [line for line in mounts if "/files/" in line]


@pytest.mark.parametrize("who", ["coordinator", "supervisor"])
def test_no_mount_of_files_stays_at_the_target_if_a_move_is_killed(writer, migrations, pauses, who):
    pauses.write_text("source:frozen")
    running = start_migrate(migrations)
    migrations.wait_until_paused("source", "frozen", running)
    assert mounts_in_state(migrations.target_at)
    if who == "coordinator":
        running.kill()
    else:
        migrations.target_at.run(["pkill", "-KILL", "-f", "^ppmr migration-restore"])
    migrations.go_on("source", "frozen")
    wait_until(lambda: states(migrations) == {"aborted"}, 30, "both nodes to abort")
    writer.check_stayed()
    wait_until(lambda: not mounts_in_state(migrations.target_at), 30, "the mounts to end")
    check_file_is_right(writer)


def test_target_without_memory_for_files_aborts_the_move(writer, migrations):
    # The target gives what a machine with 100 MiB of memory shows.
    fake = migrations.target_at.private / "meminfo"
    migrations.target_at.host_path(fake).write_text("MemAvailable:  102400 kB\n")
    migrations.target_at.run(["mount", "--bind", fake, "/proc/meminfo"])
    done = migrate(migrations)
    migrations.target_at.run(["umount", "/proc/meminfo"])
    assert done.code == ABORTED
    assert "does not have enough memory for the files" in done.output
    writer.check_stayed()
    check_file_is_right(writer)


def test_memory_that_a_container_shares_is_shared_at_the_target(start, migrations):
    shared_mib = 16
    fill = f"x=$(busybox head -c {shared_mib << 20} /dev/zero | busybox tr '\\0' a)"
    child = "while :; do echo ${#x} >/data/length; busybox sleep 0.1; done"

    def change(config):
        config["process"]["args"] = ["sh", "-c", f"{fill}; ({child}) & ({child}) & {COUNT}"]

    job = start(change=change)
    length = job.counter.file.parent / "length"
    wait_until(length.exists, 20, "the children to start")

    def shares(node):
        # The three shells fork other shells for a moment, so their memory changes while it is read.
        return anonymous_mib(node, "data/length") < 1.5 * shared_mib

    wait_until(lambda: shares(migrations.source_at), 10, "the shells to share their memory")
    migrate(migrations).ok()
    job.check_moved()
    wait_until(lambda: shares(migrations.target_at), 10, "the shells to share at the target")
    length.unlink()
    wait_until(lambda: length.exists() and length.read_text(), 20, "a child to go on")
    assert int(length.read_text()) == shared_mib << 20


@pytest.mark.parametrize(
    "options", [[], ["--eager"], ["--post-copy"]], ids=["lazy", "eager", "post-copy"]
)
def test_container_moves_and_runc_manages_it_at_target(migrations, start, options):
    job = start()
    done = migrate(migrations, *options).ok()
    job.check_moved()
    copied = [event["bytes"] for event in done.events if event["event"] == "copied"]
    assert bool(copied) == (options != ["--eager"] and tracks_writes()), "rounds of its memory"
    tree = done.summary["trees"][0]
    assert (tree["result"], tree["name"], tree["lazily"]) == (
        "moved",
        "job",
        options != ["--eager"],
    )
    for role in ("source", "target"):
        record = migrations.records(role)[-1]
        assert (record["state"], record["owner"]) == ("finished", "target")
    inside = migrations.target_at.run(
        ["runc", "exec", "job", "sh", "-c", "echo $$; busybox tail -n 1 /data/lines"]
    ).stdout.split()
    assert int(inside[1]) > 20
    migrations.target_at.run(["runc", "kill", "job", "KILL"])
    wait_until(
        lambda: job.at(migrations.target_at)["status"] == "stopped", 10, "the container to end"
    )
    migrations.target_at.run(["runc", "delete", "job"])


def test_documented_commands_move_container(migrations, start):
    # The records are private to the node.
    migrations.source_at.run(["mount", "-t", "tmpfs", "none", "/var/lib"])
    job = start()
    run_section(migrations, "Move a runc container")
    job.check_moved()


def test_container_moves_while_its_process_waits_for_a_child_of_vfork(
    migrations, start, root_file_system
):
    shutil.copy(find_program("slow_vfork"), root_file_system / "bin")
    (root_file_system / "bin/true").symlink_to("busybox")
    words = ["/bin/slow_vfork", "/bin/true", "/data/lines"]
    job = start(change=lambda config: config["process"].update(args=words))
    migrate(migrations).ok()
    job.check_moved()


@pytest.mark.parametrize("state", ["dumping", "frozen"])
def test_interrupt_before_decision_keeps_container_at_source(migrations, start, pauses, state):
    job = start()
    pauses.write_text(f"source:{state}")
    running = start_migrate(migrations)
    migrations.wait_until_paused("source", state, running)
    running.signal(signal.SIGINT)
    migrations.go_on("source", state)
    check_one_runs(migrations, job, running.wait(), pauses)


# Pausing only a ready target does not prevent the coordinator from committing.
@pytest.mark.parametrize(
    "states_reached", [[("source", "sealed")], [("source", "sealed"), ("target", "ready")]]
)
def test_container_stays_at_source_if_coordinator_is_killed_before_decision(
    migrations, start, pauses, states_reached
):
    job = start()
    pauses.write_text(" ".join(f"{role}:{state}" for role, state in states_reached))
    running = start_migrate(migrations)
    for role, state in states_reached:
        migrations.wait_until_paused(role, state, running)
    running.kill()
    for role, state in states_reached:
        migrations.go_on(role, state)
    wait_until(lambda: states(migrations) == {"aborted"}, 20, "both nodes to abort")
    migrations.recover()
    job.check_stayed()
    check_clean_retry(migrations, job, pauses)


def test_coordinator_killed_after_decision_does_not_stop_the_move(migrations, start, pauses):
    job = start()
    pauses.write_text("source:committed")
    running = start_migrate(migrations)
    migrations.wait_until_paused("source", "committed", running)
    running.kill()
    migrations.go_on("source", "committed")
    wait_until(
        lambda: job.at(migrations.source_at) is None,
        20,
        "runc on the source to remove the container",
    )
    migrations.recover()
    job.check_moved()
    assert states(migrations) == {"finished"}


def test_recover_finishes_move_after_all_source_processes_were_killed(migrations, start, pauses):
    job = start()
    pauses.write_text("source:committed")
    running = start_migrate(migrations)
    migrations.wait_until_paused("source", "committed", running)
    migrations.source_at.run(
        ["pkill", "-9", "-f", "ppmr migrate |runc checkpoint|migration-relay|criu: dump"]
    )
    running.kill()
    assert (
        job.at(migrations.source_at) is not None
    ), "runc has removed the container, so recover has no work"
    migrations.recover()
    job.check_moved()


def test_recover_removes_leftover_source_container_after_relay_was_killed(
    migrations, start, pauses
):
    job = start()
    pauses.write_text("source:committed")
    running = start_migrate(migrations)
    migrations.wait_until_paused("source", "committed", running)
    # The relay waits for runc after its hook has finished the migration.
    migrations.source_at.run(["pkill", "-STOP", "-f", "runc checkpoint"])
    running.kill()
    wait_until(lambda: states(migrations) == {"finished"}, 20, "both nodes to finish")
    migrations.source_at.run(["pkill", "-9", "-f", "runc checkpoint|migration-relay|criu: dump"])
    assert job.at(migrations.source_at) is not None
    migrations.recover()
    job.check_moved()


@pytest.mark.parametrize("victim", ["runc checkpoint", "migration-relay", "criu: dump"])
def test_exactly_one_copy_runs_after_tool_is_killed_at_source(migrations, start, pauses, victim):
    job = start()
    pauses.write_text("source:frozen")
    running = start_migrate(migrations)
    migrations.wait_until_paused("source", "frozen", running)
    migrations.source_at.run(["pkill", "-9", "-f", victim])
    migrations.go_on("source", "frozen")
    check_one_runs(migrations, job, running.wait(), pauses)


@pytest.mark.parametrize("victim", ["runc restore", "migration-relay", "criu: restore"])
def test_exactly_one_copy_runs_after_tool_is_killed_at_target(migrations, start, pauses, victim):
    job = start()
    pauses.write_text("source:sealed target:ready")
    running = start_migrate(migrations)
    migrations.wait_until_paused("source", "sealed", running)
    migrations.wait_until_paused("target", "ready", running)
    migrations.target_at.run(["pkill", "-9", "-f", victim])
    migrations.go_on("target", "ready")
    migrations.go_on("source", "sealed")
    check_one_runs(migrations, job, running.wait(), pauses)


def test_runc_delete_after_killed_restore_keeps_root_file_system(
    migrations, start, pauses, root_file_system
):
    start()
    pauses.write_text("source:sealed target:ready")
    running = start_migrate(migrations)
    migrations.wait_until_paused("source", "sealed", running)
    migrations.wait_until_paused("target", "ready", running)
    migrations.target_at.run(["pkill", "-9", "-f", "migration-restore|runc restore"])
    migrations.target_at.run(["runc", "delete", "--force", "job"], check=False)
    assert (root_file_system / "bin/busybox").exists()
    running.kill()


def test_failed_restore_keeps_container_at_source(
    own_cgroup, lab, nodes, make_migrations, need_command, root_file_system, tmp_path
):
    need_command("runc")
    broken = tmp_path / "criu"
    broken.write_text(
        f'#!/bin/sh\n[ "$1" = swrk ] && [ "$(cat /proc/sys/kernel/hostname)" = target ] && exit 1\nexec {find_criu()} "$@"\n'
    )
    broken.chmod(0o755)
    migrations = make_migrations(environment={"PPMR_CRIU": str(broken)})
    job = Job(lab, migrations, root_file_system, own_cgroup)
    try:
        done = migrate(migrations)
        assert done.code == ABORTED and "runc restore" in done.output
        job.check_stayed()
    finally:
        job.remove()


# Ends like a `runc restore` that is killed after it has made its directory of the container, before
# it starts CRIU.
DYING_RUNC = """#!/bin/sh
if [ "$1" = restore ] && rm {switch} 2>/dev/null; then
  mkdir /run/runc/job
  kill -9 $$
fi
exec {runc} "$@"
"""


def test_container_moves_after_a_runc_that_was_killed_early(
    own_cgroup, lab, make_migrations, need_command, root_file_system, tmp_path
):
    need_command("runc")
    runc, switch = tmp_path / "runc", tmp_path / "switch"
    runc.write_text(DYING_RUNC.format(switch=switch, runc=shutil.which("runc")))
    runc.chmod(0o755)
    switch.touch()
    path = f"{tmp_path}:{os.environ['PATH']}"
    migrations = make_migrations(environment={"PATH": path})
    job = Job(lab, migrations, root_file_system, own_cgroup)
    try:
        done = migrate(migrations)
        assert done.code == ABORTED and not switch.exists()
        job.check_stayed()
        migrate(migrations).ok()
        job.check_moved()
    finally:
        job.remove()


def test_name_that_runc_keeps_without_a_container_is_found_before_the_move(migrations, start):
    job = start()
    migrations.target_at.run(["mkdir", "-p", "/run/runc/job"])
    refused(migrations, job, "the container job already exists at the target")
    migrations.target_at.run(["runc", "delete", "job"], check=False)
    migrate(migrations).ok()
    job.check_moved()


def test_container_and_process_move_in_one_migration(lab, migrations, start, pauses):
    job = start()
    worker = SteadyWorker(migrations.source_at, lab.home / "worker", size_mib=16, threads=1)
    worker.wait_for_lines(10)
    migrations.migrate(worker.pid, options=["--runc", "job"]).ok()
    job.check_moved()
    worker.node = migrations.target_at
    worker.wait_for_lines(10, migrations.target_at)
    check_continuity(worker.lines())
    worker.end()
    assert len(migrations.records("source")) == 1


def refused(migrations, job, sentence, code=ABORTED, options=(), criu_options=()):
    for more in (["--dry-run"], []):
        done = migrate(migrations, *options, *more, criu_options=criu_options)
        assert done.code == code and sentence in done.output, done.output
    assert migrations.records("source") == []
    job.counter.wait_for(5)


def test_preflight_reports_differences_at_target_before_any_change(lab, migrations, start):
    job = start(directory=migrations.source_at.scratch("bundles") / "job")
    refused(migrations, job, f"the bundle {job.bundle} of the container job is not at the target")
    there = migrations.target_at.scratch("bundles") / "job"
    migrations.target_at.run(["mkdir", there])
    config = migrations.source_at.run(["cat", job.bundle / "config.json"]).stdout

    def write_config(**changes):
        text = json.dumps({**json.loads(config), **changes})
        migrations.target_at.run(["sh", "-c", 'cat >"$0"', there / "config.json"], input=text)

    write_config(hostname="another")
    refused(migrations, job, "differs at the target")
    # The container's configuration names a control group of its node, which differs between the
    # nodes.
    write_config(linux={**json.loads(config)["linux"], "cgroupsPath": "/of-the-target"})
    assert migrate(migrations, "--dry-run").code == 0
    write_config()
    assert migrate(migrations, "--dry-run").code == 0
    migrations.target_at.run(
        ["sh", "-c", f"runc create --bundle {there} job </dev/null >/dev/null 2>&1"]
    )
    refused(migrations, job, "the container job already exists at the target")
    migrations.target_at.run(["runc", "delete", "--force", "job"])
    migrate(migrations).ok()
    job.check_moved()


def test_container_whose_bind_mount_is_missing_at_target_is_refused(lab, migrations, start):
    here = migrations.source_at.scratch("mounted")

    def mount_it(config):
        config["mounts"].append(
            {"destination": "/tmp", "type": "bind", "source": str(here), "options": ["bind"]}
        )

    job = start(change=mount_it)
    refused(migrations, job, f"the target lacks {here}, which the container job needs")


def test_container_in_unsupported_state_is_refused(migrations, start):
    job = start()
    inside = migrations.source_at.popen(
        ["runc", "exec", "job", "busybox", "sleep", "60"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(
        lambda: "started in the container job" in migrate(migrations, "--dry-run").output,
        10,
        "the process of runc exec to be found",
    )
    migrations.source_at.signal_process(inside, signal.SIGKILL)
    inside.wait()
    migrations.source_at.run(["pkill", "-9", "-f", "sleep 60"], check=False)
    migrations.source_at.run(["runc", "pause", "job"])
    done = migrate(migrations, "--dry-run")
    assert done.code == ABORTED and "the container job is paused" in done.output
    migrations.source_at.run(["runc", "resume", "job"])
    assert migrate(migrations, "--dry-run").code == 0
    done = migrations.migrate(options=["--runc", "nosuch"])
    assert done.code == USAGE and "runc has no container nosuch" in done.output
    for options, criu_options, sentence in (
        (["--leave-running"], [], "cannot copy"),
        ([], ["--ghost-limit", "64M"], "--ghost-limit"),
    ):
        refused(migrations, job, sentence, code=USAGE, options=options, criu_options=criu_options)
    job.check_stayed()
