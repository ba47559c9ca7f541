"""Peers that are silent for a while: stopped daemons, cut links.

No call hangs, and no call reports success for lost bytes. The mounts of the other side still
answer.
"""
import errno
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lab import criu
from lab.node import LabError, wait_until
from lab.pace import patience
from lab.ppmr import find_ppmr
from lab.programs import SteadyWorker, check_continuity
from lab.world import (
    BIG,
    SMALL_POOL,
    GRACE,
    MIB,
    NEVER,
    PEER_TIMEOUT,
    ask,
    digest_of_written,
    wait_for_mount_to_go,
    wait_until_failed,
)

MANY = 12  # more threads than a daemon starts with, on any machine

# `ppmr status` asks all daemons of this machine, so tests that stop one must not run beside each
# other.
pytestmark = pytest.mark.xdist_group("stopped daemons")


# -- stalled peers


def test_source_mount_answers_ls_and_status_while_target_is_stalled(world):
    source, target = world.pair(SMALL_POOL, peer_timeout=NEVER)
    directory = world.begin(source)
    world.write(directory / "small", 100).succeeds()
    target.signal(signal.SIGSTOP)
    writer = world.write(directory / "pages-1.img", BIG)
    writer.wait_until_stuck()
    assert world.answers(["ls", "-la", source.mountpoint]).code == 0
    listed = world.answers(["ls", "-laR", directory])
    assert listed.code == 0 and "pages-1.img" in listed.out
    assert world.answers(["stat", directory / "pages-1.img"]).code == 0
    assert world.answers(["df", source.mountpoint]).code == 0
    world.answers(
        [find_ppmr(), "status"]
    )  # includes the stalled daemon, so the exit code may be an error
    assert world.answers([find_ppmr(), "status", source.mountpoint, "--json"]).code == 0
    writer.kill()
    assert world.answers(["fusermount3", "-u", source.mountpoint]).code == 0
    source.process.wait(timeout=patience(10))


def test_close_does_not_wait_if_errors_are_deferred_to_the_seal(world):
    source, target = world.pair(SMALL_POOL, peer_timeout=NEVER)
    directory = world.begin(source)
    assert ask(source.mountpoint, op="defer-errors", checkpoint="moved") == {"ok": True}
    assert ask(source.mountpoint, op="defer-errors", checkpoint="none")["errno"] == errno.ENOENT
    target.signal(signal.SIGSTOP)
    for number in range(2):  # far smaller than the pool: a slow writer needs more slots
        world.write(directory / f"pages-{number}.img", MIB).succeeds()
    target.signal(signal.SIGCONT)
    world.succeeds([find_ppmr(), "commit", directory])
    for number in range(2):
        found = world.read(target.mountpoint / f"moved/pages-{number}.img").succeeds()
        assert found["sha256"] == digest_of_written(MIB)


def test_seal_reports_errors_that_close_did_not(world):
    source, _ = world.pair(SMALL_POOL, ["--memory-limit", "16MiB"])
    directory = world.begin(source)
    assert ask(source.mountpoint, op="defer-errors", checkpoint="moved") == {"ok": True}
    for number in range(20):
        world.write(directory / f"pages-{number}.img", 2 * MIB).result(within=20)
    refused = world.answers([find_ppmr(), "commit", directory])
    assert refused.code != 0 and "moved" in refused.err, refused


def test_ls_works_with_more_blocked_writers_than_daemon_threads(world):
    source, target = world.pair(SMALL_POOL, peer_timeout=NEVER)
    directory = world.begin(source)
    target.signal(signal.SIGSTOP)
    writers = [world.write(directory / f"pages-{number}.img", BIG) for number in range(MANY)]
    for writer in writers:
        writer.wait_until_stuck(still=0.2)
    listed = world.answers(["ls", "-la", directory])
    assert listed.code == 0 and listed.out.count("pages-") == MANY
    for writer in writers:
        writer.kill()


BLOCKED_WRITERS = 600
WRITE_AT_ONCE = """
import os, sys, threading
directory, count, size = sys.argv[1], int(sys.argv[2]), 1 << 20
fds = [os.open(f"{directory}/pages-{n}.img", os.O_WRONLY | os.O_CREAT) for n in range(count)]
def write(fd, byte):
    block = memoryview(bytes([byte]) * size)
    while block:
        block = block[os.write(fd, block):]
threads = [threading.Thread(target=write, args=(fd, n % 256)) for n, fd in enumerate(fds)]
print("opened", flush=True)
sys.stdin.readline()
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_source_serves_metadata_while_hundreds_of_writers_block(world):
    source, target = world.pair(SMALL_POOL, peer_timeout=NEVER)
    directory = world.begin(source)
    before_kib = source.memory_kib()["VmRSS"]
    script = ["/usr/bin/python3", "-SEc", WRITE_AT_ONCE, directory, BLOCKED_WRITERS]
    writers = world.start(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writers.stdout.readline() == b"opened\n"
    target.signal(signal.SIGSTOP)
    writers.stdin.write(b"\n")
    writers.stdin.flush()
    threads = Path(f"/proc/{source.host_pid}/task")
    wait_until(
        lambda: len(list(threads.iterdir())) > BLOCKED_WRITERS * 0.9, 60, "the writers to block"
    )
    listed = world.answers(["ls", "-la", directory])
    assert listed.code == 0 and listed.out.count("pages-") == BLOCKED_WRITERS
    grown_mib = (source.memory_kib()["VmRSS"] - before_kib) / 1024
    # 32 MiB, 64 KiB for each further writer, and the threads.
    assert grown_mib < 32 + BLOCKED_WRITERS * 0.125, f"{grown_mib:.0f} MiB more"
    target.signal(signal.SIGCONT)
    assert writers.wait(timeout=patience(60)) == 0
    assert world.ppmr("commit", directory, within=60).code == 0
    for number in (0, BLOCKED_WRITERS - 1):
        content = (target.mountpoint / f"moved/pages-{number}.img").read_bytes()
        assert content == bytes([number % 256]) * MIB


def test_target_mount_answers_ls_and_status_while_source_is_stalled(world):
    source, target = world.pair(peer_timeout=NEVER)
    writer = world.write(world.begin(source) / "pages-1.img", BIG, pause=0.02)
    writer.wait_for(4)
    source.signal(signal.SIGSTOP)
    reader = world.read(target.mountpoint / "moved/pages-1.img")
    reader.wait_until_stuck()
    assert world.answers(["ls", target.mountpoint]).code == 0
    assert world.answers(["ls", target.mountpoint / "moved"]).code == 0
    assert world.answers(["df", target.mountpoint]).code == 0
    world.answers(
        [find_ppmr(), "status"]
    )  # includes the stalled daemon, so the exit code may be an error
    assert world.answers([find_ppmr(), "status", target.mountpoint, "--json"]).code == 0
    reader.kill()
    assert world.answers(["fusermount3", "-u", target.mountpoint]).code == 0
    target.process.wait(timeout=patience(10))


@pytest.mark.parametrize("stalled", ["source", "target"])
def test_sigterm_ends_daemon_while_peer_is_stalled(world, stalled):
    source, target = world.pair(SMALL_POOL, peer_timeout=NEVER)
    writer = world.write(world.begin(source) / "pages-1.img", BIG, pause=0.02)
    writer.wait_for(4)
    (source if stalled == "source" else target).signal(signal.SIGSTOP)
    if stalled == "target":
        writer.wait_until_stuck(still=0.5)
    ending = target if stalled == "source" else source
    assert ending.stop(timeout=10) == 0
    wait_for_mount_to_go(ending)


@pytest.mark.parametrize("stalled", ["source", "target"])
def test_stall_shorter_than_peer_timeout_loses_no_bytes(world, stalled):
    source, target = world.pair(SMALL_POOL, peer_timeout=20)
    writer = world.write(world.begin(source) / "pages-1.img", 96 * MIB, pause=0.01)
    writer.wait_for(8)
    reader = world.read(target.mountpoint / "moved/pages-1.img")
    daemon = source if stalled == "source" else target
    for mib in (16, 32, 48):
        daemon.signal(signal.SIGSTOP)
        reader.wait_until_stuck()
        daemon.signal(signal.SIGCONT)
        reader.wait_for(mib)
    writer.succeeds()
    assert reader.succeeds()["sha256"] == digest_of_written(96 * MIB)


def test_writer_gets_eio_when_target_stalls_longer_than_peer_timeout(world):
    source, target = world.pair(SMALL_POOL)
    writer = world.write(world.begin(source) / "pages-1.img", BIG)
    writer.wait_for(8)
    target.signal(signal.SIGSTOP)
    writer.fails_with("EIO", within=PEER_TIMEOUT + GRACE)


def test_reader_gets_eio_when_source_stalls_longer_than_peer_timeout(world):
    source, target = world.pair()
    writer = world.write(world.begin(source) / "pages-1.img", BIG, pause=0.02)
    writer.wait_for(8)
    reader = world.read(target.mountpoint / "moved/pages-1.img")
    reader.wait_for(4)
    source.signal(signal.SIGSTOP)
    reader.fails_with("EIO", within=PEER_TIMEOUT + GRACE)
    wait_until_failed(world, target.mountpoint, "moved")
    # The reader has got EIO. The source must not report success when it continues.
    source.signal(signal.SIGCONT)
    writer.fails_with("EIO", within=PEER_TIMEOUT + GRACE)


# -- a cut link


@pytest.fixture
def cut(nodes, world):
    """Daemons on two nodes whose link can be cut."""

    def make(peer_timeout):
        target = world.target(at=nodes.target, port=7911, peer_timeout=peer_timeout)
        source = world.source(target, *SMALL_POOL, at=nodes.source, peer_timeout=peer_timeout)
        world.succeeds(["mkdir", source.mountpoint / "moved"], at=nodes.source)
        return source, target

    return make


def test_link_cut_shorter_than_peer_timeout_loses_no_bytes(nodes, world, cut):
    source, target = cut(peer_timeout=30)
    writer = world.write(
        source.mountpoint / "moved/pages-1.img", 96 * MIB, pause=0.02, at=nodes.source
    )
    writer.wait_for(8)
    reader = world.read(target.mountpoint / "moved/pages-1.img", at=nodes.target)
    nodes.link.set_up(False)
    writer.wait_until_stuck(still=2)
    nodes.link.set_up(True)
    writer.succeeds(within=60)
    assert reader.succeeds(within=30)["sha256"] == digest_of_written(96 * MIB)


def test_both_sides_get_eio_when_link_is_cut_longer_than_peer_timeout(nodes, world, cut):
    source, target = cut(peer_timeout=PEER_TIMEOUT)
    writer = world.write(source.mountpoint / "moved/pages-1.img", BIG, pause=0.01, at=nodes.source)
    writer.wait_for(8)
    reader = world.read(target.mountpoint / "moved/pages-1.img", at=nodes.target)
    reader.wait_for(2)
    nodes.link.set_up(False)
    cut_at = time.monotonic()
    writer.fails_with("EIO", within=PEER_TIMEOUT + GRACE)
    reader.fails_with("EIO", within=max(1, PEER_TIMEOUT + GRACE + cut_at - time.monotonic()))
    wait_until_failed(world, target.mountpoint, "moved", at=nodes.target)
    # After the link is restored, a new checkpoint succeeds. The failed checkpoint stays failed.
    nodes.link.set_up(True)
    world.wait_until_succeeds(
        ["mkdir", source.mountpoint / "fresh"], within=PEER_TIMEOUT + 15, at=nodes.source
    )
    world.write(source.mountpoint / "fresh/file", 5 * MIB, at=nodes.source).succeeds()
    assert world.read(target.mountpoint / "fresh/file", at=nodes.target).succeeds()[
        "sha256"
    ] == digest_of_written(5 * MIB)
    assert (
        world.read(target.mountpoint / "moved/pages-1.img", at=nodes.target).result(within=5)[
            "errno"
        ]
        == "EIO"
    )


# -- a dump whose target dies


def test_dump_fails_and_process_continues_when_target_is_killed(lab, nodes, world, cut):
    try:
        criu.find_criu()
        worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=128)
    except LabError as missing:
        pytest.skip(str(missing))
    source, target = cut(peer_timeout=PEER_TIMEOUT)
    nodes.link.limit("200mbit")  # at this rate 128 MiB take some seconds
    worker.wait_for_lines(20)
    work = nodes.source.scratch("dump-work")
    dump = world.start(
        [
            criu.find_criu(),
            "dump",
            "-t",
            worker.pid,
            "-D",
            source.mountpoint / "moved",
            "-W",
            work,
            "-o",
            "dump.log",
        ],
        at=nodes.source,
    )

    wait_until(
        lambda: nodes.link.received_bytes(nodes.target) > 24 * MIB or dump.poll() is not None,
        30,
        "24 MiB of the dump to arrive",
    )
    assert dump.poll() is None, "the dump ended before its target could be killed"
    target.kill()
    assert dump.wait(timeout=patience(PEER_TIMEOUT + GRACE + 10)) != 0, "criu dump reported success"
    assert nodes.source.alive(worker.pid), "the process did not survive its failed dump"
    worker.wait_for_lines(30)
    check_continuity(worker.lines())
    assert {line["node"] for line in worker.lines()} == {nodes.source.name}
    audit = worker.audit()
    assert audit["digest"] == audit["expected"]
    worker.end()
