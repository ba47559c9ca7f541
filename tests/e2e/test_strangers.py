"""A flood of connections from peers without a key, while a process moves."""
from lab.node import wait_until
from lab.programs import SteadyWorker
from lab.strangers import Strangers, result, threads_of
from lab.workers import check_moved

ATTEMPTS, PER_SECOND = 1500, 500
STRANGERS_MAX = 256  # rdma_stream/connection/acceptor.cc
MIB_MAX = 64  # limit for the memory of strangers: 256 threads, each with a handshake


def test_move_succeeds_during_a_flood_of_strangers(lab, nodes, migrations):
    strangers = Strangers(lab, nodes.target)
    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=64)
    worker.wait_for_lines(10)
    target = migrations.target
    at_rest, threads_at_rest = target.memory_kib()["VmRSS"], threads_of(target)
    flood = strangers.flood(migrations.port, ATTEMPTS, PER_SECOND)
    wait_until(
        lambda: threads_of(target) > threads_at_rest + 50, 20, "the target to serve strangers"
    )
    nodes.link.limit("400mbit")  # at this rate the move takes as long as the flood
    migrations.migrate(worker.pid).ok()
    threads = threads_of(target)
    flooded = result(flood, 60)
    nodes.link.limit()
    check_moved(worker, nodes)
    worker.end()
    assert flooded["connected"] > ATTEMPTS / 2, flooded
    assert threads <= threads_at_rest + STRANGERS_MAX + 16
    grown_mib = (target.memory_kib()["VmHWM"] - at_rest) / 1024
    assert grown_mib < 64 + MIB_MAX, f"{grown_mib:.0f} MiB for a process of 64 MiB"
    # The daemon has lost no session, and the log stays readable.
    assert migrations.source.status()["reconnections"] == 0
    wait_until(
        lambda: "more connections were refused or failed" in target.log.read_text(),
        20,
        "the target to count what it has not logged",
    )
    assert target.log.read_text().count("connection from") < 100
