"""`--rehearse` tries a move: nothing of the process changes, and what was restored never runs."""
import re
import signal
import subprocess
from pathlib import Path

import pytest

from lab.node import wait_until
from lab.pace import patience
from lab.workers import pause_at

REHEARSED, STAYED = 0, 11

# Has a socket in a directory that both nodes share, and an abstract name and a port that only one
# process of a node can have.
SERVER = """
import os, socket, sys, time
named = socket.socket(socket.AF_UNIX); named.bind(sys.argv[1]); named.listen(1)
nameless = socket.socket(socket.AF_UNIX); nameless.bind("\\0rehearsed"); nameless.listen(1)
port = socket.socket(); port.bind(("127.0.0.1", 7311)); port.listen(1)
while True:
    with open(sys.argv[2], "a") as log: print(os.uname().nodename, file=log)
    time.sleep(0.01)
"""


def start_server(lab, nodes):
    path, log = lab.home / "socket", lab.home / "log"
    pid = nodes.source.spawn(["/usr/bin/python3", "-SEc", SERVER, path, log])
    wait_until(log.exists, 10, "the server to run")
    return pid, path, log


def remains_at_target(nodes):
    """Returns the processes of the copy and of its supervisor. `ps` on a node shows all of its pid
    namespaces."""
    shown = nodes.target.run(["ps", "-eo", "args"]).stdout.splitlines()
    return [line for line in shown if "rehearsed" in line or "migration-restore" in line]


def test_rehearsed_process_goes_on_and_its_copy_never_runs(lab, nodes, migrations):
    pid, path, log = start_server(lab, nodes)
    inode = path.stat().st_ino
    done = migrations.migrate(pid, options=["--rehearse"])
    assert done.code == REHEARSED, done.output
    tree = done.summary["trees"][0]
    assert tree["result"] == "would move" and tree["rehearsal"], done.output
    assert 0 < tree["freeze_s"] <= tree["downtime_s"] and tree["bytes"] > 0, done.output
    lines = len(log.read_text().splitlines())
    wait_until(lambda: len(log.read_text().splitlines()) > lines + 20, 10, "the server to go on")
    assert set(log.read_text().split()) == {"source"}
    assert path.stat().st_ino == inode, "the rehearsal has replaced a socket of the source"
    wait_until(lambda: not remains_at_target(nodes), 10, "the copy to be discarded")
    records = [migrations.records(role)[0] for role in ("source", "target")]
    assert [record["state"] for record in records] == ["aborted", "aborted"]
    assert all(record["plan"]["rehearsal"] for record in records)

    moved = migrations.migrate(pid)
    assert moved.code == REHEARSED, "it could be rehearsed, but not moved: " + moved.output
    wait_until(lambda: "target" in log.read_text(), 10, "the server to run at the target")
    nodes.target.signal(pid, signal.SIGKILL)


READER = "import time; file = open('/run/read-by-it'); time.sleep(600)"


def test_rehearsal_finds_what_no_check_sees(lab, nodes, migrations):
    """The file exists while ppmr compares both nodes, and is gone when the target restores the
    process."""
    for node in (nodes.source, nodes.target):
        node.run(["sh", "-c", "echo same > /run/read-by-it"])
    pids = [
        nodes.source.spawn(["/usr/bin/python3", "-SEc", program])
        for program in (READER, "import time; time.sleep(600)")
    ]
    migrations.migrate(*pids, options=["--dry-run"]).ok()
    running = migrations.start_migrate(
        *pids,
        options=["--rehearse", "--independent"],
        environment=pause_at(lab, "source:dumping"),
    )
    wait_until(lambda: len(migrations.paused("source", "dumping")) == 2, 20, "both to begin")
    nodes.target.run(["rm", "/run/read-by-it"])
    migrations.go_on("source", "dumping")
    done = running.wait()
    assert done.code == STAYED, done.output
    results = {tree["pid"]: tree["result"] for tree in done.summary["trees"]}
    assert results == {pids[0]: "would stay", pids[1]: "would move"}, done.output
    assert "/run/read-by-it" in done.output
    for pid in pids:
        assert nodes.source.alive(pid)
        nodes.source.signal(pid, signal.SIGKILL)


def test_no_copy_is_left_when_the_coordinator_of_a_rehearsal_dies(lab, nodes, migrations):
    pid, _, log = start_server(lab, nodes)
    running = migrations.start_migrate(
        pid, options=["--rehearse"], environment=pause_at(lab, "source:sealed")
    )
    wait_until(lambda: migrations.paused("source", "sealed"), 20, "the rehearsal to be sealed")
    wait_until(
        lambda: migrations.records("target")[0]["state"] == "ready", 20, "the copy to be restored"
    )
    lines = len(log.read_text().splitlines())
    wait_until(lambda: len(log.read_text().splitlines()) > lines + 20, 10, "the server to go on")
    running.kill()
    migrations.go_on("source", "sealed")
    migrations.recover()
    wait_until(lambda: not remains_at_target(nodes), 10, "the copy to be discarded")
    assert migrations.records("target")[0]["state"] == "aborted"
    assert set(log.read_text().split()) == {"source"}
    nodes.source.signal(pid, signal.SIGKILL)


def test_rehearsed_evacuation_lists_each_process(lab, nodes, migrations):
    command = ["/usr/bin/python3", "-SEc", "import time; time.sleep(600)", lab.home]
    pids = [nodes.source.spawn(command) for _ in range(3)]
    done = migrations.evacuate("--match", str(lab.home), "--rehearse")
    trees = done.ok().summary["trees"]
    assert {tree["pid"]: tree["result"] for tree in trees} == dict.fromkeys(pids, "would move")
    history = migrations.records("source")
    assert len(history) == 3 and all(record["plan"]["rehearsal"] for record in history)
    for pid in pids:
        assert nodes.source.alive(pid)
        nodes.source.signal(pid, signal.SIGKILL)


@pytest.mark.parametrize("role", ["supervisor", "daemon"])
def test_copy_of_a_rehearsal_ends_with_its_supervisor_or_daemon(lab, nodes, migrations, role):
    pid, _, log = start_server(lab, nodes)
    running = migrations.start_migrate(
        pid, options=["--rehearse"], environment=pause_at(lab, "source:sealed")
    )
    wait_until(
        lambda: migrations.paused("source", "sealed")
        and migrations.records("target")[0]["state"] == "ready",
        20,
        "the copy to be restored",
    )
    if role == "supervisor":
        tree = migrations.records("target")[0]["trees"][0]
        nodes.target.signal(tree["supervisor"][0], signal.SIGKILL)
        wait_until(lambda: not remains_at_target(nodes), 10, "the copy to end")
    else:
        migrations.target.kill()
    migrations.go_on("source", "sealed")
    done = running.wait()
    # The target had voted. The coordinator may receive the vote before it notices the loss.
    assert done.code in (STAYED, REHEARSED), done.output
    # Without a daemon the copy is held, and never runs, until --timeout is over.
    migrations.restart_dead()
    migrations.recover()
    wait_until(lambda: not remains_at_target(nodes), 20, "the copy to be discarded")
    assert set(log.read_text().split()) == {"source"}
    nodes.source.signal(pid, signal.SIGKILL)


REHEARSALS = Path(__file__).resolve().parents[1] / "rehearsals.py"


def test_rehearsals_predict_moves_of_mixed_programs(long):
    """Plays a sample that a seed draws; a failure shows the seed. `--programs 500` plays the whole.
    """
    count = 100 if long else 8
    words = ["/usr/bin/python3", REHEARSALS, "--programs", str(count)]
    played = subprocess.run(words, capture_output=True, text=True, timeout=patience(count * 30))
    assert played.returncode == 0, played.stdout + played.stderr
    assert re.search(r"^[1-9]\d* programs, seed \d+, not played", played.stdout, re.M), played.stdout
