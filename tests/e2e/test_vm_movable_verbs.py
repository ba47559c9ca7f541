"""`ppmr migrate` of unmodified programs that use RDMA, between two machines (verbs_library).

The programs are started with `ppmr rdma run`. The checker (tests/movable_verbs) compares every
byte, also of atomics; ibv_rc_pingpong and ucx_perftest are Debian's.
"""
import itertools
import shutil

import pytest

from lab import movable

_numbers = itertools.count(1)


@pytest.fixture
def migrations(ppmr, machines):
    """Returns the migrations from each machine to the other."""
    number = next(_numbers)
    a, b = machines.nodes
    with movable.migrations_of(a, b, f"mv-there{number}") as there, movable.migrations_of(
        b, a, f"mv-back{number}"
    ) as back:
        for pair in (there, back):
            pair.await_ready()
        yield {a.name: there, b.name: back}


@pytest.fixture
def start(machines):
    programs = movable.Programs(machines, machines.home / f"movable-{next(_numbers)}")
    yield programs
    programs.end()


@pytest.fixture
def moving_address(machines):
    address = movable.MovingAddress(machines)
    yield address
    address.end()


def test_checked_program_moves_there_and_back_under_traffic(machines, migrations, start):
    x, y = programs = movable.start_checkers(machines, start, "--datagrams", "--shared")
    for _ in range(2):
        done = x.move(migrations)
        # The program uses RDMA while its memory is copied.
        order = [event.get("event") for event in done.events]
        assert "copied" in order and order.index("rdma-released") > order.index("copied"), order
        movable.await_rounds(start, programs, 5)
    y.move(migrations)
    movable.await_rounds(start, programs, 5)
    movable.finish(start, programs)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [["--events"], ["--builder", "--separate"], ["--extended", "--queue-pairs", "6"]],
    ids=lambda options: options[0][2:],
)
def test_program_with_other_interfaces_moves(machines, migrations, start, options):
    x, y = programs = movable.start_checkers(machines, start, *options)
    for program in (x, y, x):
        program.move(migrations)
        movable.await_rounds(start, programs, 5)
    movable.finish(start, programs)


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["-e"], ["-N"]], ids=["poll", "events", "builder"])
def test_rc_pingpong_moves_under_traffic(machines, migrations, start, options):
    server, client = movable.start_pingpong(machines, start, 20000, *options)
    for _ in range(2):
        client.move(migrations)
    for program in (server, client):
        program.await_end()
        assert "20000 iters" in program.text() and "invalid data" not in program.text()


# After the move both ends share the CPU of one machine. A message that waits for its answer then
# waits for the scheduler, so the test of latency is not run to its end.
@pytest.mark.long
@pytest.mark.parametrize("what, size, count", [("tag_bw", 8192, 40000), ("tag_lat", 8, 1000000)])
def test_ucx_moves_under_traffic(machines, migrations, start, moving_address, what, size, count):
    if not shutil.which("ucx_perftest"):
        pytest.skip("ucx_perftest is missing: install ucx-utils")
    server, client = movable.start_ucx(machines, start, moving_address, what, size, count)
    movable.move_ucx(server, client, migrations, moving_address)
    if what == "tag_lat":
        return
    for program in (client, server):
        program.await_end()
    assert "Final:" in client.text()
