"""`ppmr migrate` of unmodified programs that use RDMA, between two machines (verbs_library).

The programs are started with `ppmr rdma run`. The checker (tests/movable_verbs) compares every
byte, also of atomics; ibv_rc_pingpong and ucx_perftest are Debian's.
"""
import itertools
import shutil

import pytest

from lab.migrations import Migrations
from lab.node import LabError, wait_until
from lab.ppmr import find_ppmr
from lab.programs import find_program

MOVED = 0
GID_INDEX = 1  # of rxe: the IPv4 address
_numbers = itertools.count(1)


@pytest.fixture
def migrations(ppmr, machines):
    """Returns the migrations from each machine to the other."""
    number = next(_numbers)
    source_options = ["--pool-size", "16MiB"]
    target_options = ["--memory-limit", "256MiB", "--pool-size", "96MiB"]
    a, b = machines.nodes
    directory = f"/tmp/movable-{number}"
    with Migrations(
        a, b, directory, source_options, target_options, name=f"mv-there{number}"
    ) as there, Migrations(
        b, a, directory, source_options, target_options, name=f"mv-back{number}"
    ) as back:
        for pair in (there, back):
            pair.await_ready()
        yield {a.name: there, b.name: back}


class Program:
    """A program under `ppmr rdma run`. `node` is the machine on which it runs now."""

    def __init__(self, machines, node, directory, name, words, first_pid=None):
        self.node, self.directory, self.name = node, directory, name
        self.out, self.log = directory / f"{name}.out", directory / f"{name}.log"
        place = {} if first_pid is None else {"first_pid": first_pid}
        peers = machines.home / "peers"
        run = [find_ppmr(), "rdma", "run", "--directory", peers, "--", *words]
        environment = ["env", f"PPMR_VERBS_LOG={self.log}"]
        self.pid = node.spawn([*environment, *run], log=self.out, **place)

    def text(self):
        return "".join(file.read_text() for file in (self.out, self.log) if file.exists())

    def move(self, migrations, criu_options=()):
        pair = migrations[self.node.name]
        done = pair.migrate(self.pid, timeout=180, criu_options=criu_options)
        assert done.code == MOVED, done.output + pair.logs(2) + self.text()
        assert [event for event in done.events if event.get("event") == "rdma-released"]
        self.node = pair.target_at

    def await_end(self):
        try:
            self.node.await_end(self.pid, timeout=180)
        except LabError as late:
            raise LabError(f"{late}; {self.text()}") from None


@pytest.fixture
def start(machines):
    """start(node, name, words): all programs of a test share a directory."""
    directory = machines.home / f"movable-{next(_numbers)}"
    directory.mkdir()
    started = []

    def begin(node, name, words):
        # Processes of both machines must not have the same pid if they move. Each machine counts on
        # from the first one that was started there.
        first = started[0].pid + 2000 * len(started) if started else None
        started.append(Program(machines, node, directory, name, words, first))
        return started[-1]

    begin.directory = directory
    yield begin
    for program in started:
        for node in machines.nodes:
            node.signal(program.pid, 9)


def start_checkers(machines, start, *options):
    a, b = machines.nodes
    programs = []
    for node, name, partner in ((a, "x", "y"), (b, "y", "x")):
        words = [find_program("checker"), "--name", name, "--partner", partner]
        programs.append(start(node, name, [*words, "--exchange", start.directory, *options]))
    await_rounds(start, programs, 3)
    return programs


def rounds(directory, name):
    path = directory / f"{name}.progress"
    text = path.read_text() if path.exists() else ""
    return int(text) if text.strip() else 0


def await_rounds(start, programs, more):
    goals = {p.name: rounds(start.directory, p.name) + more for p in programs}
    for program in programs:
        wait_until(
            lambda p=program: rounds(start.directory, p.name) >= goals[p.name]
            or "checker:" in p.text(),
            120,
            f"{more} rounds of {program.name}: {program.text()}",
        )
        assert "checker:" not in program.text(), program.text()


def finish(start, programs):
    (start.directory / "stop.now").write_text("yes\n")
    for program in programs:
        program.await_end()
        assert "all right" in program.text(), program.text()


def test_checked_program_moves_there_and_back_under_traffic(machines, migrations, start):
    x, y = programs = start_checkers(machines, start, "--datagrams", "--shared")
    for _ in range(2):
        x.move(migrations)
        await_rounds(start, programs, 5)
    y.move(migrations)
    await_rounds(start, programs, 5)
    finish(start, programs)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [["--events"], ["--builder", "--separate"], ["--extended", "--queue-pairs", "6"]],
    ids=lambda options: options[0][2:],
)
def test_program_with_other_interfaces_moves(machines, migrations, start, options):
    x, y = programs = start_checkers(machines, start, *options)
    for program in (x, y, x):
        program.move(migrations)
        await_rounds(start, programs, 5)
    finish(start, programs)


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["-e"], ["-N"]], ids=["poll", "events", "builder"])
def test_rc_pingpong_moves_under_traffic(machines, migrations, start, options):
    a, b = machines.nodes
    # Without stdbuf its lines stay in a buffer until the end.
    words = ["stdbuf", "-oL", "ibv_rc_pingpong", "-c", "-g", str(GID_INDEX)]
    words += ["-n", "20000", "-s", "4096", *options]
    server = start(b, "server", words)
    wait_until(lambda: "local address" in server.text(), 60, "the server to start")
    client = start(a, "client", [*words, b.address])
    wait_until(lambda: "remote address" in client.text(), 60, "both to connect")
    for _ in range(2):
        client.move(migrations)
    for program in (server, client):
        program.await_end()
        assert "20000 iters" in program.text() and "invalid data" not in program.text()


# UCX connects over UD and sends over RC with a shared receive queue. The transports of rdma_cm
# would keep its device open; the others are for rxe (docs/rdma-programs.md).
UCX = [
    "env",
    "UCX_TLS=rc_v,ud_v",
    "UCX_NET_DEVICES=rxe0:1",
    f"UCX_IB_GID_INDEX={GID_INDEX}",
    "UCX_SOCKADDR_TLS_PRIORITY=tcp",
    "UCX_UD_VERBS_ETH_DGID_CHECK=n",
]
SERVER = "10.99.0.1"  # moves with the server


@pytest.fixture
def moving_address(machines):
    """moving_address(node): the node has SERVER, and the other one reaches it there. During a move
    both have it. It is not on the link, whose addresses are the GIDs of the device."""

    def place(*nodes):
        for node in machines.nodes:
            peer = next(other for other in machines.nodes if other is not node)
            here = f"ip addr replace {SERVER}/32 dev lo; ip route flush {SERVER}"
            there = f"ip addr del {SERVER}/32 dev lo; ip route replace {SERVER} via {peer.address}"
            node.run(["sh", "-c", here if node in nodes else there], check=False)

    for node in machines.nodes:
        node.run(["modprobe", "-a", "iptable_filter", "xt_mark"])  # for CRIU's --tcp-established
    yield place
    for node in machines.nodes:
        node.run(
            ["sh", "-c", f"ip addr del {SERVER}/32 dev lo; ip route flush {SERVER}"], check=False
        )


def iterations(client):
    """The number in the last line of ucx_perftest's progress."""
    lines = [line for line in client.text().splitlines() if line.startswith("[thread 0]")]
    return int(lines[-1].split()[2]) if lines else 0


# After the move both ends share the CPU of one machine. A message that waits for its answer then
# waits for the scheduler, so the test of latency is not run to its end.
@pytest.mark.long
@pytest.mark.parametrize("what, size, count", [("tag_bw", 8192, 40000), ("tag_lat", 8, 1000000)])
def test_ucx_moves_under_traffic(machines, migrations, start, moving_address, what, size, count):
    if not shutil.which("ucx_perftest"):
        pytest.skip("ucx_perftest is missing: install ucx-utils")
    a, b = machines.nodes
    moving_address(a)
    words = [*UCX, "stdbuf", "-oL", "ucx_perftest", "-t", what, "-s", size, "-n", count, "-w", 10]
    server = start(a, "server", [*words])
    wait_until(lambda: "Waiting" in server.text(), 60, "the server to start")
    client = start(b, "client", [*words, SERVER])
    wait_until(lambda: "[thread 0]" in client.text(), 60, "traffic")
    moving_address(a, b)
    server.move(migrations, ["--tcp-established"])
    moving_address(b)
    moved_at = iterations(client)
    wait_until(
        lambda: iterations(client) > moved_at or "Final:" in client.text(),
        120,
        f"traffic: {client.text()}",
    )
    if what == "tag_lat":
        return
    for program in (client, server):
        program.await_end()
    assert "Final:" in client.text()
