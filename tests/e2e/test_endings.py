"""How files and checkpoints end: closed by two threads, changed right after the close, replaced,
unmounted."""
import os
import signal
import subprocess
import threading

import pytest

from lab.node import HOST, wait_until
from lab.pace import patience
from lab.ppmr import find_ppmr
from lab.world import MIB, NEVER


def begin(world, source, name="moved"):
    world.succeeds(["mkdir", source.mountpoint / name])
    return source.mountpoint / name


def test_file_is_closed_after_two_threads_close_its_descriptors_at_once(world):
    source, _ = world.pair()
    directory = begin(world, source)
    for number in range(400):
        path = directory / f"file-{number}"
        together = threading.Barrier(2)

        def close(fd):
            together.wait()
            os.close(fd)

        threads = [
            threading.Thread(target=close, args=[os.open(path, os.O_WRONLY | os.O_CREAT)])
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert world.ppmr("commit", directory).code == 0


def test_chmod_right_after_close_sets_the_final_mode_at_target(world):
    source, target = world.pair()
    directory = begin(world, source)
    for number in range(400):
        path = directory / f"file-{number}"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        os.chmod(path, 0o640)
    committed = world.ppmr("commit", directory)
    assert committed.code == 0, committed.output
    modes = {entry.stat().st_mode & 0o777 for entry in os.scandir(target.mountpoint / "moved")}
    assert modes == {0o640}


def test_replacing_a_sealed_file_releases_its_memory(world):
    source, target = world.pair()
    image, new = source.mountpoint / "image", source.mountpoint / "image.tmp"
    for generation in range(4):
        world.write(new if generation else image, 32 * MIB).succeeds()
        if generation:
            os.rename(new, image)
        assert world.ppmr("commit", image).code == 0
    assert world.status(target.mountpoint)["store"]["used_bytes"] < 48 * MIB
    assert os.stat(target.mountpoint / "image").st_size == 32 * MIB


def test_unmount_right_after_close_seals_checkpoints_without_open_files(world):
    source, target = world.pair()
    directories = []
    for number in range(100):
        path = begin(world, source, f"moved-{number}")
        (path / "file").write_bytes(b"x" * 1000)
        directories.append(os.open(path, os.O_RDONLY))
    for directory in directories:
        os.close(directory)
    world.succeeds(["umount", source.mountpoint])
    source.process.wait(timeout=patience(20))

    def states():
        return [
            checkpoint["state"] for checkpoint in world.status(target.mountpoint)["checkpoints"]
        ]

    wait_until(
        lambda: "open" not in states(),
        10,
        "the target to have sealed the checkpoints",
        interval=0.1,
    )
    assert states() == ["sealed"] * 100


@pytest.mark.xdist_group("stopped daemons")
def test_waiting_commit_does_not_delay_closing_a_file_of_another_checkpoint(world):
    source, target = world.pair(peer_timeout=NEVER)
    long, other = begin(world, source, "long"), begin(world, source, "other")
    world.write(long / "file", MIB).succeeds()
    holder = HOST.popen(
        [
            "/usr/bin/python3",
            "-SEc",
            "import sys; f = open(sys.argv[1], 'w'); sys.stdin.read()",
            other / "file",
        ],
        stdin=subprocess.PIPE,
    )
    wait_until((other / "file").exists, 10, "the file to be open")
    target.signal(signal.SIGSTOP)
    commits = [HOST.popen([find_ppmr(), "commit", long])]
    with pytest.raises(subprocess.TimeoutExpired):  # the command waits for the target
        commits[0].wait(timeout=1)
    holder.kill()
    holder.wait(timeout=patience(10))
    commits.append(HOST.popen([find_ppmr(), "commit", other]))
    with pytest.raises(subprocess.TimeoutExpired):  # a commit waits less than that for writers
        commits[1].wait(timeout=6)
    target.signal(signal.SIGCONT)
    assert [commit.wait(timeout=patience(10)) for commit in commits] == [0, 0]


@pytest.mark.parametrize("side", ["source", "target"])
def test_sigterm_ends_daemon_while_file_of_sealed_checkpoint_is_open(world, side):
    source, target = world.pair()
    directory = begin(world, source)
    world.write(directory / "image", 4 * MIB).succeeds()
    assert world.ppmr("commit", directory).code == 0
    ending = source if side == "source" else target
    holder = HOST.popen(
        [
            "/usr/bin/python3",
            "-SEc",
            "import sys; f = open(sys.argv[1], 'rb'); print('open', flush=True); sys.stdin.read()",
            ending.mountpoint / "moved/image",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"open\n"
    assert ending.stop() == 0, ending.output()
    holder.kill()
    holder.wait(timeout=patience(10))
