"""A process keeps its lock on a file that both nodes share."""
import fcntl
import signal

import pytest

from lab.node import wait_until

MOVED, REFUSED = 0, 11
OPTION = ["--file-locks"]

HOLDER = """
import fcntl, os, struct, sys, time
file = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
if sys.argv[1] == "flock": fcntl.flock(file, fcntl.LOCK_EX)
if sys.argv[1] == "ofd": fcntl.fcntl(file, 37, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
if sys.argv[1] == "posix": fcntl.lockf(file, fcntl.LOCK_EX)
while True:
    print(os.uname().nodename, flush=True)
    time.sleep(0.01)
"""

# Waits for the lock, so the kernel gives it the lock when the holder dies.
WAITER = """
import fcntl, os, sys, time
file = os.open(sys.argv[2], os.O_RDWR)
(fcntl.lockf if sys.argv[1] == "posix" else fcntl.flock)(file, fcntl.LOCK_EX)
open(sys.argv[3], "w").write("got it")
time.sleep(0.5)
"""
WAITS = {"flock": "-> FLOCK", "posix": "-> POSIX"}


def start_holder(lab, nodes, kind, locked=None):
    locked, log = locked or lab.home / "locked", lab.home / "holder"
    pid = nodes.source.spawn(["/usr/bin/python3", "-SEc", HOLDER, kind, locked], log=log)
    wait_until(lambda: log.exists() and log.read_text(), 10, "the holder to run")
    return pid, locked, log


def is_free(kind, locked):
    lock = fcntl.lockf if kind == "posix" else fcntl.flock
    with open(locked, "r+") as file:
        try:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.parametrize("kind", ["flock", "posix"])
def test_lock_on_shared_storage_moves(lab, nodes, migrations, kind):
    pid, locked, log = start_holder(lab, nodes, kind)
    rehearsed = migrations.migrate(pid, options=["--rehearse"], criu_options=OPTION)
    assert rehearsed.code == MOVED, rehearsed.output
    assert not is_free(kind, locked), "the rehearsal has taken the lock from its original"
    moved = migrations.migrate(pid, criu_options=OPTION)
    assert moved.code == MOVED, moved.output
    wait_until(lambda: "target" in log.read_text(), 10, "the holder to run at the target")
    assert not is_free(kind, locked)
    nodes.target.signal(pid, signal.SIGKILL)
    wait_until(lambda: is_free(kind, locked), 10, "the lock to be free")


@pytest.mark.parametrize("kind", ["flock", "posix"])
def test_process_does_not_run_while_another_program_has_its_lock(lab, nodes, migrations, kind):
    pid, locked, log = start_holder(lab, nodes, kind)
    got = lab.home / "got"
    waiter = nodes.source.spawn(["/usr/bin/python3", "-SEc", WAITER, kind, locked, got])
    wait_until(lambda: WAITS[kind] in nodes.source.read_text("/proc/locks"), 10, "a waiter")
    moved = migrations.migrate(pid, criu_options=OPTION)
    assert moved.code == MOVED, moved.output
    assert got.read_text() == "got it", "the test has missed the moment"
    assert moved.summary["trees"][0]["downtime_s"] > 0.5, "it ran without its lock"
    assert not nodes.source.alive(waiter) and not is_free(kind, locked)
    nodes.target.signal(pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["flock", "posix"])
def test_lock_that_another_program_has_at_the_target_aborts(lab, nodes, migrations, kind):
    """The file is not shared: each node has its own."""
    locked = "/run/only-here/locked"
    for node in (nodes.source, nodes.target):
        node.run(["mkdir", "-p", "/run/only-here"])
        node.run(["touch", locked])
    got = lab.home / "got"
    other = ["/usr/bin/python3", "-SEc", WAITER.replace("0.5", "600"), kind, locked, got]
    nodes.target.spawn(other, first_pid=4000)
    wait_until(got.exists, 10, "the other program to have the lock")
    pid, _, log = start_holder(lab, nodes, kind, locked)
    kept = migrations.migrate(pid, criu_options=OPTION)
    assert kept.code == REFUSED, kept.output
    assert locked in kept.output and "end that program" in kept.output
    assert nodes.source.alive(pid) and "target" not in log.read_text()
    nodes.source.signal(pid, signal.SIGKILL)


@pytest.mark.parametrize("mode", ["--eager", "--post-copy"])
def test_lock_that_the_target_could_not_take_is_refused(lab, nodes, migrations, mode):
    pid, _, log = start_holder(lab, nodes, "flock")
    refused = migrations.migrate(pid, options=[mode], criu_options=OPTION)
    assert refused.code == REFUSED, refused.output
    assert "is one file for both nodes" in refused.output and f"without {mode}" in refused.output
    nodes.source.signal(pid, signal.SIGKILL)
