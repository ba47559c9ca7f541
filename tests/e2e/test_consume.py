"""--consume: a stream of any size passes through a few MiB on both sides to a sequential reader."""
import os
import subprocess
import time

from lab.node import wait_until
from lab.pace import patience
from lab.world import MIB, digest_of_written

LONG_GIB, EVERYDAY_GIB = 20, 2
SLOWEST = 80 * MIB  # bytes per second; the test fails if the stream is slower
BOUNDED = {
    "source_options": ["--pool-size", "8MiB"],
    "target_options": ["--consume", "--memory-limit", "64MiB"],
}


def test_large_stream_passes_through_bounded_memory(world, long):
    source, target = world.pair(**BOUNDED, peer_timeout=30)
    size = (LONG_GIB if long else EVERYDAY_GIB) * 1024 * MIB
    within = 60 + size / SLOWEST
    began = time.monotonic()
    writer = world.write(source.mountpoint / "stream", size)
    world.wait_for_name(target.mountpoint / "stream")
    reader = world.read(target.mountpoint / "stream")
    got = reader.succeeds(within)
    sent = writer.succeeds(within=10)
    assert got["bytes"] == sent["bytes"] == size
    assert got["sha256"] == sent["sha256"]
    print(
        f"\n{size / MIB / 1024:.1f} GiB in {time.monotonic() - began:.0f} s, "
        f"source {source.memory_kib()['VmHWM'] // 1024} MiB, target {target.memory_kib()['VmHWM'] // 1024} MiB at most"
    )
    assert source.memory_kib()["VmHWM"] < (8 + 32) * 1024
    assert (
        target.memory_kib()["VmHWM"] < (64 + 8 + 64) * 1024
    ), "the target's memory is not bounded by its limit"


def test_writer_of_stream_blocks_until_a_reader_opens_it(world):
    source, target = world.pair(**BOUNDED, peer_timeout=30)
    writer = world.write(source.mountpoint / "stream", 300 * MIB)
    writer.wait_until_stuck(still=1.5)
    assert 8 <= writer.mib() <= 64 + 8 + 2
    assert world.read(target.mountpoint / "stream").succeeds()["sha256"] == digest_of_written(
        300 * MIB
    )
    writer.succeeds()


def test_source_unmounts_when_writer_was_killed_and_stream_has_no_reader(world):
    source, target = world.pair(**BOUNDED, peer_timeout=30)
    writer = world.write(source.mountpoint / "stream", 300 * MIB)
    writer.wait_until_stuck()
    writer.kill()
    world.succeeds(["fusermount3", "-u", source.mountpoint])
    source.process.wait(timeout=patience(10))
    [stream] = world.status(target.mountpoint)["checkpoints"]
    assert stream["state"] == "failed"


def test_directory_passes_through_bounded_memory_if_read_in_writing_order(world):
    source, target = world.pair(**BOUNDED, peer_timeout=30)
    world.succeeds(["mkdir", source.mountpoint / "moved"])
    sizes = [40 * MIB + 3, 1, 0, 70 * MIB, 4097, 30 * MIB]
    for number, size in enumerate(sizes):
        writer = world.write(source.mountpoint / f"moved/file-{number}", size)
        world.wait_for_name(target.mountpoint / f"moved/file-{number}")
        assert world.read(target.mountpoint / f"moved/file-{number}").succeeds()[
            "sha256"
        ] == digest_of_written(size)
        writer.succeeds()


def read_at(world, path, *steps):
    """Reads at each (offset, length) on one descriptor; returns a length or an errno name for
    each."""
    script = """
import errno, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
for step in sys.argv[2:]:
    offset, length = map(int, step.split(","))
    try:
        print(len(os.pread(fd, length, offset)))
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    ended = world.succeeds(
        [
            "/usr/bin/python3",
            "-SEc",
            script,
            path,
            *(f"{offset},{length}" for offset, length in steps),
        ],
        within=10,
    )
    return ended.out.split()


def test_reading_out_of_order_fails_with_espipe_and_does_not_hang(world):
    source, target = world.pair(**BOUNDED)
    world.write(source.mountpoint / "stream", 8 * MIB).succeeds()
    path = target.mountpoint / "stream"
    assert read_at(world, path, (4 * MIB, 100)) == [
        "ESPIPE"
    ], "a first read that is not at offset 0"
    assert read_at(world, path, (0, 4096), (100_000, 10), (0, 4096), (4096, 4096), (0, 1)) == [
        "4096",
        "ESPIPE",
        "ESPIPE",
        "4096",
        "ESPIPE",
    ]


def test_second_reader_gets_espipe(world):
    source, target = world.pair(**BOUNDED)
    world.write(source.mountpoint / "stream", 8 * MIB).succeeds()
    assert world.read(target.mountpoint / "stream").succeeds()["sha256"] == digest_of_written(
        8 * MIB
    )
    world.read(target.mountpoint / "stream").fails_with("ESPIPE", within=10)


def test_tar_unpacks_stream_while_it_arrives(world):
    source, target = world.pair(**BOUNDED, peer_timeout=30)
    tree, unpacked = world.mountpoint("tree"), world.mountpoint("unpacked")
    for number in range(30):
        (tree / f"file-{number}").write_bytes(os.urandom(3 * MIB + number))
    packing = world.start(["tar", "-C", tree, "-cf", source.mountpoint / "stream.tar", "."])
    world.wait_for_name(target.mountpoint / "stream.tar")
    world.succeeds(
        ["sh", "-c", 'tar -C "$1" -xf - < "$0"', target.mountpoint / "stream.tar", unpacked],
        within=60,
    )
    assert packing.wait(timeout=patience(10)) == 0
    world.succeeds(["diff", "-r", tree, unpacked])


def test_overwriting_bytes_that_were_read_and_freed_fails(world):
    source, target = world.pair(**BOUNDED)
    script = """
import errno, os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(fd, bytes(2 << 20))
os.fsync(fd)
print("written", flush=True)
sys.stdin.readline()
try:
    os.pwrite(fd, b"too late", 0)
    os.fsync(fd)
    print("accepted")
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    log_path = world.directory / "writer.log"
    with open(log_path, "wb") as log:
        writer = world.start(
            ["/usr/bin/python3", "-SEc", script, source.mountpoint / "stream"],
            stdin=subprocess.PIPE,
            stdout=log,
        )
    wait_until(lambda: "written" in log_path.read_text(), 10, "2 MiB to be written")
    assert read_at(world, target.mountpoint / "stream", (0, MIB)) == [str(MIB)]
    writer.stdin.write(b"\n")
    writer.stdin.close()
    writer.wait(timeout=patience(10))
    assert log_path.read_text().split()[1] in ("EIO", "ESPIPE")
