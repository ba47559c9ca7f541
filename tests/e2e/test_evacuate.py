"""One command makes several migrations: `ppmr migrate --independent`, `ppmr evacuate`."""
import contextlib
import json
import os
import select
import signal
import socket
import threading
import time

from lab.node import wait_until
from lab.tracking import tracks_writes
from lab.workers import check_moved, check_stayed, pause_at, start_workers, take_pid

MOVED, ABORTED = 0, 11
FIRST_PID = 20_000  # of the sleeping processes: helpers of the nodes have lower pids


def test_independent_migrations_succeed_and_fail_separately(lab, nodes, migrations):
    workers = start_workers(lab, nodes, 3)
    running = migrations.start_migrate(
        *[worker.pid for worker in workers],
        options=["--independent", "--jobs", 3],
        environment=pause_at(lab, "source:dumping"),
    )
    wait_until(
        lambda: len(migrations.paused("source", "dumping")) == 3,
        20,
        "all three migrations to start",
    )
    take_pid(nodes.target, workers[1].pid)
    migrations.go_on("source", "dumping")
    done = running.wait()
    assert done.code == ABORTED, done.output
    results = {tree["pid"]: tree["result"] for tree in done.summary["trees"]}
    assert results == {
        workers[0].pid: "moved",
        workers[1].pid: "stayed",
        workers[2].pid: "moved",
    }, done.output
    nodes.target.signal(workers[1].pid, signal.SIGKILL)
    check_moved(workers[0], nodes)
    check_stayed(workers[1], nodes)
    check_moved(workers[2], nodes)
    for worker in workers:
        worker.end()


def test_evacuate_moves_only_matching_processes(lab, nodes, migrations):
    workers = start_workers(lab, nodes, 3)
    first, second, third = workers
    done = migrations.evacuate("--match", f"steady_worker {lab.home}/worker-[01] ", "--dry-run")
    assert done.code == MOVED and all(nodes.source.alive(worker.pid) for worker in workers)
    done = migrations.evacuate("--match", f"steady_worker {lab.home}/worker-[01] ").ok()
    selection = next(event for event in done.events if event.get("event") == "selection")
    assert sorted(tree["pid"] for tree in selection["leave"]) == sorted([first.pid, second.pid])
    copied = {event["pid"] for event in done.events if event["event"] == "copied"}
    assert copied == ({first.pid, second.pid} if tracks_writes() else set()), "rounds of their memory"
    for worker in (first, second):
        check_moved(worker, nodes)
        worker.end()
    assert len(migrations.records("source")) == 2, "evacuate did not make one migration per process"
    check_stayed(third, nodes)
    third.end()


def test_evacuate_moves_other_processes_when_one_cannot_move(lab, nodes, migrations):
    stuck, free = start_workers(lab, nodes, 2)
    take_pid(nodes.target, stuck.pid)
    done = migrations.evacuate("--match", f"steady_worker {lab.home}/worker-")
    assert done.code == ABORTED and str(stuck.pid) in done.output
    nodes.target.signal(stuck.pid, signal.SIGKILL)
    check_moved(free, nodes)
    check_stayed(stuck, nodes)
    for worker in (stuck, free):
        worker.end()


def test_evacuate_without_match_moves_no_process(migrations):
    done = migrations.evacuate("--match", "no such program at all")
    assert done.code == MOVED and migrations.records("source") == []


def test_evacuate_moves_more_processes_than_the_target_has_agents(lab, nodes, migrations):
    """The target runs at most 64 agents for one peer."""
    count = 100
    pids = [
        nodes.source.spawn(["sleep", f"{3600 + number}"], first_pid=FIRST_PID)
        for number in range(count)
    ]
    began = time.monotonic()
    done = migrations.evacuate("--match", "^sleep 3[67][0-9][0-9]$", timeout=300).ok()
    print(f"{count} processes moved in {time.monotonic() - began:.1f} s")
    results = {tree["pid"]: tree["result"] for tree in done.summary["trees"]}
    assert results == {pid: "moved" for pid in pids}
    for number, pid in enumerate(pids):
        words = nodes.target.read_text(f"/proc/{pid}/cmdline").split("\0")
        assert words[:2] == ["sleep", str(3600 + number)]
        assert not nodes.source.alive(pid)
    nodes.target.run(["kill", "-KILL", *pids])


def test_evacuate_leaves_processes_for_which_the_target_has_no_room(lab, nodes, make_migrations):
    """Each of the three would fit alone. The last one does not fit besides the others."""
    migrations = make_migrations(target_options=["--memory-limit", "128MiB"])
    workers = start_workers(lab, nodes, 3, size_mib=48)
    done = migrations.evacuate("--match", f"steady_worker {lab.home}/worker-")
    assert done.code == ABORTED, done.output
    assert "and the processes that move before it need" in done.out, done.output
    for worker in workers[:2]:
        check_moved(worker, nodes)
    check_stayed(workers[2], nodes)
    assert len(migrations.records("source")) == 2, "the third was frozen"
    for worker in workers:
        worker.end()


class LyingDaemon:
    """Takes the place of the source daemon's control socket. Passes requests on, and replaces the
    answer to the first `commit`."""

    def __init__(self, node, mountpoint, answer):
        [line] = [line for line in node.mountinfo().splitlines() if f" {mountpoint} " in line]
        self.path = node.host_path(line.split(" - ", 1)[1].split()[1])
        self.real = self.path.with_name("real")
        self.answer, self.lies = answer, 0
        self.path.rename(self.real)
        self.listener = socket.socket(socket.AF_UNIX)
        with short_path(self.path) as path:
            self.listener.bind(path)
        self.listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        real = socket.socket(socket.AF_UNIX)
        with client, real:
            with short_path(self.real) as path:
                real.connect(path)
            sources = {client: real, real: client}
            lie = False
            while True:
                for end in select.select(list(sources), [], [])[0]:
                    data, descriptors, _, _ = socket.recv_fds(end, 1 << 16, 16)
                    if not data:
                        return
                    if end is client and b'"commit"' in data and self.lies == 0:
                        self.lies, lie = 1, True
                    if end is real and lie:
                        data = json.dumps(self.answer).encode() + b"\n"
                    socket.send_fds(sources[end], [data], descriptors)
                    for descriptor in descriptors:
                        os.close(descriptor)

    def close(self):
        self.listener.close()
        self.real.rename(self.path)


@contextlib.contextmanager
def short_path(path):
    """Paths of Unix sockets have at most 107 bytes."""
    directory = os.open(path.parent, os.O_PATH)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def test_malformed_answer_fails_one_tree_only(lab, nodes, migrations):
    workers = start_workers(lab, nodes, 3)
    daemon = LyingDaemon(nodes.source, migrations.out, {"ok": True, "bytes": "many", "files": 1})
    try:
        done = migrations.evacuate(
            "--match", f"steady_worker {lab.home}/worker-", "--eager", "--jobs", 3
        )
    finally:
        daemon.close()
    assert daemon.lies == 1 and done.code == ABORTED, done.output
    results = {tree["pid"]: tree["result"] for tree in done.summary["trees"]}
    assert sorted(results.values()) == ["moved", "moved", "stayed"], done.output
    for worker in workers:
        if results[worker.pid] == "moved":
            check_moved(worker, nodes)
        else:
            check_stayed(worker, nodes)
        worker.end()
