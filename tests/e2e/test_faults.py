"""Faults during a transfer: full memory and disks, killed daemons, busy mounts, several sources.

No call hangs, and no call reports success for lost bytes.
"""
import os
import signal

import pytest

from lab.node import HOST, free_port, wait_until
from lab.pace import patience
from lab.ppmr import find_ppmr
from lab.world import (
    BIG,
    SMALL_POOL,
    GRACE,
    MIB,
    PEER_TIMEOUT,
    checkpoint_in,
    digest_of_written,
    wait_for_mount_to_go,
    wait_until_failed,
)

GONE = ("EIO", "ENOTCONN", "ECONNABORTED")  # the errors of a mount whose daemon has ended

# `ppmr status` asks all daemons of this machine, so tests that stop one must not run beside each
# other.
pytestmark = pytest.mark.xdist_group("stopped daemons")


# -- full memory and disks


def test_writer_gets_enospc_if_target_without_spill_directory_is_full(world):
    source, target = world.pair(SMALL_POOL, ["--memory-limit", "16MiB"])
    directory = world.begin(source)
    result = world.write(directory / "pages-1.img", 64 * MIB).fails_with("ENOSPC", within=20)
    assert (
        result["bytes"] <= (16 + 8 + 2) * MIB
    ), "the mount accepted more than memory and pool can hold"
    # After the checkpoint is removed, there is memory for another one.
    world.succeeds(["rm", "-r", directory])
    directory = world.begin(source, "smaller")
    world.write(directory / "pages-1.img", 8 * MIB).succeeds()
    assert world.read(target.mountpoint / "smaller/pages-1.img").succeeds()[
        "sha256"
    ] == digest_of_written(8 * MIB)


def test_bytes_beyond_memory_limit_go_to_spill_directory(world):
    spill = world.tmpfs("256M")
    source, target = world.pair(SMALL_POOL, ["--memory-limit", "16MiB", "--spill-dir", spill])
    directory = world.begin(source)
    world.write(directory / "pages-1.img", 96 * MIB + 5).succeeds()
    assert world.read(target.mountpoint / "moved/pages-1.img").succeeds()[
        "sha256"
    ] == digest_of_written(96 * MIB + 5)
    world.succeeds([find_ppmr(), "commit", directory])
    world.succeeds(["rm", "-r", target.mountpoint / "moved"])

    def used():
        seen = os.statvfs(spill)
        return (seen.f_blocks - seen.f_bfree) * seen.f_frsize

    wait_until(lambda: used() < MIB, 10, "the spill directory to be empty again")


def test_writer_gets_enospc_if_spill_disk_is_full(world):
    source, target = world.pair(
        SMALL_POOL, ["--memory-limit", "16MiB", "--spill-dir", world.tmpfs("8M")]
    )
    directory = world.begin(source)
    world.write(directory / "pages-1.img", 96 * MIB).fails_with("ENOSPC", within=20)
    world.succeeds(["rm", "-r", directory])
    world.write(world.begin(source, "smaller") / "file", 8 * MIB).succeeds()
    assert target.running()


def test_source_shows_checkpoint_removed_at_target_as_removed(world):
    source, target = world.pair()
    directory = world.begin(source)
    world.write(directory / "file", MIB).succeeds()
    world.succeeds([find_ppmr(), "commit", directory])
    world.succeeds(["rm", "-r", target.mountpoint / "moved"])
    wait_until(
        lambda: checkpoint_in(world.status(source.mountpoint), "moved")["state"] == "removed",
        5,
        "the source to show that it was removed",
    )


# The time after which the store gives memory back: fuse_target/store/store_memory.h.
@pytest.mark.long
def test_memory_of_a_removed_checkpoint_goes_back_to_the_system(world):
    source, target = world.pair(target_options=["--transport", "tcp"])
    directory = world.begin(source)
    world.write(directory / "pages-1.img", 512 * MIB).succeeds()
    world.succeeds([find_ppmr(), "commit", directory])
    assert target.memory_kib()["VmRSS"] > 512 * 1024
    world.succeeds(["rm", "-r", target.mountpoint / "moved"])
    wait_until(
        lambda: target.memory_kib()["VmRSS"] < 220 * 1024, 330, "the target to give memory back"
    )
    world.write(world.begin(source, "next") / "file", 300 * MIB).succeeds()
    found = world.read(target.mountpoint / "next/file").succeeds()
    assert found["sha256"] == digest_of_written(300 * MIB)


# -- killed daemons


def test_reader_gets_eio_and_open_checkpoint_fails_when_source_is_killed(world):
    source, target = world.pair()
    directory = world.begin(source)
    kept = world.begin(source, "kept")
    world.write(kept / "file", 5 * MIB).succeeds()
    world.succeeds([find_ppmr(), "commit", kept])
    writer = world.write(directory / "pages-1.img", BIG, pause=0.02)
    writer.wait_for(8)
    reader = world.read(target.mountpoint / "moved/pages-1.img")
    reader.wait_for(4)

    source.signal(signal.SIGKILL)
    result = reader.fails_with("EIO", within=PEER_TIMEOUT + GRACE)
    assert result["bytes"] < BIG
    assert result["step"] == "read"
    writer.fails_with(*GONE, within=GRACE)
    wait_until_failed(world, target.mountpoint, "moved")
    assert (
        world.read(target.mountpoint / "moved/pages-1.img").result(within=5)["errno"] == "EIO"
    ), "the failed checkpoint can be read"
    # The sealed checkpoint is intact, and the failed one can be removed.
    assert world.read(target.mountpoint / "kept/file").succeeds()["sha256"] == digest_of_written(
        5 * MIB
    )
    world.succeeds(["rm", "-r", target.mountpoint / "moved"])
    assert world.run(["ls", target.mountpoint]).out.split() == ["kept"]


def test_writer_gets_eio_when_target_is_killed(world):
    source, target = world.pair(SMALL_POOL)
    directory = world.begin(source)
    writer = world.write(directory / "pages-1.img", BIG, pause=0.01)
    writer.wait_for(8)

    target.kill()
    writer.fails_with("EIO", within=PEER_TIMEOUT + GRACE)
    assert (
        world.write(directory / "core-1.img", 10).result(within=5)["errno"] == "EIO"
    ), "the error is not sticky"
    assert world.ppmr("commit", directory).code != 0
    world.answers(["ls", "-la", directory])
    world.answers([find_ppmr(), "status", source.mountpoint])
    assert source.running()


def test_blocked_writer_gets_eio_when_target_dies(world):
    source, target = world.pair(SMALL_POOL)
    directory = world.begin(source)
    target.signal(signal.SIGSTOP)
    writer = world.write(directory / "pages-1.img", BIG)
    writer.wait_until_stuck(still=0.5)
    target.kill()
    writer.fails_with("EIO", within=PEER_TIMEOUT + GRACE)


def test_new_checkpoint_succeeds_after_target_restart(world):
    source, target = world.pair()
    directory = world.begin(source)
    writer = world.write(directory / "pages-1.img", BIG, pause=0.01)
    writer.wait_for(4)
    target.kill()
    writer.fails_with("EIO", within=PEER_TIMEOUT + GRACE)
    fresh = world.target(port=target.port)

    world.wait_until_succeeds(["mkdir", source.mountpoint / "fresh"], within=PEER_TIMEOUT + 15)
    world.write(source.mountpoint / "fresh/file", 5 * MIB).succeeds()
    assert world.read(fresh.mountpoint / "fresh/file").succeeds()["sha256"] == digest_of_written(
        5 * MIB
    )
    assert (
        world.write(directory / "late", 10).result(within=5)["errno"] == "EIO"
    ), "the old checkpoint accepts bytes"


# -- SIGTERM during a transfer


def test_sigterm_during_transfer_ends_target_cleanly(world):
    source, target = world.pair()
    writer = world.write(world.begin(source) / "pages-1.img", BIG, pause=0.01)
    writer.wait_for(8)
    reader = world.read(target.mountpoint / "moved/pages-1.img")
    reader.wait_for(2)
    assert target.stop(timeout=10) == 0
    wait_for_mount_to_go(target)
    reader.fails_with(*GONE, within=GRACE)
    writer.fails_with("EIO", within=PEER_TIMEOUT + GRACE)


def test_sigterm_during_transfer_ends_source_cleanly(world):
    source, target = world.pair()
    writer = world.write(world.begin(source) / "pages-1.img", BIG, pause=0.01)
    writer.wait_for(8)
    reader = world.read(target.mountpoint / "moved/pages-1.img")
    reader.wait_for(2)
    assert source.stop(timeout=10) == 0
    wait_for_mount_to_go(source)
    writer.fails_with(*GONE, within=GRACE)
    reader.fails_with("EIO", within=PEER_TIMEOUT + GRACE)
    wait_until_failed(world, target.mountpoint, "moved")


def test_background_daemon_is_mounted_when_command_returns_and_ends_at_unmount(world):
    target, source = world.mountpoint("in"), world.mountpoint("out")
    address = f"127.0.0.1:{free_port()}"
    for role, point, option in (("target", target, "--listen"), ("source", source, "--target")):
        world.succeeds([find_ppmr(), role, point, option, address])
        assert str(point) in world.mounts()
    world.background_pids = [int(pid) for pid in world.run(["pgrep", "-f", address]).out.split()]
    # The two daemons, and the helper that connects for the source.
    assert len(world.background_pids) == 3
    world.write(source / "file", 3 * MIB).succeeds()
    assert world.read(target / "file").succeeds()["sha256"] == digest_of_written(3 * MIB)
    for point in (source, target):
        world.succeeds(["fusermount3", "-u", point])
    wait_until(lambda: not world.mounts(), 10, "both mounts to go")
    wait_until(
        lambda: not [pid for pid in world.background_pids if HOST.alive(pid)],
        10,
        "the daemons to end",
    )
    world.background_pids = []


# -- busy mounts


def test_busy_source_refuses_unmount_and_loses_no_bytes(world):
    source, target = world.pair()
    path = world.begin(source) / "pages-1.img"
    writer = world.write(path, 32 * MIB, pause=0.05)
    writer.wait_for(4)
    assert world.answers(["fusermount3", "-u", source.mountpoint]).code != 0
    writer.succeeds()
    assert world.read(target.mountpoint / "moved/pages-1.img").succeeds()[
        "sha256"
    ] == digest_of_written(32 * MIB)
    assert world.answers(["fusermount3", "-u", source.mountpoint]).code == 0
    assert source.process.wait(timeout=patience(10)) == 0


def test_busy_target_refuses_unmount_and_loses_no_bytes(world):
    source, target = world.pair()
    world.write(world.begin(source) / "pages-1.img", 32 * MIB).succeeds()
    reader = world.read(target.mountpoint / "moved/pages-1.img", pause=0.05)
    reader.wait_for(2)
    assert world.answers(["fusermount3", "-u", target.mountpoint]).code != 0
    assert reader.succeeds()["sha256"] == digest_of_written(32 * MIB)
    assert world.answers(["fusermount3", "-u", target.mountpoint]).code == 0
    assert target.process.wait(timeout=patience(10)) == 0


# -- several sources


def test_two_sources_of_one_target_see_only_their_own_checkpoints(world):
    target = world.target()
    one, two = world.source(target), world.source(target)
    first, second = world.begin(one, "first"), world.begin(two, "second")
    writers = [
        world.write(first / "pages-1.img", 48 * MIB),
        world.write(second / "pages-1.img", 48 * MIB + 1),
    ]
    for writer in writers:
        writer.succeeds()
    assert world.read(target.mountpoint / "first/pages-1.img").succeeds()[
        "sha256"
    ] == digest_of_written(48 * MIB)
    assert world.read(target.mountpoint / "second/pages-1.img").succeeds()[
        "sha256"
    ] == digest_of_written(48 * MIB + 1)
    assert world.run(["ls", one.mountpoint]).out.split() == [
        "first"
    ], "the source sees a checkpoint of another"
    assert world.run(["ls", two.mountpoint]).out.split() == ["second"]
    assert sorted(world.run(["ls", target.mountpoint]).out.split()) == ["first", "second"]


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_source_gets_eexist_for_checkpoint_name_of_another_source(world, kind):
    target = world.target()
    one, two = world.source(target), world.source(target)
    if kind == "directory":
        world.begin(one, "taken")
        ended = world.run(["mkdir", two.mountpoint / "taken"])
        assert ended.code != 0 and "File exists" in ended.err, ended.output
    world.write(
        one.mountpoint / ("taken/file" if kind == "directory" else "taken"), 5 * MIB
    ).succeeds()
    if kind == "file":
        world.write(two.mountpoint / "taken", 10).fails_with("EEXIST", within=10)
    path = "taken/file" if kind == "directory" else "taken"
    assert world.read(target.mountpoint / path).succeeds()["sha256"] == digest_of_written(5 * MIB)


def test_killed_source_does_not_disturb_another_source(world):
    target = world.target()
    one, two = world.source(target), world.source(target)
    dying = world.write(world.begin(one, "dying") / "pages-1.img", BIG, pause=0.01)
    living = world.write(world.begin(two, "living") / "pages-1.img", 64 * MIB, pause=0.02)
    dying.wait_for(4)
    one.kill()
    living.succeeds()
    assert world.read(target.mountpoint / "living/pages-1.img").succeeds()[
        "sha256"
    ] == digest_of_written(64 * MIB)
    wait_until_failed(world, target.mountpoint, "dying")


def test_commit_at_target_fails_and_reports_file_that_is_still_open(world):
    source, target = world.pair()
    directory = world.begin(source)
    with open(directory / "open.img", "wb") as still_open:
        still_open.write(b"some")
        still_open.flush()
        answer = world.ppmr("commit", target.mountpoint / "moved", within=30)
        assert answer.code != 0 and "open.img" in answer.output and "still open" in answer.output
    world.succeeds([find_ppmr(), "commit", target.mountpoint / "moved"], within=30)
