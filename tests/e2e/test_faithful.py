"""A moved process is what it was: what CRIU forgets of it is there at the target."""
import signal

import pytest

from lab.node import wait_until

MOVED, REFUSED = 0, 11

# Prints one line for each look at itself: the node, and its attributes and socket options.
SELF_PORTRAIT = """
import ctypes, os, socket, time
call = ctypes.CDLL(None)
PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_SET_TIMERSLACK, PR_GET_TIMERSLACK = 1, 2, 29, 30
SYS_IOPRIO_SET, SYS_IOPRIO_GET = 251, 252
call.prctl(PR_SET_PDEATHSIG, 9)
call.prctl(PR_SET_TIMERSLACK, 12345)
call.syscall(SYS_IOPRIO_SET, 1, 0, 2 << 13 | 7)
os.sched_setaffinity(0, {0})
open("/proc/self/coredump_filter", "w").write("0x7f")
options = [(6, 18, 30000), (6, 7, 3), (6, 2, 1000), (0, 12, 1), (0, 10, 2)]
made = [socket.socket(type=socket.SOCK_STREAM if level == 6 else socket.SOCK_DGRAM)
        for level, name, value in options]
for one, (level, name, value) in zip(made, options): one.setsockopt(level, name, value)
while True:
    death = ctypes.c_int()
    call.prctl(PR_GET_PDEATHSIG, ctypes.byref(death))
    print(os.uname().nodename, death.value, call.prctl(PR_GET_TIMERSLACK),
          call.syscall(SYS_IOPRIO_GET, 1, 0), sorted(os.sched_getaffinity(0)),
          open("/proc/self/coredump_filter").read().strip(),
          [one.getsockopt(level, name) for one, (level, name, _) in zip(made, options)], flush=True)
    time.sleep(0.02)
"""


@pytest.mark.parametrize("options", [[], ["--eager"]], ids=["lazy", "eager"])
def test_process_keeps_what_criu_forgets(lab, nodes, migrations, options):
    log = lab.home / "portrait"
    pid = nodes.source.spawn(["/usr/bin/python3", "-SEc", SELF_PORTRAIT], log=log)
    wait_until(lambda: log.exists() and "[0]" in log.read_text(), 10, "the program to run")
    done = migrations.migrate(pid, options=options)
    assert done.code == MOVED, done.output
    lines = len(log.read_text().splitlines())
    wait_until(lambda: len(log.read_text().splitlines()) > lines + 10, 10, "the program to go on")
    nodes.target.signal(pid, signal.SIGKILL)
    portraits = {line.split(" ", 1)[1] for line in log.read_text().splitlines()[:-1]}
    assert len(portraits) == 1, portraits


# May make no files from then on (LANDLOCK_ACCESS_FS_MAKE_REG).
RESTRICTED = """
import ctypes, os, sys, time
call = ctypes.CDLL(None, use_errno=True)
rights = ctypes.c_uint64(1 << 8)
rules = call.syscall(444, ctypes.byref(rights), ctypes.c_size_t(8), 0)
ready = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
if rules < 0 or call.prctl(38, 1, 0, 0, 0) or call.syscall(446, rules, 0):
    os.write(ready, b"no Landlock")
    sys.exit(1)
os.close(rules)  # CRIU does not support it
os.write(ready, b"restricted")
while True: time.sleep(0.02)
"""


def test_restricted_process_moves_only_if_the_loss_is_accepted(lab, nodes, migrations):
    ready = lab.home / "ready"
    pid = nodes.source.spawn(["/usr/bin/python3", "-SEc", RESTRICTED, ready])
    wait_until(lambda: ready.exists() and ready.read_text(), 10, "the program to run")
    if ready.read_text() != "restricted":
        pytest.skip("NOT TESTED: the kernel has no Landlock")
    for options in (["--dry-run"], []):
        refused = migrations.migrate(pid, options=options)
        assert refused.code == REFUSED, refused.output
        assert "is restricted by Landlock" in refused.output
        assert "--allow-loss landlock" in refused.output
    moved = migrations.migrate(pid, options=["--allow-loss", "landlock"])
    assert moved.code == MOVED and "is restricted by Landlock" in moved.output, moved.output
    nodes.target.signal(pid, signal.SIGKILL)
