"""ppmr as CRIU's action script: the checkpoint is sealed while the process is frozen; if that
fails, the process runs on."""
import pytest

from lab import criu
from lab.criu import CriuError
from lab.node import wait_until
from lab.ppmr import find_ppmr
from lab.programs import SteadyWorker, check_continuity


@pytest.fixture
def worker(nodes, lab):
    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=16)
    worker.wait_for_lines(10)
    yield worker
    for node in (nodes.source, nodes.target):
        node.signal(worker.pid, 9)


def dump(nodes, worker, images, work):
    nodes.source.run(["mkdir", "-p", images, work])
    criu.dump(nodes.source, worker.pid, images, work, ["--action-script", find_ppmr()])


def check_runs_on(nodes, worker):
    worker.wait_for_lines(10, nodes.source)
    check_continuity(worker.lines())


def test_dump_seals_its_checkpoint(nodes, mounts, worker, lab):
    dump(nodes, worker, mounts.out / "job", nodes.source.private / "work")
    assert not nodes.source.alive(worker.pid)
    log = nodes.source.read_text(nodes.source.private / "work/dump.log")
    assert "verified at the target" in log
    [checkpoint] = mounts.target.status()["checkpoints"]
    assert (checkpoint["name"], checkpoint["state"]) == ("job", "sealed")
    nodes.target.run([find_ppmr(), "restart", mounts.in_ / "job", "--remove"])
    worker.node = nodes.target
    worker.wait_for_lines(10, nodes.target)
    check_continuity(worker.lines())


def test_process_continues_if_the_checkpoint_cannot_be_sealed(nodes, mounts, worker):
    images, work = mounts.out / "job", nodes.source.private / "work"
    nodes.source.run(["mkdir", images])
    holder = nodes.source.spawn(["sh", "-c", f"exec sleep 1000 3>{images}/open"])
    wait_until(lambda: "open" in nodes.source.names(images), 10, "the open file")
    with pytest.raises(CriuError, match="dump"):
        dump(nodes, worker, images, work)
    nodes.source.signal(holder, 9)
    assert "ppmr commit: seal " in nodes.source.read_text(work / "dump.log")
    check_runs_on(nodes, worker)


def test_process_continues_if_its_images_are_elsewhere(nodes, mounts, worker):
    with pytest.raises(CriuError):
        dump(nodes, worker, nodes.source.private / "images", nodes.source.private / "work")
    assert "ppmr commit: " in nodes.source.read_text(nodes.source.private / "work/dump.log")
    check_runs_on(nodes, worker)


def test_commit_without_a_criu_action_is_an_ordinary_command(nodes):
    done = nodes.source.run([find_ppmr()], check=False)
    assert done.returncode == 2 and "subcommand is required" in done.stderr
