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
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(file, fcntl.LOCK_EX)
open(sys.argv[2], "w").write("got it")
time.sleep(0.5)
"""


def start_holder(lab, nodes, kind):
    locked, log = lab.home / "locked", lab.home / "holder"
    pid = nodes.source.spawn(["/usr/bin/python3", "-SEc", HOLDER, kind, locked], log=log)
    wait_until(lambda: log.exists() and log.read_text(), 10, "the holder to run")
    return pid, locked, log


def is_free(locked):
    with open(locked) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_lock_on_shared_storage_moves(lab, nodes, migrations):
    pid, locked, log = start_holder(lab, nodes, "flock")
    rehearsed = migrations.migrate(pid, options=["--rehearse"], criu_options=OPTION)
    assert rehearsed.code == MOVED, rehearsed.output
    assert not is_free(locked), "the rehearsal has taken the lock from its original"
    moved = migrations.migrate(pid, criu_options=OPTION)
    assert moved.code == MOVED, moved.output
    wait_until(lambda: "target" in log.read_text(), 10, "the holder to run at the target")
    assert not is_free(locked)
    nodes.target.signal(pid, signal.SIGKILL)
    wait_until(lambda: is_free(locked), 10, "the lock to be free")


def test_process_does_not_run_while_another_program_has_its_lock(lab, nodes, migrations):
    pid, locked, log = start_holder(lab, nodes, "flock")
    got = lab.home / "got"
    waiter = nodes.source.spawn(["/usr/bin/python3", "-SEc", WAITER, locked, got])
    wait_until(lambda: "-> FLOCK" in nodes.source.read_text("/proc/locks"), 10, "a waiter")
    moved = migrations.migrate(pid, criu_options=OPTION)
    assert moved.code == MOVED, moved.output
    assert got.read_text() == "got it", "the test has missed the moment"
    assert moved.summary["trees"][0]["downtime_s"] > 0.5, "it ran without its lock"
    assert not nodes.source.alive(waiter) and not is_free(locked)
    nodes.target.signal(pid, signal.SIGKILL)


@pytest.mark.parametrize("kind, options", [("posix", []), ("flock", ["--eager"])])
def test_lock_that_only_criu_could_take_is_refused(lab, nodes, migrations, kind, options):
    pid, _, log = start_holder(lab, nodes, kind)
    refused = migrations.migrate(pid, options=options, criu_options=OPTION)
    assert refused.code == REFUSED, refused.output
    assert "is one file for both nodes" in refused.output
    nodes.source.signal(pid, signal.SIGKILL)
