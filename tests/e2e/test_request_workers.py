"""The daemon does not start a thread for every request that finds all workers busy."""
WRITERS = 3
REQUESTS = 4000  # number of requests of each kind
WRITE = (
    "for i in $(seq $1); do dd if=/dev/zero of=$2/file$i bs=4k count=$3 status=none & done; wait"
)


def tasks_made(node):
    """Returns the number of processes and threads that the node has started: pids count up."""
    return int(node.read_text("/proc/sys/kernel/ns_last_pid"))


def test_daemon_does_not_start_a_thread_for_each_small_write(mounts, nodes):
    directory = mounts.out / "many"
    nodes.source.run(["mkdir", directory])
    before = tasks_made(nodes.source)
    nodes.source.run(["sh", "-c", WRITE, "write", WRITERS, directory, REQUESTS], timeout=60)
    made = tasks_made(nodes.source) - before
    assert (
        made < WRITERS * REQUESTS / 50
    ), f"{made} processes and threads for {WRITERS * REQUESTS} requests"
