"""How files and checkpoints end: closed by several at once, changed right behind the close, replaced, unmounted."""
import os
import threading
import time

import pytest

from trouble_world import MIB, World


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
        threads = [threading.Thread(target=close, args=[os.open(path, os.O_WRONLY | os.O_CREAT)]) for _ in range(2)]
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
    assert committed.code == 0, committed.said
    modes = {entry.stat().st_mode & 0o777 for entry in os.scandir(target.mountpoint / "moved")}
    assert modes == {0o640}


def test_a_sealed_file_that_is_replaced_gives_its_memory_back(world):
    source, target = world.pair()
    image, new = source.mountpoint / "image", source.mountpoint / "image.tmp"
    for round in range(4):
        world.write(new if round else image, 32 * MIB).succeeds()
        if round:
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
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        states = [checkpoint["state"] for checkpoint in world.status(target.mountpoint)["checkpoints"]]
        if all(state != "open" for state in states):
            break
    assert states == ["sealed"] * 100
