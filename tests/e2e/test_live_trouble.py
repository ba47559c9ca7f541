"""Processes and kernels for which a live move is not possible: the process moves frozen, or stays
with a reason, and runs on."""
import ctypes
import errno
import os
import re
import signal
from pathlib import Path

import pytest

from lab import tracking
from lab.checker import WRITER, Checker
from lab.filtered import without
from lab.live import rounds_of
from lab.node import wait_until
from lab.ppmr import find_ppmr

MOVED, ABORTED = 0, 11
MIB = 1 << 20


def sentences_of(done):
    """What is said about the move: findings, warnings, and why it was aborted."""
    return [
        event.get("sentence") or event.get("error")
        for event in done.events
        if event.get("event") in ("finding", "warning", "aborted")
    ]


SPECIAL = """
import ctypes, os, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
userfaultfd, pidfd_getfd = {"x86_64": 323, "aarch64": 282}[os.uname().machine], 438
io_uring_setup = 425
what, path = sys.argv[1:3]
def check(value):
    if value < 0:
        print("ERROR", os.strerror(ctypes.get_errno()), file=lines)
        sys.exit()
    return value
lines = open(path, "w", buffering=1)
if what == "io_uring":
    ring = check(libc.syscall(io_uring_setup, 4, ctypes.create_string_buffer(120)))
else:
    events = check(libc.syscall(userfaultfd, 1 | os.O_CLOEXEC))
    api = struct.pack("QQQ", 0xAA, 0, 0)
    check(libc.ioctl(events, ctypes.c_ulong(0xC018AA3F), api))
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    memory = libc.mmap(None, 1 << 20, 3, 0x22, -1, 0)
    ctypes.memset(memory, 7, 1 << 20)
    missing = 1
    check(libc.ioctl(events, ctypes.c_ulong(0xC020AA00),
                     struct.pack("QQQQ", memory, 1 << 20, missing, 0)))
    if what == "given away":
        print(events, file=lines)
        while not os.path.exists(path + ".taken"):
            time.sleep(0.01)
        os.close(events)
while True:
    print(os.uname().nodename, file=lines)
    time.sleep(0.01)
"""


def start_special(lab, nodes, what):
    """Returns the pid and the file of its lines."""
    path = lab.home / "special"
    pid = nodes.source.spawn(["/usr/bin/python3", "-SEc", SPECIAL, what, path])
    wait_until(lambda: path.exists() and path.read_text(), 20, "the program to start")
    if "ERROR" in path.read_text():
        pytest.skip(f"NOT TESTED: {what}: {path.read_text()}")
    return pid, path


def check_runs_on(path, node):
    lines = len(path.read_text().splitlines())
    wait_until(lambda: len(path.read_text().splitlines()) > lines + 10, 20, "more lines")
    assert path.read_text().splitlines()[-1] == node.name


@pytest.mark.parametrize("what", ["io_uring", "userfaultfd"])
def test_process_with_what_criu_refuses_stays_before_a_round(lab, nodes, migrations, what):
    pid, path = start_special(lab, nodes, what)
    done = migrations.migrate(pid)
    assert done.code == ABORTED, done.output
    assert any(f"[{what}], which CRIU does not support" in one for one in sentences_of(done))
    assert not any(event.get("event") == "copying" for event in done.events)
    check_runs_on(path, nodes.source)
    nodes.source.signal(pid, signal.SIGKILL)


def take_descriptor(node, pid, number):
    [host_pid] = [on_host for on_host, on_node in node.all_processes() if on_node == pid]
    handle, pidfd_getfd = os.pidfd_open(host_pid), 438
    taken = ctypes.CDLL(None).syscall(pidfd_getfd, handle, number, 0)
    os.close(handle)
    assert taken >= 0
    return taken


def test_process_that_another_program_watches_by_userfaultfd_moves_frozen(lab, nodes, migrations):
    pid, path = start_special(lab, nodes, "given away")
    events = take_descriptor(nodes.source, pid, int(path.read_text()))
    path.with_name("special.taken").touch()
    wait_until(lambda: nodes.source.name in path.read_text(), 20, "the program to close it")
    refused = migrations.migrate(pid, options=["--on-timeout", "cancel"])
    assert refused.code == ABORTED and "another userfaultfd" in refused.output, refused.output
    check_runs_on(path, nodes.source)
    done = migrations.migrate(pid).ok()
    assert any("another userfaultfd" in sentence for sentence in sentences_of(done)), done.output
    assert rounds_of(done) == []
    check_runs_on(path, nodes.target)
    os.close(events)
    nodes.target.signal(pid, signal.SIGKILL)


# Yama with the value 3 forbids ptrace to everybody, and this cannot be taken back. So here only
# ppmr and CRIU lack ptrace.
def test_node_that_forbids_ptrace_is_a_finding(nodes, migrations, checker):
    done = migrations.migrate(checker.pid, through=without(ptrace=errno.EPERM))
    assert done.code == ABORTED, done.output
    assert any("ptrace_scope" in sentence for sentence in sentences_of(done)), done.output
    assert not checker.is_tracked()
    checker.check_runs_at(nodes.source)


YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


def test_yama_that_lets_only_administrators_trace_does_not_stop_a_live_move(
    nodes, migrations, checker
):
    if not YAMA.exists():
        pytest.skip("NOT TESTED: Yama: this kernel does not have it")
    before = YAMA.read_text()
    try:
        YAMA.write_text("2")
    except OSError as error:
        pytest.skip(f"NOT TESTED: Yama: {error}")
    try:
        done = migrations.migrate(checker.pid).ok()
    finally:
        YAMA.write_text(before)
    assert rounds_of(done)
    checker.check_runs_at(nodes.target)


def test_kernel_that_tracks_no_writes_is_named_once_and_all_move_frozen(lab, nodes, migrations):
    checkers = [Checker(lab, nodes, name=f"checker-{number}") for number in range(2)]
    pids = [checker.pid for checker in checkers]
    untracked = without(userfaultfd=errno.ENOSYS)  # and this kernel has no soft-dirty bits
    cancel = ["--on-timeout", "cancel"]
    refused = migrations.migrate(*pids, options=cancel, through=untracked)
    if refused.code == MOVED:
        pytest.skip("NOT TESTED: a kernel without a tracker: this one has soft-dirty bits")
    assert refused.code == ABORTED and "does not track written memory" in refused.output
    for checker in checkers:
        checker.check_runs_at(nodes.source)
    done = migrations.migrate(*pids, options=["--independent"], through=untracked).ok()
    named = [one for one in sentences_of(done) if "CONFIG_MEM_SOFT_DIRTY" in one]
    assert len(named) == 1 and "while the processes are frozen" in named[0], done.output
    assert rounds_of(done) == []
    for checker in checkers:
        checker.check_runs_at(nodes.target)
        checker.end()


def expected_ms(sentence):
    """The time that a sentence about a broken promise names."""
    return int(re.search(r"expected to stand still for (\d+) ms", sentence)[1])


# At 100 Mbit/s the link takes 12 MB/s: much less than the process writes. Without a limit, the link
# takes what the process writes as fast as it can be read.
@pytest.mark.parametrize("rate", ["100mbit", None], ids=["slow link", "fast link"])
@pytest.mark.parametrize("rule", ["freeze", "cancel"])
def test_process_that_writes_faster_than_the_link_moves_or_stays_by_the_rule(
    lab, nodes, migrations, rule, rate
):
    mib = 24
    writer = Checker(lab, nodes, mib=mib, program=WRITER, options=[0])
    nodes.link.limit(rate)
    options = ["--max-downtime", "10ms", "--on-timeout", rule]
    done = migrations.migrate(writer.pid, options=options, timeout=60)
    nodes.link.limit()
    broken = [one for one in sentences_of(done) if "--max-downtime (10 ms)" in one]
    assert len(broken) == 1, done.output
    rounds = rounds_of(done)
    # A memory of less than 64 MiB counts as 64 MiB (live_rounds.cc).
    assert rounds and sum(rounds) <= 4.5 * 64 * MIB, "at most four times the memory, then the rule"
    if rule == "cancel":
        assert done.code == ABORTED and expected_ms(broken[0]) > 10, done.output
        assert not is_tracked_at(nodes.source, writer.pid)
        writer.check_runs_at(nodes.source)
        writer.end()
        return
    assert done.code == MOVED, done.output
    [tree] = done.summary["trees"]
    # The link decides how long the rest takes; without a limit, a busy machine does.
    if rate:
        expected_s = expected_ms(broken[0]) / 1000
        assert expected_s / 2 < tree["downtime_s"] < expected_s * 2, (tree, broken)
    writer.check_runs_at(nodes.target)
    writer.end()


def is_tracked_at(node, pid):
    [host_pid] = [on_host for on_host, on_node in node.all_processes() if on_node == pid]
    return tracking.is_tracked(host_pid) or bool(tracking.userfaultfds(node))


def used_at_target(migrations):
    return migrations.target.status()["store"]["used_bytes"]


def test_target_that_runs_out_of_memory_in_a_round_keeps_nothing(nodes, make_migrations, checker):
    migrations = make_migrations(target_options=["--memory-limit", "160MiB"])
    running = migrations.start_migrate(checker.pid, options=["--max-rate", "1M"])
    wait_until(lambda: used_at_target(migrations) > MIB, 20, "a round to begin")
    another = migrations.out / "another checkpoint"
    write = ["dd", "if=/dev/zero", f"of={another}", "bs=1M", "count=128", "conv=fsync"]
    migrations.source_at.run(write)
    [record] = migrations.records("source")
    words = ["migrate", "--set", record["id"], "max-rate=0", "--state-dir"]
    migrations.source_at.run([find_ppmr(), *words, migrations.states["source"]])
    done = running.wait()
    assert done.code == ABORTED and "--memory-limit" in done.output, done.output
    assert rounds_of(done) == [], "the first round was complete"
    assert not checker.is_tracked()
    checker.check_runs_at(nodes.source)
    wait_until(lambda: used_at_target(migrations) == 128 * MIB, 20, "its memory to be freed")
    migrations.source_at.run(["rm", another])
    migrations.migrate(checker.pid).ok()
    checker.check_runs_at(nodes.target)


# The tracker and CRIU need one descriptor in the process for a moment.
FULL = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
lines = open(sys.argv[1], "w", buffering=1)
try:
    while True:
        os.open("/dev/null", os.O_RDONLY)
except OSError:
    pass
while True:
    print(os.uname().nodename, file=lines)
    time.sleep(0.01)
"""


@pytest.mark.parametrize("options", [[], ["--stop-and-copy"]], ids=["live", "stop-and-copy"])
def test_process_that_has_no_descriptor_left_stays(lab, nodes, migrations, options):
    path = lab.home / "special"
    pid = nodes.source.spawn(["/usr/bin/python3", "-SEc", FULL, path])
    wait_until(lambda: path.exists() and path.read_text(), 20, "the program to start")
    done = migrations.migrate(pid, options=options)
    assert done.code == ABORTED, done.output
    [why] = [sentence for sentence in sentences_of(done) if "Too many open files" in sentence]
    assert "prlimit --nofile" in why
    assert not is_tracked_at(nodes.source, pid)
    check_runs_on(path, nodes.source)
    nodes.source.signal(pid, signal.SIGKILL)
