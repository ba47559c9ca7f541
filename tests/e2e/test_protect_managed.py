"""Epochs of runc containers and of units of systemd, and their takeover."""
import json
import shutil

import pytest

from lab.containers import Counter, make_bundle
from lab.node import wait_until
from lab.ppmr import find_ppmr
from lab.protection import Protection, lose

USAGE = 2
# Memory that only the first epoch of a run sends.
MEMORY = "memory=$(busybox head -c 8000000 /dev/zero | busybox tr -c x x); "


@pytest.fixture
def migrations(own_cgroup, make_migrations, need_command):
    need_command("runc")
    return make_migrations()


class Job:
    """A container named job that counts, started on the source."""

    def __init__(self, lab, migrations, root, cgroup):
        self.migrations = migrations
        data = lab.home / "data"
        data.mkdir()
        self.counter = Counter(data)
        bundle = lab.home / "bundle"
        make_bundle(migrations.source_at, bundle, root, data, cgroup)
        config = migrations.source_at.host_path(bundle / "config.json")
        config.write_text(config.read_text().replace("n=0; ", MEMORY + "n=0; ", 1))
        self.run(f"runc run --detach --bundle {bundle} job </dev/null >/dev/null 2>&1")
        self.counter.wait_for(20)

    def run(self, line, node=None, **more):
        return (node or self.migrations.source_at).run(["sh", "-c", line], **more)

    def state(self, node=None):
        return json.loads(self.run("runc state job", node).stdout)

    def look(self):
        """Returns what an epoch must leave unchanged."""
        state = self.state()
        groups = f"/sys/fs/cgroup$(sed -n s/^0:://p /proc/{state['pid']}/cgroup)"
        frozen = self.run(f"cat {groups}/cgroup.freeze 2>/dev/null || echo none").stdout
        files = self.run("ls /run/runc/job").stdout
        return state, frozen, files


@pytest.fixture
def job(lab, migrations, root_file_system, own_cgroup):
    job = Job(lab, migrations, root_file_system, own_cgroup)
    yield job
    for node in (migrations.source_at, migrations.target_at):
        job.run("runc delete --force job", node, check=False)


def test_container_is_as_it_was_and_is_taken_over(nodes, migrations, job):
    before = job.look()
    protection = Protection(migrations, runc="job", name="job")
    protection.wait_for_epochs(3)
    assert job.look() == before
    kept = protection.kept()["job"]
    assert kept["container"] == "job" and kept["epoch"] >= 3
    refused = protection.take_over("--truncate", check=False)
    assert refused.returncode == USAGE and "the files of the container job" in refused.stderr
    job.counter.wait_for(5)
    lose(nodes.source)
    taken = json.loads(protection.take_over().stdout)
    state = job.state(migrations.target_at)
    assert state["status"] == "running" and state["pid"] == taken["pid"]
    job.counter.wait_for(20)
    job.counter.check()


def test_replaced_container_leaves_its_node(nodes, migrations, job):
    protection = Protection(migrations, runc="job", name="job")
    protection.wait_for_epochs(1)
    nodes.link.set_up(False)
    protection.take_over()
    nodes.link.set_up(True)
    done = protection.running.wait(60)
    assert done.code == 13, done.output
    gone = job.run("runc state job", check=False)
    assert gone.returncode != 0 and "does not exist" in gone.stderr
    assert job.state(migrations.target_at)["status"] == "running"


def test_upgrade_of_ppmr_does_not_end_the_epochs(lab, migrations, job):
    installed = lab.home / "ppmr"
    shutil.copy(find_ppmr(), installed)
    protection = Protection(migrations, runc="job", name="job", ppmr=installed)
    protection.wait_for_epochs(1)
    installed.unlink()
    protection.wait_for_epochs(2)
    protection.end()


def test_process_of_runc_exec_is_in_no_epoch_and_delays_it(migrations, job):
    protection = Protection(migrations, runc="job", name="job")
    protection.wait_for_epochs(2)
    job.run("runc exec --detach job busybox sleep 1000 </dev/null >/dev/null 2>&1")
    wait_until(
        lambda: any("runc exec" in event.get("sentence", "") for event in protection.events()),
        20,
        "a warning",
    )
    job.run("pkill --exact --full 'busybox sleep 1000'")
    protection.wait_for_epochs(1)
    first, *_, last = protection.epochs()
    assert last["sent_bytes"] < first["sent_bytes"] / 4, "all memory was sent again"
    protection.end()
