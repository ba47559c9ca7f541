"""Workers that are to be moved: started, stopped at a state of the migration, and looked at afterwards."""
from .programs import SteadyWorker, check_continuity, gap_between


def start_workers(lab, nodes, count, size_mib=16):
    workers = [SteadyWorker(nodes.source, lab.home / f"worker-{number}", size_mib=size_mib, threads=1, seed=number + 1) for number in range(count)]
    for worker in workers:
        worker.wait_for_lines(10)
    return workers


def check_moved(worker, nodes):
    worker.node = nodes.target
    worker.wait_for_lines(10, nodes.target)
    gap_between(worker.lines(), nodes.source, nodes.target)
    check_continuity(worker.lines())
    assert nodes.target.alive(worker.pid)
    nodes.source.await_end(worker.pid)


def check_stayed(worker, nodes):
    worker.wait_for_lines(10, nodes.source)
    check_continuity(worker.lines())
    assert nodes.source.alive(worker.pid)
    nodes.target.await_end(worker.pid)
    assert {line["node"] for line in worker.lines()} == {nodes.source.name}


def take_pid(node, pid):
    """Something else runs under this pid; pids of what is started later are elsewhere."""
    script = 'f=/proc/sys/kernel/ns_last_pid; for try in 1 2 3 4 5; do echo $(($0 - 1)) >$f; sleep 60 >/dev/null 2>&1 & [ $! = $0 ] && break; kill $!; done; echo 20000 >$f; kill -0 $0'
    node.run(["sh", "-c", script, pid])


def pause_file(lab, states):
    path = lab.directory / "pauses"
    path.write_text(states)
    return path


def lazy_pages_of(node):
    return node.run(["pgrep", "-f", "^[^ ]*criu lazy-pages"], check=False).stdout.split()
