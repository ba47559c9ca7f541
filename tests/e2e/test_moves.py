"""Processes move between two nodes with CRIU, through the mounts.

Every program writes numbered lines whose contents the test computes as well. A move is correct if
the lines form one unbroken sequence, written first on the source and then on the target.
test_proofs.py shows that these checks can fail.
"""
import random
import signal

import pytest

from lab.criu import WITHOUT_USERFAULTFD, criu_that
from lab.moving_address import MovingAddress
from lab.node import wait_until
from lab.peers import TarMove
from lab.ppmr import Mounts, PpmrMove
from lab.programs import Program, SteadyWorker, check_continuity, gap_between, mix
from lab.proofs import Before, prove

TCP = ["--tcp-established", "--network-lock", "skip"]


def modes(*eager_marks):
    return pytest.mark.parametrize(
        "move", ["lazy", pytest.param("eager", marks=eager_marks)], indirect=True
    )


both_modes = modes()
mostly_lazy = modes(pytest.mark.long)  # other tests cover the eager restore


@pytest.fixture
def move(request, lab, nodes):
    """A move from nodes.source to nodes.target that is prepared."""
    lazily = request.param == "lazy"
    if request.config.getoption("--way") == "tmpfs":
        way = TarMove(nodes.source, nodes.target, lazily)
        way.prepare("moved")
        yield way
        way.clean()
    else:
        with Mounts(nodes.source, nodes.target, lab.directory / "private") as mounts:
            way = PpmrMove(nodes.source, nodes.target, mounts, lazily)
            way.prepare("moved")
            yield way
            way.clean()


def move_and_check(move, program, dump_options=(), restore_options=()):
    program.wait_for_lines(30)
    partners = program.lines()[-1]["partners"]
    timeline = move.move(program, dump_options, restore_options)
    move.finish()
    program.wait_for_lines(30)
    lines = program.lines()
    gap_between(lines, move.source, move.target)
    check_continuity(lines)
    for pid in {program.pid, *partners}:
        assert move.target.alive(pid), f"pid {pid} does not run on the target"
        move.source.await_end(pid)
    program.end()
    return timeline


def test_restart_is_eager_on_kernel_without_userfaultfd(lab, nodes, tmp_path, monkeypatch):
    without = criu_that(tmp_path, WITHOUT_USERFAULTFD)
    with Mounts(nodes.source, nodes.target, lab.directory / "private") as mounts:
        way = PpmrMove(nodes.source, nodes.target, mounts)
        way.prepare("moved")
        monkeypatch.setenv("PPMR_CRIU", str(without))
        worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=16)
        way.move(worker)
        way.finish()
        check_continuity(worker.lines())
        worker.end()
        way.clean()


@both_modes
def test_process_with_all_kinds_of_state_moves(lab, nodes, move):
    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=96)
    worker.wait_for_lines(30)
    before = Before(worker)
    move.move(worker)
    move.finish()
    worker.wait_for_lines(30)
    claims = prove(worker, before, nodes.source, nodes.target)
    worker.end()
    assert [claim for claim in claims if not claim[1]] == []


@mostly_lazy
def test_single_process_moves(lab, nodes, move):
    """A shell without children or threads that counts in its variables."""
    directory = lab.home / "shell"
    directory.mkdir()
    output = directory / "output"
    script = """
        exec 3>"$0"
        n=0 sum=0
        while :; do
          n=$((n + 1)) sum=$(((sum * 31 + n) % 1000003))
          read node </proc/sys/kernel/hostname
          echo "$n $sum $node" >&3
          i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); done
        done"""
    pid = nodes.source.spawn(["bash", "-c", script, output])

    def lines():
        text = output.read_text() if output.exists() else ""
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]

    def lines_on(node):
        return sum(line[2] == node.name for line in lines())

    wait_until(lambda: lines_on(nodes.source) > 20, 10, "the shell to count")
    move.move_tree(pid)
    move.finish()
    wait_until(
        lambda: move.check() or lines_on(nodes.target) > 20, 10, "the shell to count on the target"
    )
    expected = 0
    for number, (n, shown, _) in enumerate(lines(), start=1):
        expected = (expected * 31 + number) % 1000003
        assert (int(n), int(shown)) == (number, expected)
    assert nodes.target.alive(pid)
    nodes.source.await_end(pid)
    nodes.target.signal(pid, signal.SIGKILL)


@mostly_lazy
def test_process_with_threads_moves(lab, nodes, move):
    move_and_check(
        move, Program(nodes.source, "conversation", ["threads", lab.home / "c"], lab.home / "c")
    )


@mostly_lazy
def test_process_with_pipes_and_children_moves(lab, nodes, move):
    move_and_check(
        move, Program(nodes.source, "conversation", ["pipes", lab.home / "c"], lab.home / "c")
    )


@mostly_lazy
def test_processes_with_unix_socket_pairs_move(lab, nodes, move):
    move_and_check(
        move, Program(nodes.source, "conversation", ["unix", lab.home / "c"], lab.home / "c")
    )


@mostly_lazy
def test_processes_with_shared_memory_move(lab, nodes, move):
    move_and_check(
        move,
        Program(nodes.source, "conversation", ["shared-memory", lab.home / "c"], lab.home / "c"),
        ["--ghost-limit", "64M"],
    )


@mostly_lazy
def test_tcp_connection_inside_tree_survives_move(lab, nodes, move):
    move_and_check(
        move,
        Program(nodes.source, "conversation", ["tcp", lab.home / "c"], lab.home / "c"),
        TCP,
        TCP,
    )


@both_modes
def test_tcp_connection_to_third_node_survives_move(lab, nodes, move):
    """The server moves with its address. Its client on a third node keeps the connection."""
    moving = MovingAddress(lab, nodes.source, nodes.target)
    server = Program(
        nodes.source,
        "conversation",
        ["serve", lab.home / "server", moving.address, 7000],
        lab.home / "server",
    )
    client = Program(
        moving.third,
        "conversation",
        ["ask", lab.home / "client", moving.address, 7000],
        lab.home / "client",
    )
    client.wait_for_lines(30)
    before = client.lines()[-1]["line"]

    moving.leave()
    move.move_tree(server.pid, TCP, TCP)
    wait_until(
        lambda: move.check() or nodes.target.alive(server.pid),
        20,
        "the server to run on the target",
    )
    moving.arrive()
    move.finish()
    # TCP may pause before it retransmits for as long as the move took.
    client.wait_for_lines(30, timeout=60)
    lines = client.lines()
    check_continuity(lines)  # a new server would start `served` at 1 again
    assert lines[-1]["line"] >= before + 30
    nodes.source.await_end(server.pid)
    client.end()
    server.node = nodes.target
    server.end()


@both_modes
def test_redis_moves_with_its_data(lab, nodes, move, need_command):
    keys = 10_000
    contents = {f"key:{i}": f"{mix(i):016x}" * random.Random(i).randint(1, 40) for i in range(keys)}
    directory = lab.home / "redis"
    directory.mkdir()
    log = directory / "log"
    pid = nodes.source.spawn(
        [
            need_command("redis-server"),
            "--port",
            6390,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            directory,
        ],
        log=log,
    )
    cli = [need_command("redis-cli"), "-p", "6390"]

    def redis(node, *words, **options):
        return node.run([*cli, *words], check=False, **options).stdout

    wait_until(lambda: redis(nodes.source, "ping") == "PONG\n", 15, "redis to answer")
    redis(nodes.source, input="".join(f"SET {key} {value}\n" for key, value in contents.items()))
    assert redis(nodes.source, "dbsize").strip() == str(keys)
    run_id = next(
        line
        for line in redis(nodes.source, "info", "server").splitlines()
        if line.startswith("run_id:")
    )

    move.move_tree(pid, TCP, TCP)  # a connection of redis-cli may still be closing
    wait_until(
        lambda: move.check() or redis(nodes.target, "ping") == "PONG\n",
        20,
        "redis to answer on the target",
    )
    move.finish()
    assert run_id in redis(nodes.target, "info", "server").splitlines(), "another redis answers"
    shown = redis(nodes.target, input="".join(f"GET {key}\n" for key in contents)).splitlines()
    assert shown == list(contents.values())
    redis(nodes.target, "set", "written", "after the move")
    assert redis(nodes.target, "get", "written") == "after the move\n"
    nodes.source.await_end(pid)
    assert redis(nodes.source, "ping") != "PONG\n"
    nodes.target.signal(pid, signal.SIGKILL)
