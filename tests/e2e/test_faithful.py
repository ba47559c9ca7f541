"""A moved process is what it was: what CRIU forgets of it is there at the target."""
import os
import signal
from pathlib import Path

import pytest

from lab.node import wait_until
from lab.portrait import ROWS, UNSEEN, Portrait, changed
from lab.socket_sweep import SocketSweep

MOVED, REFUSED, LOST = 0, 11, 10


@pytest.mark.parametrize("options", [[], ["--eager"]], ids=["lazy", "eager"])
def test_process_has_the_same_state_after_a_move(lab, nodes, migrations, options):
    # A lock moves with its descriptor. Only in a lazy restore can ppmr restore the lock.
    rows = [row for row in ROWS if row.name != "a held flock" or not options]
    portrait = Portrait(nodes.source, lab.home, rows)
    before = portrait.seen()
    done = migrations.migrate(portrait.pid, options=options, criu_options=["--file-locks"])
    assert done.code == MOVED, done.events
    differs = changed(before, portrait.seen_after(portrait.count()))
    nodes.target.signal(portrait.pid, signal.SIGKILL)
    said = str(done.events)
    for row in rows:
        if row.lost and row.name in before:
            assert row.lost == UNSEEN or row.lost in said
            differs.pop(row.name, None)
    assert not differs


def test_sockets_keep_all_options_that_can_be_read(lab, nodes, migrations):
    """The sweep tries all options that the kernel has, not only those that this suite knows by
    name."""
    sweep = SocketSweep(nodes.source, lab.home)
    before = sweep.seen()
    assert len(before) > 300, "the sweep has found too few options"
    done = migrations.migrate(sweep.pid)
    assert done.code == MOVED, done.output
    differs = changed(before, sweep.seen_after(sweep.count()))
    nodes.target.signal(sweep.pid, signal.SIGKILL)
    assert not differs


# Has an open file and a working directory whose names are not UTF-8.
WITH_ODD_NAMES = """
import os, sys, time
os.chdir(os.fsencode(sys.argv[1]) + b"/d\\xe9")
kept = open(b"caf\\xe9", "w")
while True:
    print(os.uname().nodename, flush=True)
    time.sleep(0.01)
"""


def test_process_moves_with_files_whose_names_are_not_utf8(lab, nodes, migrations):
    os.mkdir(os.fsencode(lab.home) + b"/d\xe9")
    log = lab.home / "log"
    pid = nodes.source.spawn(["/usr/bin/python3", "-SEc", WITH_ODD_NAMES, lab.home], log=log)
    wait_until(lambda: log.exists() and log.read_text(), 10, "the program to run")
    done = migrations.migrate(pid)
    assert done.code == MOVED, done.output
    wait_until(lambda: "target" in log.read_text(), 10, "the program to run at the target")
    nodes.target.signal(pid, signal.SIGKILL)


# Sends to a group by an interface that it has chosen by its index (IP_MULTICAST_IF), and is itself
# a member there.
WITH_MULTICAST = """
import os, socket, struct, time
group, loopback = socket.inet_aton("239.1.2.3"), struct.pack("i", 1)
receiver = socket.socket(type=socket.SOCK_DGRAM); receiver.bind(("239.1.2.3", 7316))
receiver.setsockopt(0, socket.IP_ADD_MEMBERSHIP, group + bytes(4) + loopback)
receiver.settimeout(0.2)
sender = socket.socket(type=socket.SOCK_DGRAM); sender.bind(("", 0))
sender.setsockopt(0, socket.IP_MULTICAST_IF, bytes(8) + loopback)
while True:
    try:
        sender.sendto(b"sent", ("239.1.2.3", 7316))
        print(receiver.recv(9).decode(), "at", os.uname().nodename, flush=True)
    except OSError as error: print(error, flush=True)
    time.sleep(0.01)
"""


def test_multicasts_take_the_same_interface(lab, nodes, migrations):
    log = lab.home / "log"
    pid = nodes.source.spawn(["/usr/bin/python3", "-SEc", WITH_MULTICAST], log=log)
    wait_until(lambda: "sent at source" in log.read_text(), 10, "a multicast to arrive")
    done = migrations.migrate(pid)
    assert done.code == MOVED, done.output
    wait_until(lambda: "sent at target" in log.read_text(), 10, "one to arrive at the target")
    nodes.target.signal(pid, signal.SIGKILL)


# Has a segment of its own (modify_ldt), which its code may use.
WITH_SEGMENT = """
import ctypes, os, struct, sys, time
words = struct.pack("IIII", 0, 0, 0xfffff, 0x51)
is_set = ctypes.CDLL(None).syscall(154, 1, words, len(words)) == 0
ready = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(ready, b"set" if is_set else b"not in this kernel")
while True: time.sleep(0.02)
"""


def test_process_with_segments_of_its_own_stays(lab, nodes, migrations):
    ready = lab.home / "ready"
    pid = nodes.source.spawn(["/usr/bin/python3", "-SEc", WITH_SEGMENT, ready])
    wait_until(lambda: ready.exists() and ready.read_text(), 10, "the program to run")
    if ready.read_text() != "set":
        pytest.skip("NOT TESTED: the kernel has no modify_ldt(2)")
    refused = migrations.migrate(pid)
    assert refused.code == REFUSED, refused.output
    assert "has segments of its own" in refused.output
    nodes.source.signal(pid, signal.SIGKILL)


# Forbids itself to make files (LANDLOCK_ACCESS_FS_MAKE_REG).
LANDLOCKED = """
import ctypes, os, sys, time
call = ctypes.CDLL(None, use_errno=True)
rights = ctypes.c_uint64(1 << 8)
rules = call.syscall(444, ctypes.byref(rights), ctypes.c_size_t(8), 0)
ready = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
if rules < 0 or call.prctl(38, 1, 0, 0, 0) or call.syscall(446, rules, 0):
    os.write(ready, b"not in this kernel")
    sys.exit(1)
os.close(rules)  # CRIU does not support it
os.write(ready, b"restricted")
while True: time.sleep(0.02)
"""
# Forbids itself to make memory executable (PR_SET_MDWE).
WITHOUT_NEW_CODE = """
import ctypes, os, sys, time
is_set = ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0
ready = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(ready, b"restricted" if is_set else b"not in this kernel")
while True: time.sleep(0.02)
"""

# Uses a semaphore of the node (semget, semop).
WITH_SEMAPHORE = """
import ctypes, os, sys, time
call = ctypes.CDLL(None)
number = call.semget(0, 1, 0o600)
is_used = number >= 0 and call.semop(number, bytes([0, 0, 1, 0, 0, 0]), 1) == 0
ready = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(ready, b"restricted" if is_used else b"not in this kernel")
while True: time.sleep(0.02)
"""

# Has a mapping that cannot be changed any more (mseal).
WITH_SEAL = """
import ctypes, mmap, os, sys, time
call = ctypes.CDLL(None)
sealed = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(sealed)))
is_sealed = call.syscall(462, address, 4096, 0) == 0
ready = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(ready, b"restricted" if is_sealed else b"not in this kernel")
while True: time.sleep(0.02)
"""
# Gets a signal for each RDTSC (PR_SET_TSC), so it reads no clock.
WITHOUT_TSC = """
import ctypes, os, sys
call = ctypes.CDLL(None)
is_set = call.prctl(26, 2, 0, 0, 0) == 0
ready = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(ready, b"restricted" if is_set else b"not in this kernel")
while True: call.usleep(20000)
"""
LANDLOCKED_THREAD = LANDLOCKED.replace("while True: time.sleep(0.02)", "time.sleep(600)")
LANDLOCKED_THREAD = (
    f"import threading, time\ndef run(): exec({LANDLOCKED_THREAD!r}, globals())\n"
    "threading.Thread(target=run).start()\nwhile True: time.sleep(0.02)"
)


@pytest.mark.parametrize(
    ("program", "kind", "sentence"),
    [
        (LANDLOCKED, "landlock", "is restricted by Landlock"),
        (LANDLOCKED_THREAD, "landlock", "is restricted by Landlock"),
        (WITH_SEAL, "seals", "has sealed mappings"),
        (WITHOUT_TSC, "cpu-faults", "gets a signal for the instructions RDTSC"),
        (WITHOUT_NEW_CODE, "mdwe", "may not make memory executable"),
        (WITH_SEMAPHORE, "system-v", "uses semaphore set"),
    ],
    ids=["landlock", "landlock of a thread", "seals", "cpu-faults", "mdwe", "system-v"],
)
def test_process_moves_only_if_the_loss_is_accepted(
    lab, nodes, migrations, program, kind, sentence
):
    ready = lab.home / "ready"
    pid = nodes.source.spawn(["/usr/bin/python3", "-SEc", program, ready])
    wait_until(lambda: ready.exists() and ready.read_text(), 10, "the program to run")
    if ready.read_text() != "restricted":
        pytest.skip("NOT TESTED: the kernel has no such restriction")
    for options in (["--dry-run"], []):
        refused = migrations.migrate(pid, options=options)
        assert refused.code == REFUSED, refused.output
        assert sentence in refused.output
        assert f"--allow-loss {kind}" in refused.output
    moved = migrations.migrate(pid, options=["--allow-loss", kind])
    assert moved.code == MOVED and sentence in str(moved.events), moved.output
    nodes.target.signal(pid, signal.SIGKILL)


# Ends by a signal as soon as it runs at the target.
ENDS_THERE = """
import os, signal, time
print("runs", flush=True)
while True:
    if os.uname().nodename == "target": os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.001)
"""


def test_move_of_a_process_that_ends_at_once_is_no_success(lab, nodes, migrations):
    log = lab.home / "log"
    pid = nodes.source.spawn(["/usr/bin/python3", "-SEc", ENDS_THERE], log=log)
    wait_until(lambda: log.read_text(), 10, "the program to run")
    done = migrations.migrate(pid)
    assert done.code == LOST, done.output
    assert "was ended by signal 9" in done.output and "as soon as it ran" in done.output
    assert migrations.records("source")[0]["trees"][0]["lost"]


# A child crashes as soon as it runs at the target, and its parent reaps it.
CHILD_ENDS_THERE = '''
import os, resource, signal, sys, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print("runs", flush=True)
child = os.fork()
while not child:
    if os.uname().nodename == "target": os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    time.sleep(0.001)
os.waitpid(child, 0)
time.sleep(600)
'''


@pytest.mark.parametrize("signal_name, code", [("SIGSEGV", LOST), ("SIGTERM", MOVED)])
def test_crash_of_a_descendant_at_once_is_no_success(lab, nodes, migrations, signal_name, code):
    log = lab.home / "log"
    words = ["/usr/bin/python3", "-SEc", CHILD_ENDS_THERE, signal_name]
    pid = nodes.source.spawn(words, log=log)
    wait_until(lambda: log.read_text(), 10, "the program to run")
    done = migrations.migrate(pid)
    assert done.code == code, done.output
    assert ("as soon as it ran" in done.output) == (code == LOST)
    assert nodes.target.alive(pid), "the others go on"
    nodes.target.signal(pid, signal.SIGKILL)


def test_process_in_a_frozen_control_group_is_named_before_a_move(
    own_cgroup, lab, nodes, migrations
):
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    unified = [words[1] for words in mounts if words[2] == "cgroup2"]
    if not unified:
        pytest.skip("NOT TESTED: no control groups of version 2")
    group = Path(unified[0]) / own_cgroup
    group.mkdir()
    pid = nodes.source.spawn(["/usr/bin/python3", "-SEc", "import time; time.sleep(600)"])
    inside = nodes.source.run(["sh", "-c", f"echo {pid} >{group}/cgroup.procs"], check=False)
    if inside.returncode:
        pytest.skip(f"NOT TESTED: {inside.stderr.strip()}")
    (group / "cgroup.freeze").write_text("1")
    wait_until(lambda: "frozen 1" in (group / "cgroup.events").read_text(), 10, "the freeze")
    try:
        refused = migrations.migrate(pid)
        assert refused.code == REFUSED, refused.output
        assert "is in a frozen control group" in refused.output
        assert f"echo 0 > {group}/cgroup.freeze" in refused.output
    finally:
        (group / "cgroup.freeze").write_text("0")
    moved = migrations.migrate(pid)
    assert moved.code == MOVED, moved.output
    nodes.target.signal(pid, signal.SIGKILL)
    nodes.target.await_end(pid)
