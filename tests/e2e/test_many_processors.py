"""Moves between nodes that seem to have 16 processors: many threads read, send and fill."""
from pathlib import Path

import pytest

from lab.node import wait_until
from lab.workers import check_all_memory, start_workers

ONLINE = "/sys/devices/system/cpu/online"  # libstdc++ counts the processors that it lists
PROCESSORS, STREAMS = 16, 8
READERS = 8 + 1  # with the one for wanted blocks
SIZE_MIB = 96  # more than the pool holds, so the readers are there for long
SLOW = "100mbit"


@pytest.fixture
def large_nodes(nodes, tmp_path):
    listed = tmp_path / "online"
    listed.write_text(f"0-{PROCESSORS - 1}\n")
    listed.chmod(0o444)
    for node in (nodes.source, nodes.target):
        node.run(["mount", "--bind", listed, ONLINE])
    return nodes


def threads_named(daemon, name):
    names = Path(f"/proc/{daemon.host_pid}/task").glob("*/comm")
    return [path.read_text().strip() for path in names].count(name)


@pytest.mark.parametrize("way", [["--stop-and-copy"], ["--stop-and-copy", "--post-copy"]])
def test_many_threads_move_the_memory(lab, large_nodes, make_migrations, way):
    nodes, migrations = large_nodes, make_migrations()
    [worker] = start_workers(lab, nodes, 1, size_mib=SIZE_MIB)
    for daemon in (migrations.source, migrations.target):
        wait_until(lambda: threads_named(daemon, "ppmr-stream") == STREAMS, 20, "the streams")
    nodes.link.limit(SLOW)
    running = migrations.start_migrate(worker.pid, options=way)

    def all_read():
        assert running.running(), running.wait().output
        return threads_named(migrations.source, "ppmr-memory") == READERS

    wait_until(all_read, 20, f"{READERS} threads to send the memory")
    nodes.link.limit()
    running.wait().ok()
    check_all_memory(worker, nodes)
