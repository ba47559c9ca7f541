"""A moved process is what it was: what CRIU forgets of it is there at the target."""
import signal

import pytest

from lab.node import wait_until
from lab.portrait import ROWS, UNSEEN, Portrait, changed

MOVED, REFUSED = 0, 11


@pytest.mark.parametrize("options", [[], ["--eager"]], ids=["lazy", "eager"])
def test_process_keeps_what_it_has(lab, nodes, migrations, options):
    # A lock moves with its descriptor, which only a lazy restore leaves to ppmr.
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


# May make no files from then on (LANDLOCK_ACCESS_FS_MAKE_REG).
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
# May make no memory executable from then on (PR_SET_MDWE).
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


@pytest.mark.parametrize(
    ("program", "kind", "sentence"),
    [
        (LANDLOCKED, "landlock", "is restricted by Landlock"),
        (WITHOUT_NEW_CODE, "mdwe", "may not make memory executable"),
        (WITH_SEMAPHORE, "system-v", "uses semaphore set"),
    ],
    ids=["landlock", "mdwe", "system-v"],
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
