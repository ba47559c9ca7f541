"""How files and checkpoints end: closed by several at once, changed right behind the close, replaced, unmounted."""
import os
import signal
import subprocess
import threading
import time

import pytest

from lab.node import HOST, wait_until
from lab.ppmr import find_ppmr
from lab.world import MIB, NEVER, World


@pytest.fixture
def world(ppmr, tmp_path):
    world = World(tmp_path)
    yield world
    world.close()


def begin(world, source, name="moved"):
    world.succeeds(["mkdir", source.mountpoint / name])
    return source.mountpoint / name


def test_a_file_that_two_close_at_once_is_closed(world):
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


def test_a_change_of_mode_right_behind_the_close_stays_behind_it(world):
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


def test_a_sealed_file_that_is_replaced_gives_its_memory_back(world):
    source, target = world.pair()
    image, new = source.mountpoint / "image", source.mountpoint / "image.tmp"
    for generation in range(4):
        world.write(new if generation else image, 32 * MIB).succeeds()
        if generation:
            os.rename(new, image)
        assert world.ppmr("commit", image).code == 0
    assert world.status(target.mountpoint)["store"]["used_bytes"] < 48 * MIB
    assert os.stat(target.mountpoint / "image").st_size == 32 * MIB


def test_what_nobody_has_open_is_sealed_by_an_unmount_right_behind_the_close(world):
    source, target = world.pair()
    directories = []
    for number in range(100):
        path = begin(world, source, f"moved-{number}")
        (path / "file").write_bytes(b"x" * 1000)
        directories.append(os.open(path, os.O_RDONLY))
    for directory in directories:
        os.close(directory)
    world.succeeds(["umount", source.mountpoint])
    source.process.wait(timeout=20)

    def states():
        return [
            checkpoint["state"] for checkpoint in world.status(target.mountpoint)["checkpoints"]
        ]

    wait_until(
        lambda: "open" not in states(), 10, "the target to know what became of them", interval=0.1
    )
    assert states() == ["sealed"] * 100


def test_a_long_commit_does_not_keep_files_of_other_checkpoints_open(world):
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
    time.sleep(1)  # it waits for the target now, which nothing shows
    holder.kill()
    holder.wait(timeout=10)
    commits.append(HOST.popen([find_ppmr(), "commit", other]))
    time.sleep(6)  # longer than a commit waits for writers
    target.signal(signal.SIGCONT)
    assert [commit.wait(timeout=10) for commit in commits] == [0, 0]
