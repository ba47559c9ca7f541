"""Starts workers for migrations, and checks afterwards where they run."""
import sys

from .programs import SteadyWorker, check_continuity, gap_between


def start_workers(lab, nodes, count, size_mib=16):
    workers = [
        SteadyWorker(
            nodes.source,
            lab.home / f"worker-{number}",
            size_mib=size_mib,
            threads=1,
            seed=number + 1,
        )
        for number in range(count)
    ]
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


def check_all_memory(worker, nodes):
    """Checks that the worker was moved with every word of its memory, and ends the worker."""
    check_moved(worker, nodes)
    audit = worker.audit()
    worker.end()
    assert audit["wrong_words"] == 0 and audit["digest"] == audit["expected"]


def check_stayed(worker, nodes):
    worker.wait_for_lines(10, nodes.source)
    check_continuity(worker.lines())
    assert nodes.source.alive(worker.pid)
    nodes.target.await_end(worker.pid)
    assert {line["node"] for line in worker.lines()} == {nodes.source.name}


# clone3(2) with a given pid works even if the node starts helpers at the same moment. The pid may
# still belong to an ended process that its parent is about to reap, or to a helper that is about to
# end.
SLEEP_AS = """
import ctypes, errno, os, signal, sys, time
pid = ctypes.c_int(int(sys.argv[1]))
words = (ctypes.c_uint64 * 10)(0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(pid), 1)
SYS_clone3 = 435
libc = ctypes.CDLL(None, use_errno=True)
deadline = time.monotonic() + 20
while True:
    child = libc.syscall(SYS_clone3, words, ctypes.sizeof(words))
    if child >= 0 or ctypes.get_errno() != errno.EEXIST or time.monotonic() > deadline:
        break
    time.sleep(0.01)
if child < 0:
    sys.exit(f"clone3 with pid {pid.value}: {os.strerror(ctypes.get_errno())}")
if child == 0:
    os.execv("/bin/sh", ["sh", "-c", "exec sleep 60 >/dev/null 2>&1"])
"""


def take_pid(node, pid):
    """Starts another process with this pid."""
    node.run([sys.executable, "-c", SLEEP_AS, pid])


def pause_at(lab, states):
    """Returns the environment of a migration that pauses at these states ("source:frozen
    target:ready").
    """
    path = lab.directory / "pauses"
    path.write_text(states)
    return {"PPMR_PAUSE_FILE": str(path)}


def pagers_of(node):
    return node.run(["pgrep", "-f", "^/proc/self/exe serve-pages"], check=False).stdout.split()
