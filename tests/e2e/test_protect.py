"""Epochs of a running process at its partner, and the takeover when its node is lost."""
import json
import random
import re
import signal
import time

import pytest

from lab.checker import Checker
from lab.criu import criu_that
from lab.migrations import Running
from lab.moving_address import MovingAddress
from lab.node import happens, wait_until
from lab.pace import patience
from lab.ppmr import find_ppmr
from lab.programs import Program, find_program
from lab.protection import Protection, lose, say_times

REPLACED, RESTORE_FAILED = 13, 9
MIB = 1 << 20
NAME = "ledger"


@pytest.fixture
def ledger(lab, nodes):
    ledger = Checker(lab, nodes, mib=16)
    yield ledger
    ledger.end()


@pytest.fixture
def protection(migrations, ledger):
    protection = Protection(migrations, ledger.pid)
    yield protection
    protection.end()


def test_takeover_goes_on_from_the_newest_epoch(nodes, ledger, protection):
    protection.wait_for_epochs(3)
    [first, second, third, *_] = protection.epochs()
    assert first["sent_bytes"] >= 16 * MIB > second["sent_bytes"]
    assert [first["number"], second["number"], third["number"]] == [1, 2, 3]
    kept = protection.kept()[NAME]
    assert kept["pid"] == ledger.pid and kept["state"] == "kept" and kept["epoch"] >= 3
    ledger.wait_for_lines(5)
    lose(nodes.source)
    taken = json.loads(protection.take_over("--truncate").stdout)
    assert taken["pid"] == ledger.pid and 0 <= taken["lost_ms"] < 60_000
    [file] = [each for each in taken["changed_files"] if each["path"] == str(ledger.path)]
    assert file["was_cut"] and file["bytes"] >= file["epoch_bytes"]
    ledger.wait_for_lines(20, nodes.target)
    ledger.check_continuous()
    assert nodes.target.alive(ledger.pid)
    again = protection.take_over(check=False)
    assert again.returncode != 0 and "taken over already" in again.stderr


def test_takeover_goes_on_from_an_older_epoch(nodes, ledger, migrations):
    protection = Protection(migrations, ledger.pid, options=["--keep", "3"])
    protection.wait_for_epochs(5)
    kept = [each["epoch"] for each in protection.kept()[NAME]["kept_epochs"]]
    assert kept == list(range(kept[0], kept[0] - 3, -1)), "the last three, the newest first"
    lose(nodes.source)
    oldest = protection.kept()[NAME]["kept_epochs"][-1]["epoch"]
    missing = protection.take_over("--epoch", oldest - 1, check=False)
    assert missing.returncode == 2 and f"no epoch {oldest - 1}; kept are" in missing.stderr
    taken = json.loads(protection.take_over("--epoch", oldest, "--truncate").stdout)
    assert taken["epoch"] == oldest and taken["lost_ms"] >= 2000
    ledger.wait_for_lines(20, nodes.target)
    ledger.check_continuous()


def test_every_moment_of_a_loss_leaves_one_whole_epoch(lab, nodes, migrations, long):
    """The node is lost at random moments of an epoch, and between two."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    taken = []
    for _ in range(200 if long else 3):
        # Hundreds of takeovers must not reach the pids of the source's programs.
        nodes.target.run(["sh", "-c", "echo 300 >/proc/sys/kernel/ns_last_pid"])
        ledger = Checker(lab, nodes, mib=16)
        protection = Protection(migrations, ledger.pid)
        protection.wait_for_epochs(1)
        time.sleep(chance.uniform(0, 1.5))  # the moment of the loss
        lose(nodes.source)
        taken.append(json.loads(protection.take_over("--truncate").stdout))
        ledger.wait_for_lines(20, nodes.target)
        ledger.check_continuous()
        ledger.end()
        nodes.target.await_end(ledger.pid)
        ledger.path.unlink()
        migrations.restart_dead()
    assert all(each["restore_ms"] > 0 for each in taken)
    assert say_times(taken) <= patience(1) * 1000, "more than a second besides the restore"


# Writes one file in place, again and again, and holds another one open for writing.
REWRITER = """
import sys, time
turn, files = 0, [open(path, "r+b", buffering=0) for path in sys.argv[1:]]
while True:
    files[0].seek(0)
    files[0].write(b"%8d" % turn)
    turn += 1
    time.sleep(0.01)
"""


def test_file_that_was_written_in_place_is_listed(lab, nodes, migrations):
    written, untouched = lab.home / "written", lab.home / "untouched"
    for path in (written, untouched):
        path.write_bytes(bytes(4096))
    pid = nodes.source.spawn(["/usr/bin/python3", "-c", REWRITER, written, untouched])
    wait_until(lambda: written.read_bytes()[:8].strip(b"\0 "), 20, "the program to write")
    protection = Protection(migrations, pid)
    protection.wait_for_epochs(1)
    before = written.read_bytes()
    wait_until(lambda: written.read_bytes() != before, 20, "the program to write again")
    lose(nodes.source)
    taken = json.loads(protection.take_over("--truncate").stdout)
    sizes = {"epoch_bytes": 4096, "bytes": 4096}
    assert taken["changed_files"] == [{"path": str(written), **sizes, "was_cut": False}]
    nodes.target.signal(pid, signal.SIGKILL)


def usage(node):
    """(descriptors, KiB of memory) of all programs of ppmr on a node; between epochs."""
    count = (
        "for pid in $(pgrep -x ppmr); do "
        "echo $(ls /proc/$pid/fd | wc -l) $(sed -n 's/^RssAnon:[^0-9]*\\([0-9]*\\) .*/\\1/p' "
        "/proc/$pid/status); done 2>/dev/null"
    )

    def sample():
        lines = [line.split() for line in node.run(["sh", "-c", count]).stdout.splitlines()]
        whole = [tuple(map(int, line)) for line in lines if len(line) == 2]
        return tuple(map(sum, zip(*whole)))

    return min(sample() for _ in range(20))


def kept_kib(node):
    shown = node.run(["df", "--output=used", "/run/ppmr/epochs"]).stdout
    return int(shown.split()[-1])


@pytest.mark.long
def test_thousand_epochs_leave_memory_and_descriptors_as_they_were(nodes, ledger, protection):
    protection.wait_for_epochs(50, timeout=300, interval=1)
    before = {node.name: usage(node) for node in (nodes.source, nodes.target)}
    kept = kept_kib(nodes.target)
    protection.wait_for_epochs(1000, timeout=3000, interval=1)
    print(before, kept)
    for node in (nodes.source, nodes.target):
        descriptors, memory_kib = usage(node)
        print(node.name, descriptors, memory_kib)
        assert descriptors <= before[node.name][0] + 4
        assert memory_kib <= before[node.name][1] + 4096
    print(kept_kib(nodes.target))
    assert kept_kib(nodes.target) <= kept + 4096
    ledger.check_continuous()


def test_source_that_comes_back_ends_its_copy(nodes, ledger, protection):
    protection.wait_for_epochs(2)
    nodes.link.set_up(False)
    wrong = protection.takeover(NAME, check=False, input="somebody\n")
    assert wrong.returncode != 0 and "Type the name of the lost node" in wrong.stderr
    typed = protection.takeover(NAME, "--truncate", input=f"{nodes.source.name}\n")
    assert json.loads(typed.stdout)["pid"] == ledger.pid
    assert nodes.source.alive(ledger.pid), "nobody can tell the source yet"
    nodes.link.set_up(True)
    nodes.source.await_end(ledger.pid, 60)
    done = protection.running.wait(60)
    assert done.code == REPLACED and "was taken over" in done.output
    ledger.wait_for_lines(20, nodes.target)
    assert nodes.target.alive(ledger.pid)


def test_source_that_is_alive_aborts_a_takeover(nodes, ledger, protection, migrations):
    """The fence ends after the source has asked."""
    protection.wait_for_epochs(1)
    aborted = f"grep -qs 'its source is alive' {migrations.states['target']}/*.target/*.json"
    fence = f"until {aborted}; do sleep 0.1; done"
    wrong = protection.takeover(NAME, "--fence", fence, check=False)
    assert wrong.returncode == RESTORE_FAILED and "its source is alive" in wrong.stderr
    assert not nodes.target.alive(ledger.pid)
    protection.wait_for_epochs(2)
    ledger.check_continuous()


def test_epochs_leave_no_ended_children(nodes, protection):
    protection.wait_for_epochs(3)

    def ended():
        return nodes.source.run(["pgrep", "--runstates", "Z", "ppmr"], check=False).stdout

    wait_until(lambda: not ended(), 10, "the page readers to be reaped")


def test_fence_that_fails_changes_nothing(nodes, ledger, protection):
    protection.wait_for_epochs(1)
    refused = protection.takeover(NAME, "--fence", "exit 3", check=False)
    assert refused.returncode != 0 and "may be alive" in refused.stderr
    nodes.target.await_end(ledger.pid)
    protection.wait_for_epochs(1)


def test_partner_takes_over_a_silent_node_by_itself(nodes, ledger, protection, migrations):
    protection.wait_for_epochs(1)
    watch = Running(
        nodes.target,
        [find_ppmr(), "takeover", NAME, "--fence", "true", "--dead-after", "3", "--truncate"]
        + ["--state-dir", migrations.states["target"]],
    )
    assert not happens(lambda: not watch.running(), 4), "the source is alive"
    lose(nodes.source)
    assert watch.wait(60).code == 0
    ledger.wait_for_lines(20, nodes.target)
    ledger.check_continuous()


def test_partner_that_starts_again_keeps_the_epoch(nodes, ledger, protection, migrations):
    protection.wait_for_epochs(1)
    migrations.target.kill()
    assert protection.kept()[NAME]["epoch"] >= 1
    migrations.restart_dead()
    protection.wait_for_epochs(2, timeout=60)
    lose(nodes.source)
    protection.take_over("--truncate")
    ledger.wait_for_lines(20, nodes.target)
    ledger.check_continuous()


def test_killed_protection_leaves_the_process_as_it_was(nodes, ledger, migrations):
    chance = random.Random(7)
    for _ in range(5):
        protection = Protection(migrations, ledger.pid)
        protection.wait_for_epochs(1)
        time.sleep(chance.uniform(0.7, 1.1))  # around the next freeze
        protection.running.signal(signal.SIGKILL)
        protection.running.wait()
        ledger.wait_for_lines(5)
        wait_until(lambda: not ledger.is_tracked(), 10, "the tracking to end")
    ledger.check_continuous()
    protection = Protection(migrations, ledger.pid)
    protection.wait_for_epochs(1)
    assert len([name for name in nodes.source.names(migrations.out)]) <= 2, "leftovers"
    protection.end()


def test_epochs_are_removed_when_their_process_ends(nodes, ledger, protection):
    protection.wait_for_epochs(1)
    nodes.source.signal(ledger.pid, signal.SIGKILL)
    done = protection.running.wait(30)
    assert done.code == 0 and "has ended" in done.output
    assert protection.kept() == {}
    gone = protection.take_over(check=False)
    assert gone.returncode != 0 and "no process is protected as 'ledger'" in gone.stderr


def test_slow_link_does_not_hold_the_process(nodes, ledger, protection):
    """The rest of an epoch travels while the process runs."""
    protection.wait_for_epochs(2)
    nodes.link.set_up(False)
    gaps, before = [], len(ledger.lines())
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        began = time.monotonic()
        ledger.wait_for_lines(1)
        gaps.append(time.monotonic() - began)
    assert len(ledger.lines()) > before and max(gaps) < 3
    nodes.link.set_up(True)
    protection.wait_for_epochs(2, timeout=90)


def test_protection_goes_on_when_the_source_is_renamed(nodes, ledger, migrations):
    """Another host name is another identity of the source, if its key is shared."""
    protection = Protection(migrations, ledger.pid)
    protection.wait_for_epochs(2)
    nodes.source.run(["hostname", "renamed"])
    migrations.source.kill()
    migrations.restart_dead()
    protection.wait_for_epochs(2)


def test_criu_that_hangs_does_not_hold_the_process(nodes, ledger, migrations, tmp_path):
    """CRIU is stopped while its parasite code is in the process: the epoch fails, and the process
    runs on."""
    stop = tmp_path / "stop"
    library = find_program("libstop_in_dump.so")
    loads = f'export STOP_IN_DUMP={stop} LD_PRELOAD="{library}:$LD_PRELOAD"'
    protection = Protection(
        migrations,
        ledger.pid,
        options=["--max-pause", "40ms"],
        environment={"PPMR_CRIU": str(criu_that(tmp_path, loads))},
    )
    protection.wait_for_epochs(1)
    status = nodes.source.host_path(f"/proc/{ledger.pid}/status")
    stop.touch()
    wait_until(lambda: not stop.exists(), 30, "CRIU to dump the process")
    held = int(re.search(r"TracerPid:\s(\d+)", status.read_text()).group(1))
    assert held != 0
    ledger.wait_for_lines(5)
    assert not nodes.source.alive(held)
    wait_until(
        lambda: any(
            "criu dump was silent for 2000 ms" in event["sentence"]
            for event in protection.events()
            if event["event"] == "warning"
        ),
        10,
        "the warning about the silent CRIU",
    )
    protection.wait_for_epochs(2)
    ledger.check_continuous()
    protection.end()


def test_epoch_after_a_failed_one_sends_only_what_is_missing(nodes, ledger, migrations):
    protection = Protection(migrations, ledger.pid)
    protection.wait_for_epochs(2)
    migrations.target.kill()
    wait_until(
        lambda: [event for event in protection.events() if event["event"] == "warning"],
        60,
        "an epoch to fail",
    )
    before = len(protection.epochs())
    migrations.restart_dead()
    protection.wait_for_epochs(2, timeout=60)
    again = protection.epochs()[before]
    assert again["sent_bytes"] < 12 * MIB, "all memory was sent once more"
    lose(nodes.source)
    protection.take_over("--truncate")
    ledger.wait_for_lines(20, nodes.target)
    ledger.check_continuous()


def test_max_rate_limits_the_rounds_of_an_epoch(ledger, migrations):
    protection = Protection(migrations, ledger.pid, options=["--max-rate", "4MiB"])
    protection.wait_for_epochs(1, timeout=60)
    [first, *_] = protection.epochs()
    assert first["took_ms"] > 16 * MIB / (4 * MIB) * 1000 * 0.8
    protection.end()


# Answers each line with the number of lines that it has answered.
COUNTING_SERVER = """
import socket, threading
count, counting = 0, threading.Lock()
def serve(connection):
    global count
    try:
        for _ in connection.makefile():
            with counting:
                count += 1
                connection.sendall(b"%d\\n" % count)
    except OSError:
        pass
listener = socket.create_server(("", 7007))
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
"""
# Prints the answers, and "lost" and the reason each time that the connection ends.
CLIENT = """
import socket, sys, time
while True:
    try:
        connection = socket.create_connection((sys.argv[1], 7007), timeout=5)
        answers = connection.makefile()
        while True:
            connection.sendall(b"more\\n")
            answer = answers.readline()
            if not answer: raise ConnectionError("closed")
            print(answer.strip(), flush=True)
            time.sleep(0.02)
    except OSError as error:
        print("lost", error, flush=True)
        time.sleep(0.1)
"""


def test_clients_of_a_server_connect_again_after_a_takeover(lab, nodes, migrations, tmp_path):
    """The address of the server moves with it. Its connections end, because a client may have
    received what the server has not sent yet in its epoch."""
    moving = MovingAddress(lab, nodes.source, nodes.target)
    pid = nodes.source.spawn(["/usr/bin/python3", "-c", COUNTING_SERVER])
    nodes.source.await_listener(7007)
    seen = tmp_path / "seen"
    with seen.open("w") as output:
        words = ["/usr/bin/python3", "-c", CLIENT, moving.address]
        client = moving.third.popen(words, stdout=output)

    def lines():
        return seen.read_text().splitlines()

    protection = Protection(migrations, pid)
    protection.wait_for_epochs(2)
    lose(nodes.source)
    moving.leave()
    protection.take_over()
    before = lines()
    moving.arrive()
    wait_until(
        lambda: lines()[-1].isdigit() and any("lost" in line for line in lines()[len(before) - 1 :]),
        60,
        "the client to be served again",
    )
    client.kill()
    numbers = [int(line) for line in lines() if line.isdigit()]
    [again] = [at for at, (one, next) in enumerate(zip(numbers, numbers[1:])) if next != one + 1]
    assert 1 < numbers[again + 1] <= numbers[again], "it goes on from its epoch"


# Writes each of its pages again and again, faster than any link here sends them.
WRITER = """
import mmap
memory = mmap.mmap(-1, 64 << 20)
while True:
    for turn in range(251):
        memory[:] = bytes([turn]) * len(memory)
"""


def test_pause_is_within_its_limit_or_said_to_be_longer(nodes, migrations):
    pid = nodes.source.spawn(["/usr/bin/python3", "-c", WRITER])
    words = [find_ppmr(), "protect", "--pid", pid, "--mount", migrations.out, "--every", "1"]
    words += ["--state-dir", migrations.states["source"], "--max-pause", "20ms"]
    running = Running(nodes.source, words)
    output = []

    def epochs():
        assert running.running(), running.wait(1).output
        output[:] = [line for line in running.output().splitlines() if ", pause " in line]
        return len(output) >= 4

    wait_until(epochs, 90, "four epochs")
    running.signal(signal.SIGINT)
    running.wait()
    for line in output:
        pause_ms = int(re.search(r"pause (\d+) ms", line)[1])
        assert (pause_ms > 20) == ("longer than --max-pause, 20 ms" in line), line


def test_name_stays_taken_until_it_is_discarded(nodes, ledger, protection, migrations):
    protection.wait_for_epochs(1)
    second = Protection(migrations, ledger.pid).running.wait(30)
    assert second.code != 0 and "another ppmr protect has the name ledger" in second.output
    third = Protection(migrations, ledger.pid, name="no/name").running.wait(30)
    assert third.code != 0 and "letters, digits" in third.output
    protection.end()
    other = nodes.source.spawn(["/usr/bin/sleep", "60"])
    taken = Protection(migrations, other).running.wait(30)
    assert taken.code != 0 and "the name of another process" in taken.output
    discarded = json.loads(protection.takeover(NAME, "--discard").stdout)
    assert discarded == {"ok": True, "name": NAME}
    free = Protection(migrations, other)
    free.wait_for_epochs(1)
    free.end()
    nodes.source.signal(other, signal.SIGKILL)


def test_move_of_a_protected_process_names_the_protection(ledger, protection, migrations):
    protection.wait_for_epochs(1)
    refused = migrations.migrate(ledger.pid)
    assert refused.code == 11, refused.output
    assert re.search(rf"process {ledger.pid} is protected as {NAME} by pid \d+", refused.output)
    assert "kill" in refused.output and f"takeover --discard {NAME}" in refused.output
    protection.wait_for_epochs(1)
    protection.end()
    migrations.migrate(ledger.pid).ok()


def test_status_and_metrics_show_the_newest_epoch(nodes, protection, migrations):
    protection.wait_for_epochs(2)
    [shown] = migrations.source.status()["protected"]
    assert shown["name"] == NAME and shown["epoch"] >= 2 and shown["age_ms"] < 60_000
    text = nodes.source.run([find_ppmr(), "status", migrations.out]).stdout
    assert f"{NAME} (python3, pid" in text
    protection.end()
    assert migrations.source.status()["protected"] == []


# A takeover keeps trees, shared pages, mappings that come and go, pipes, sockets and shared memory.
@pytest.mark.parametrize(
    "program, arguments",
    [("memory_changer", [32, 100]), ("conversation", "pipes"), ("conversation", "shared-memory")],
    ids=["memory", "pipes", "shared-memory"],
)
def test_program_is_whole_after_a_takeover(lab, nodes, migrations, program, arguments):
    directory = lab.home / "program"
    if program == "conversation":
        words = [arguments, directory]
    else:
        words = [directory, *arguments]
    moved = Program(nodes.source, program, words, directory)
    moved.wait_for_lines(50)
    options = ["--ghost-limit", "5M"] if arguments == "shared-memory" else []
    protection = Protection(migrations, moved.pid, criu_options=options, name="program")
    protection.wait_for_epochs(3)
    lose(nodes.source)
    protection.take_over("--truncate")
    moved.node = nodes.target
    moved.wait_for_lines(200, nodes.target, timeout=60)
    lines = moved.lines()
    assert [line["line"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[-1].get("wrong", 0) == 0
    nodes.target.signal(moved.pid, signal.SIGKILL)
