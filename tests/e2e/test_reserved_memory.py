"""Address space that a program only reserves, as Java does: it moves, and costs no time."""
import signal
import statistics

import pytest

from lab.node import wait_until
from lab.protection import Protection

# Reserves address space without MAP_NORESERVE, more than the memory of any machine, and uses some
# of it.
RESERVER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
size, used, private_anonymous = int(sys.argv[2]) << 30, 1 << 20, 0x22
start = libc.mmap(None, size, 0, private_anonymous, -1, 0)
places = [start, start + size // 2, start + size - used]
for place in places:
    assert libc.mprotect(place, used, 3) == 0, os.strerror(ctypes.get_errno())
    ctypes.memset(place, 7, used)
lines = open(sys.argv[1], "w", buffering=1)
while True:
    right = all(ctypes.string_at(place, used) == bytes([7]) * used for place in places)
    print(os.uname().nodename, right, file=lines)
    time.sleep(0.02)
"""


def start_reserver(lab, nodes, gib):
    lines = lab.home / f"lines-{gib}"
    lines.unlink(missing_ok=True)
    pid = nodes.source.spawn(["/usr/bin/python3", "-c", RESERVER, lines, gib])
    wait_until(lambda: lines.exists() and len(lines.read_text().splitlines()) > 3, 20, "lines")
    return pid, lines


def check_runs_at(node, lines):
    there = f"{node.name} True\n"
    wait_until(lambda: lines.read_text().count(there) > 3, 20, f"lines at the {node.name}")
    assert "False" not in lines.read_text()


WAYS = [[], ["--stop-and-copy"], ["--post-copy"], ["--eager"]]


@pytest.mark.parametrize("options", WAYS, ids=" ".join)
def test_reserved_address_space_moves(lab, nodes, migrations, options):
    pid, lines = start_reserver(lab, nodes, 8192)
    migrations.migrate(pid, options=options).ok()
    check_runs_at(nodes.target, lines)
    nodes.target.signal(pid, signal.SIGKILL)


SMALL_GIB, LARGE_GIB = 1, 1024
# Limits for the noise that is left in the median of 3. If CRIU described the reserved pages, each
# would cost 16 bytes: 4 GiB for the large process, which take seconds to write.
ALLOWED_RATIO, ALLOWED_S = 1.5, 0.1


def check_same(small, large):
    small, large = statistics.median(small), statistics.median(large)
    assert large <= small * ALLOWED_RATIO + ALLOWED_S, f"{small:.3f} s grew to {large:.3f} s"


@pytest.mark.parametrize(
    "options",
    [[], ["--eager"], *(pytest.param(way, marks=pytest.mark.long) for way in WAYS[1:3])],
    ids=" ".join,
)
def test_time_of_a_move_does_not_grow_with_reserved_address_space(
    lab, nodes, migrations, options
):
    dumps, downtimes = {SMALL_GIB: [], LARGE_GIB: []}, {SMALL_GIB: [], LARGE_GIB: []}
    for _ in range(3):
        for gib in (SMALL_GIB, LARGE_GIB):
            pid, lines = start_reserver(lab, nodes, gib)
            [tree] = migrations.migrate(pid, options=options).ok().summary["trees"]
            dumps[gib].append(tree["dump_s"])
            downtimes[gib].append(tree["downtime_s"])
            check_runs_at(nodes.target, lines)
            nodes.target.signal(pid, signal.SIGKILL)
            nodes.target.await_end(pid)
    print(f"dumps {dumps}, downtimes {downtimes}")
    check_same(dumps[SMALL_GIB], dumps[LARGE_GIB])
    check_same(downtimes[SMALL_GIB], downtimes[LARGE_GIB])


def test_pause_of_an_epoch_does_not_grow_with_reserved_address_space(lab, nodes, migrations):
    pauses = {}
    for gib in (SMALL_GIB, LARGE_GIB):
        pid, lines = start_reserver(lab, nodes, gib)
        protection = Protection(migrations, pid, name=f"reserver-{gib}")
        protection.wait_for_epochs(4)
        pauses[gib] = [epoch["pause_ms"] / 1000 for epoch in protection.epochs()[:4]]
        protection.end()
        nodes.source.signal(pid, signal.SIGKILL)
        nodes.source.await_end(pid)
    print(f"pauses {pauses}")
    check_same(pauses[SMALL_GIB], pauses[LARGE_GIB])
