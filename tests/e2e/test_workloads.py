"""`ppmr migrate` moves working programs: redis under load, a JVM, Python with numpy, a shell
pipeline, an MPI job.

Each writes numbered lines with the name of its node; the test computes their contents as well.
"""
import importlib.util
import signal
import sys
from pathlib import Path

import pytest

from lab.moving_address import MovingAddress
from lab.node import wait_until
from lab.programs import MPIRUN

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
PYTHON = "/usr/bin/python3"
TCP = ["--tcp-established", "--network-lock", "skip"]
MODULUS = 1_000_003


@pytest.fixture
def migrations(make_migrations):
    migrations = make_migrations()
    migrations.await_ready()
    return migrations


class Lines:
    """Returns the numbered lines of a workload. The last word of each line is the node."""

    def __init__(self, path):
        self.path = path

    def read(self):
        text = self.path.read_text() if self.path.exists() else ""
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]

    def wait_for(self, count, node, timeout=15):
        """Waits until `count` lines were written on `node`."""
        wait_until(
            lambda: sum(line[-1] == node.name for line in self.read()) >= count,
            timeout,
            f"{count} lines from node {node.name}",
            interval=0.01,
        )

    def check(self, expected, left, right):
        """The numbers have no gap, come first from one node, then from the other, and match
        `expected(number)`."""
        lines = self.read()
        nodes = [line[-1] for line in lines]
        moved_at = nodes.index(right.name)
        assert set(nodes[:moved_at]) == {left.name} and set(nodes[moved_at:]) == {right.name}
        for number, line in enumerate(lines, start=1):
            assert (int(line[0]), line[1]) == (number, expected(number))


def move_and_check(migrations, pid, lines, expected, criu_options=()):
    lines.wait_for(30, migrations.source_at)
    migrations.migrate(pid, criu_options=criu_options).ok()
    lines.wait_for(30, migrations.target_at)
    assert migrations.target_at.alive(pid)
    migrations.source_at.await_end(pid)
    lines.check(expected, migrations.source_at, migrations.target_at)
    migrations.target_at.signal(pid, signal.SIGKILL)


def chain():
    """Returns sum(n) = sum(n - 1) * 31 + n, with a cache."""
    sums = [0]

    def at(number):
        while len(sums) <= number:
            sums.append((sums[-1] * 31 + len(sums)) % MODULUS)
        return sums[number]

    return at


def test_redis_under_load_moves_with_its_address(lab, nodes, migrations, need_command):
    """The client on a third node keeps its connection, and no acknowledged write is missing."""
    need_command("redis-server")
    moving, port = MovingAddress(lab, nodes.source, nodes.target), 6390
    directory = lab.home / "redis"
    directory.mkdir()
    pid = nodes.source.spawn(
        [
            "redis-server",
            "--port",
            port,
            "--bind",
            moving.address,
            "--protected-mode",
            "no",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            directory,
        ],
        log=directory / "log",
    )

    def cli(node, *words, **options):
        return node.run(
            ["redis-cli", "-h", moving.address, "-p", port, *words], check=False, **options
        ).stdout

    wait_until(lambda: cli(nodes.source, "ping") == "PONG\n", 15, "redis to answer")
    acknowledged = directory / "acknowledged"
    client = moving.third.spawn(
        [PYTHON, WORKLOADS / "redis_client.py", moving.address, port, acknowledged],
        log=directory / "client-log",
    )

    def written():
        text = acknowledged.read_text() if acknowledged.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    wait_until(lambda: len(written()) > 1000, 10, "1000 writes")

    moving.leave()
    before = len(written())
    migrations.migrate(pid, criu_options=TCP).ok()
    moving.arrive()
    wait_until(lambda: len(written()) > before + 1000, 15, "1000 more writes of the same client")
    moving.third.signal(client, signal.SIGTERM)
    wait_until(lambda: not moving.third.alive(client), 5, "the client to end")

    lines = written()
    assert not lines[-1].startswith("lost"), lines[-1]
    assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1))
    shown = cli(
        nodes.target, input="".join(f"GET key:{number}\n" for number in range(1, len(lines) + 1))
    ).splitlines()
    assert shown == [
        f"value-{number * 2654435761 % (1 << 32):08x}" for number in range(1, len(lines) + 1)
    ]
    nodes.source.await_end(pid)
    nodes.target.signal(pid, signal.SIGKILL)


def test_jvm_moves(lab, nodes, migrations, need_command):
    output = lab.home / "lines"
    pid = nodes.source.spawn(
        [need_command("java"), "-Xmx128m", "-XX:-UsePerfData", WORKLOADS / "Counter.java", output],
        log=lab.home / "log",
    )

    def expected(number):
        total = 0
        for i in range(1, number + 1):
            total = (total * 31 + i) % MODULUS
        return str(total)

    sums = chain()
    assert str(sums(100)) == expected(100)
    move_and_check(migrations, pid, Lines(output), lambda number: str(sums(number)))


def test_numpy_program_moves(lab, nodes, migrations):
    specification = importlib.util.spec_from_file_location(
        "numpy_worker", WORKLOADS / "numpy_worker.py"
    )
    worker = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(worker)
    except ImportError as missing:
        pytest.skip(f"python3-numpy is not installed ({missing}) in {sys.executable}")
    rows, output = 500, lab.home / "lines"
    pid = nodes.source.spawn(
        [PYTHON, WORKLOADS / "numpy_worker.py", output, rows], log=lab.home / "log"
    )
    state = {"step": 0, "matrix": worker.first(rows)}

    def expected(step):
        assert step == state["step"] + 1
        state.update(step=step, matrix=worker.following(state["matrix"], step))
        return worker.digest(state["matrix"])

    move_and_check(migrations, pid, Lines(output), expected)


def test_shell_pipeline_moves(lab, nodes, migrations):
    """Three programs and their shell, with bytes in flight in the pipes between them."""
    output = lab.home / "lines"
    script = r"""
        { n=0; while :; do n=$((n + 1)); echo $n; done; } |
        awk '{ sum = (sum * 31 + $1) % 1000003; print $1, sum; fflush() }' |
        while read number sum; do
          read node </proc/sys/kernel/hostname
          echo $number $sum $node
        done >"$0" """
    pid = nodes.source.spawn(["bash", "-c", script, output])
    sums = chain()
    move_and_check(migrations, pid, Lines(output), lambda number: str(sums(number)))


def test_mpi_job_moves_as_one_tree(lab, nodes, migrations, need_command):
    """mpirun and its three ranks move with the connections between them.

    The ranks use TCP over loopback: Open MPI's segments in /dev/shm are files of the node and would
    not move.
    """
    need_command("mpirun")
    if nodes.source.run([PYTHON, "-c", "import mpi4py"], check=False).returncode != 0:
        pytest.skip("python3-mpi4py is not installed")
    output, ranks = lab.home / "lines", 3
    pid = nodes.source.spawn(
        [
            *MPIRUN,
            "-np",
            ranks,
            PYTHON,
            WORKLOADS / "mpi_ring.py",
            output,
        ],
        log=lab.home / "log",
    )
    tokens = [0]

    def expected(number):
        while len(tokens) <= number:
            tokens.append(
                ((tokens[-1] * 31 + len(tokens)) % MODULUS + sum(range(1, ranks))) % MODULUS
            )
        return str(tokens[number])

    move_and_check(
        migrations, pid, Lines(output), expected, [*TCP, "--file-locks", "--ghost-limit", "64M"]
    )
