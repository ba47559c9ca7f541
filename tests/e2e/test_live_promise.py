"""What a live move does when it cannot keep its promise of a short downtime."""
import signal
import time

import pytest

from lab.checker import WRITER, Checker
from lab.live import skip_if_kernel_cannot, warnings_of
from lab.node import wait_until
from lab.ppmr import find_ppmr

ABORTED = 11


@pytest.fixture
def writer(lab, nodes):
    """A process that writes its memory faster than the link carries it, also beside other tests: up
    to 160 MiB/s, where the link takes 24."""
    nodes.link.limit("200mbit")
    writer = Checker(lab, nodes, mib=32, program=WRITER, options=[6])
    yield writer
    writer.end()
    nodes.link.limit()


def test_move_that_cannot_keep_its_promise_begins_again_in_post_copy(nodes, migrations, writer):
    done = migrations.migrate(writer.pid, options=["--on-timeout", "post-copy"]).ok()
    skip_if_kernel_cannot(done)
    [again] = [sentence for sentence in warnings_of(done) if "begins again" in sentence]
    assert "it writes its memory as fast as it can be sent" in again, again
    begun = [event["migration"] for event in done.events if event["event"] == "begun"]
    assert len(begun) == len(set(begun)) == 2, "the second move has records of its own"
    (tree,) = done.summary["trees"]
    assert tree["post_copy"] and tree["downtime_s"] < 1.0, "32 MiB take 1.3 s on this link"
    writer.check_runs_at(nodes.target)


def test_dry_run_says_that_the_move_would_begin_again(lab, nodes, migrations, writer):
    earlier = Checker(lab, nodes, mib=16, name="earlier")
    skip_if_kernel_cannot(migrations.migrate(earlier.pid).ok())  # the link is known from now on
    earlier.check_runs_at(nodes.target)
    earlier.end()
    done = migrations.migrate(writer.pid, options=["--on-timeout", "post-copy", "--dry-run"]).ok()
    estimate = next(event for event in done.events if event["event"] == "estimate")
    (move,) = estimate["moves"]
    assert "as fast as it can be sent" in move["why_post_copy"], move
    assert not move["stays"] and move["downtime_s"] < 0.3


# Has 32 MiB of locked memory, and a System V segment of 48 MiB that it shares with a child.
UNCOPIED = """
import ctypes, mmap, os, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
held = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(held)))
assert libc.mlock(address, 32 << 20) == 0, os.strerror(ctypes.get_errno())
segment = libc.shmget(0, 48 << 20, 0o600 | 0o1000)
ctypes.memset(libc.shmat(segment, None, 0), 7, 48 << 20)
print("ready", flush=True)
os.fork()
while True: time.sleep(0.01)
"""


def test_dry_run_names_the_memory_that_no_round_can_copy(lab, nodes, migrations):
    log = lab.home / "log"
    pid = nodes.source.spawn(["unshare", "--ipc", "/usr/bin/python3", "-SEc", UNCOPIED], log=log)
    wait_until(lambda: "ready" in log.read_text(), 10, "the program to run")
    done = migrations.migrate(pid, options=["--dry-run"]).ok()
    estimate = next(event for event in done.events if event["event"] == "estimate")
    frozen = {part["kind"]: part for part in estimate["moves"][0]["frozen"]}
    assert frozen["locked memory"]["bytes"] == 32 << 20
    assert frozen["System V shared memory"]["bytes"] == 48 << 20
    rate = estimate["rate_bytes_per_s"]
    for part in frozen.values():
        assert part["pid"] == pid and abs(part["time_s"] - part["bytes"] / rate) < 0.001
    assert estimate["moves"][0]["downtime_s"] >= sum(part["time_s"] for part in frozen.values())
    nodes.source.signal(-pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "excluded", [["--rehearse"], ["--id", "0123456789abcdef" * 2]], ids=["rehearse", "id"]
)
def test_move_that_may_begin_again_is_refused_where_it_cannot(migrations, checker, excluded):
    options = ["--on-timeout", "post-copy", *excluded]
    done = migrations.migrate(checker.pid, options=options)
    assert done.code == 2 and f"excludes {excluded[0]}" in done.output, done.output


def test_process_that_writes_faster_than_the_link_is_slowed_down(nodes, migrations, writer):
    options = ["--slow-down", "95", "--max-downtime", "600ms", "--on-timeout", "cancel"]
    done = migrations.migrate(writer.pid, options=options).ok()
    skip_if_kernel_cannot(done)
    slowed = [sentence for sentence in warnings_of(done) if "--slow-down" in sentence]
    assert slowed, "its rounds shrink without that"
    writer.check_runs_at(nodes.target)


def test_process_that_is_slowed_down_runs_freely_during_a_pause(nodes, migrations, writer):
    options = ["--slow-down", "95", "--max-downtime", "1ms", "--max-rate", "8M"]
    running = migrations.start_migrate(writer.pid, options=options)

    def is_slowed():
        assert running.running(), running.wait().output
        return any("--slow-down" in event.get("sentence", "") for event in running.events())

    wait_until(is_slowed, 90, "a round in which it is slowed down")
    [record] = migrations.records("source")
    words = [find_ppmr(), "migrate", "--pause", record["id"], "--state-dir"]
    migrations.source_at.run([*words, migrations.states["source"]])
    stopped = 0
    for _ in range(100):
        stopped += "State:\tt" in nodes.source.read_text(f"/proc/{writer.pid}/status")
        time.sleep(0.005)
    assert stopped <= 10, "at 95% it would stand still at 95 of 100 looks"
    running.signal(signal.SIGINT)
    assert running.wait().code == ABORTED
    writer.check_runs_at(nodes.source)


def test_process_that_was_slowed_down_in_vain_runs_as_before(nodes, migrations, writer):
    options = ["--slow-down", "20", "--on-timeout", "cancel"]
    done = migrations.migrate(writer.pid, options=options)
    skip_if_kernel_cannot(done)
    assert done.code == ABORTED and "--max-downtime" in done.output
    assert any("stands still for 20%" in sentence for sentence in warnings_of(done))
    assert "TracerPid:\t0\n" in nodes.source.read_text(f"/proc/{writer.pid}/status")
    writer.check_runs_at(nodes.source)


# The promise includes the time that CRIU takes for each process.
def test_move_of_many_processes_cannot_keep_its_promise(lab, nodes, migrations):
    pid = nodes.source.spawn(["sh", "-c", "for i in $(seq 60); do sleep 600 & done; wait"])

    def children():
        return nodes.source.read_text(f"/proc/{pid}/task/{pid}/children").split()

    wait_until(lambda: len(children()) == 60, 20, "its children")
    done = migrations.migrate(pid, options=["--on-timeout", "cancel"])
    skip_if_kernel_cannot(done)
    assert done.code == ABORTED and "so many processes" in done.output, done.output
    for child in children():
        nodes.source.signal(int(child), signal.SIGKILL)
