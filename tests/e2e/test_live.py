"""Live moves: the memory of a process is copied in rounds while it runs."""
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lab.live import rounds_of, skip_if_kernel_cannot, warnings_of
from lab.migrations import write_hook
from lab.node import wait_until
from lab.pace import patience
from lab.ppmr import find_ppmr
from lab.programs import Program, gap_between
from lab.tracking import protects_written_pages
from lab.workers import check_moved, start_workers

MOVED, ABORTED = 0, 11
MIB = 1 << 20


def test_dry_run_estimates_what_the_move_then_takes(nodes, migrations, checker):
    done = migrations.migrate(checker.pid, options=["--dry-run"]).ok()
    estimate = next(event for event in done.events if event["event"] == "estimate")
    skip_if_kernel_cannot(done)
    (move,) = estimate["moves"]
    assert not checker.is_tracked(), "the dry run has left its tracker behind"
    assert [process["pid"] for process in move["processes"]] == [checker.pid]
    assert str(checker.path) in move["processes"][0]["command_line"]
    assert "target" in estimate["target"] and estimate["promised_s"] == 0.3
    assert not estimate["rate_is_measured"], "no move has gone there"
    if move["why_frozen"]:
        pytest.skip(move["why_frozen"])
    assert 0 < move["written_bytes"] < move["memory_bytes"], move
    assert 0 < move["downtime_s"] < move["time_s"], move

    moved = migrations.migrate(checker.pid).ok()
    sent = moved.summary["trees"][0]["bytes"]
    assert sent / 2 < move["sent_bytes"] < sent * 2, (move, moved.summary)
    checker.check_runs_at(nodes.target)
    checker.end()  # its pid is free again
    other = nodes.source.spawn(["sleep", "600"])
    again = migrations.migrate(other, options=["--dry-run"]).ok()
    estimate = next(event for event in again.events if event["event"] == "estimate")
    assert estimate["rate_is_measured"]
    assert estimate["rate_bytes_per_s"] > MIB
    nodes.source.signal(other, signal.SIGKILL)


@pytest.mark.parametrize("options", [[], ["--post-copy"]], ids=["default", "post-copy"])
def test_only_what_was_written_travels_frozen(nodes, migrations, checker, options):
    done = migrations.migrate(checker.pid, options=options).ok()
    skip_if_kernel_cannot(done)
    rounds = rounds_of(done)
    assert rounds[0] >= 64 * MIB
    assert done.summary["trees"][0]["bytes"] - sum(rounds) < 16 * MIB
    checker.check_runs_at(nodes.target)


def test_promise_that_cannot_be_kept_cancels_the_move_if_asked(nodes, migrations, checker):
    options = ["--max-downtime", "1ms", "--on-timeout", "cancel"]
    done = migrations.migrate(checker.pid, options=options)
    skip_if_kernel_cannot(done)
    assert done.code == ABORTED and "--max-downtime (1 ms)" in done.output
    assert not checker.is_tracked()
    checker.check_runs_at(nodes.source)


# On a slow link a round takes long.
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL], ids=["interrupt", "kill"])
def test_move_that_ends_in_a_round_leaves_nothing_in_the_process(nodes, migrations, checker, by):
    nodes.link.limit("100mbit")
    running = migrations.start_migrate(checker.pid)
    wait_until(
        lambda: migrations.target.status()["store"]["used_bytes"] > 4 * MIB, 20, "a round to begin"
    )
    if protects_written_pages():
        assert checker.is_tracked(), "nothing tracks it, so that nothing is left proves nothing"
    running.signal(by)
    done = running.wait()
    nodes.link.limit()
    if by == signal.SIGINT:
        assert done.code == ABORTED
    else:
        migrations.recover()
    assert not checker.is_tracked()
    checker.check_runs_at(nodes.source)
    migrations.migrate(checker.pid).ok()
    checker.check_runs_at(nodes.target)


def cancel(migrations, identity):
    command = [find_ppmr(), "migrate", "--cancel", identity, "--state-dir"]
    return migrations.source_at.run([*command, migrations.states["source"]], check=False)


def test_move_is_cancelled_from_another_terminal(nodes, migrations, checker):
    nodes.link.limit("100mbit")
    running = migrations.start_migrate(checker.pid)
    wait_until(
        lambda: migrations.target.status()["store"]["used_bytes"] > 4 * MIB, 20, "a round to begin"
    )
    [record] = migrations.records("source")
    cancelled = cancel(migrations, record["id"])
    assert cancelled.returncode == 0, cancelled.stderr
    assert "the processes continue here" in cancelled.stdout
    done = running.wait()
    nodes.link.limit()
    assert done.code == ABORTED and "cancelled by ppmr migrate --cancel" in done.output
    assert not checker.is_tracked()
    checker.check_runs_at(nodes.source)
    again = cancel(migrations, record["id"])
    assert again.returncode != 0 and "aborted already" in again.stderr
    done = migrations.migrate(checker.pid).ok()
    checker.check_runs_at(nodes.target)
    [moved] = [event["migration"] for event in done.events if event["event"] == "begun"]
    late = cancel(migrations, moved)
    assert late.returncode != 0 and "the decision is made" in late.stderr
    unknown = cancel(migrations, "0" * 32)
    assert unknown.returncode != 0


def test_rate_of_a_move_is_changed_while_it_copies(nodes, migrations, checker):
    """At the first rate, the move would take a minute."""
    running = migrations.start_migrate(checker.pid, options=["--max-rate", "1M"])
    wait_until(
        lambda: migrations.target.status()["store"]["used_bytes"] > 2 * MIB, 20, "a round to begin"
    )
    began = time.monotonic()
    [record] = migrations.records("source")

    def change(*limits):
        command = [find_ppmr(), "migrate", "--set", record["id"], *limits, "--state-dir"]
        return migrations.source_at.run([*command, migrations.states["source"]], check=False)

    wrong = change("max-rate=10K")
    assert wrong.returncode != 0 and "at least 1 MiB per second" in wrong.stderr
    assert running.running()
    changed = change("max-rate=0", "max-downtime=1s")
    assert changed.returncode == 0, changed.stderr
    assert changed.stdout.endswith(": its limits are changed: max-rate=0 max-downtime=1s\n")
    done = running.wait().ok()
    skip_if_kernel_cannot(done)
    assert time.monotonic() - began < 30
    checker.check_runs_at(nodes.target)
    late = change("max-rate=1G")
    assert late.returncode != 0 and "it is finished" in late.stderr


def test_copying_takes_no_more_than_its_share_of_a_processor(nodes, migrations, checker):
    def used_s():
        words = Path(f"/proc/{migrations.source.host_pid}/stat").read_text()
        ticks = words.rpartition(")")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    before = used_s()
    done = migrations.migrate(checker.pid, options=["--cpu-share", "10"]).ok()
    skip_if_kernel_cannot(done)
    used = used_s() - before
    when = {event["event"]: event["time_ns"] / 1e9 for event in reversed(done.events)}
    took = when["copied"] - when["copying"]
    # The page reader has its part of the share, and the daemon works while the process is frozen.
    assert used < took * 0.15, f"the daemon worked {used} s in {took} s"
    checker.check_runs_at(nodes.target)


def test_pause_may_be_longer_than_the_time_limit_of_a_held_process(migrations, nodes, checker):
    """The target once treated a pause like a source that had stopped sending."""
    running = migrations.start_migrate(checker.pid, options=["--max-rate", "4M", "--timeout", "3"])
    wait_until(
        lambda: migrations.target.status()["store"]["used_bytes"] > 2 * MIB, 20, "a round to begin"
    )
    [record] = migrations.records("source")
    steer = [find_ppmr(), "migrate", "--state-dir", migrations.states["source"]]
    migrations.source_at.run([*steer, "--pause", record["id"]])
    began = time.monotonic()
    wait_until(
        lambda: not running.running() or time.monotonic() > began + 6, 20, "twice the time limit"
    )
    assert [each["state"] for each in migrations.records("target")] == ["restoring"]
    migrations.source_at.run([*steer, "--set", record["id"], "max-rate=0"])
    migrations.source_at.run([*steer, "--resume", record["id"]])
    skip_if_kernel_cannot(running.wait().ok())
    checker.check_runs_at(nodes.target)


@pytest.mark.parametrize("end", ["resume", "cancel"])
def test_move_pauses_until_it_is_resumed_or_cancelled(nodes, migrations, checker, end):
    running = migrations.start_migrate(checker.pid, options=["--max-rate", "4M"])
    wait_until(
        lambda: migrations.target.status()["store"]["used_bytes"] > 2 * MIB, 20, "a round to begin"
    )
    [record] = migrations.records("source")

    def do(*words):
        command = [find_ppmr(), *words, "--state-dir", migrations.states["source"]]
        return migrations.source_at.run(command, check=False)

    early = do("migrate", "--resume", record["id"])
    assert early.returncode != 0 and "it is not paused" in early.stderr
    paused = do("migrate", "--pause", record["id"])
    assert paused.returncode == 0, paused.stderr
    assert "--resume" in paused.stdout
    again = do("migrate", "--pause", record["id"])
    assert again.returncode != 0 and "paused already" in again.stderr
    # The chunks that were on their way arrive; the checker goes on, and nothing of it is sent.
    checker.wait_for_lines(50)
    used = migrations.target.status()["store"]["used_bytes"]
    checker.wait_for_lines(100)
    assert migrations.target.status()["store"]["used_bytes"] == used
    [line] = [json.loads(line) for line in do("migrations", "--json").stdout.splitlines()]
    assert line["phase"] == "paused" and line["round"] == 1 and line["pause_began_ns"] > 0
    assert " paused " in do("migrations").stdout
    assert running.running()
    if end == "cancel":
        assert do("migrate", "--cancel", record["id"]).returncode == 0
        assert running.wait().code == ABORTED
        wait_until(
            lambda: not nodes.source.find_processes(lambda words: words[1:2] == [b"page-reader"]),
            10,
            "the page reader to end",
        )
        checker.check_runs_at(nodes.source)
        return
    resumed = do("migrate", "--resume", record["id"][:8])
    assert resumed.returncode == 0 and "after a pause of" in resumed.stdout, resumed.stderr
    assert do("migrate", "--set", record["id"], "max-rate=0").returncode == 0
    done = running.wait().ok()
    skip_if_kernel_cannot(done)
    events = [event["event"] for event in done.events]
    assert events.index("paused") < events.index("resumed") < events.index("running")
    for event in done.events:
        if event["event"] == "progress":
            assert event["migration"] == record["id"]
            assert event["phase"] in ("copying", "paused", "frozen", "filling"), event
    checker.check_runs_at(nodes.target)
    [record] = migrations.records("source")
    [(began_ns, ended_ns)] = record["pauses"]
    assert began_ns < ended_ns
    late = do("migrate", "--pause", record["id"])
    assert late.returncode != 0 and "the decision is made" in late.stderr


def test_tree_of_processes_is_copied_while_it_runs(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1)
    done = migrations.migrate(worker.pid).ok()
    skip_if_kernel_cannot(done)
    assert rounds_of(done) and warnings_of(done) == []
    check_moved(worker, nodes)
    worker.end()


# During the rounds the process writes, unmaps, moves and returns pages, and forks.
@pytest.mark.parametrize("options", [[], ["--post-copy"]], ids=["default", "post-copy"])
def test_memory_that_changes_during_the_rounds_has_its_last_values(
    lab, nodes, migrations, options
):
    directory = lab.home / "changer"
    changer = Program(nodes.source, "memory_changer", [directory, 32, 100], directory)
    changer.wait_for_lines(100)
    done = migrations.migrate(changer.pid, options=options).ok()
    skip_if_kernel_cannot(done)
    assert rounds_of(done)
    changer.node = nodes.target
    # After this many lines, each mapping has been checked several times.
    changer.wait_for_lines(500, nodes.target, timeout=60)
    lines = changer.lines()
    gap_between(lines, nodes.source, nodes.target)
    assert [line["line"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[-1]["wrong"] == 0, "a page is lost, or as it was in a round"
    nodes.target.signal(changer.pid, signal.SIGKILL)


LIVE_MOVES = Path(__file__).resolve().parents[1] / "live_moves.py"


def test_memory_that_changes_is_right_after_many_live_moves(long):
    """Plays a sample that a seed draws; a failure shows the seed. `--moves 1000` plays the whole.
    """
    count = 100 if long else 6
    words = ["/usr/bin/python3", LIVE_MOVES, "--moves", str(count)]
    played = subprocess.run(words, capture_output=True, text=True, timeout=patience(count * 30))
    assert played.returncode == 0, played.stdout + played.stderr
    assert re.search(r"^[1-9]\d* moves, .*, wrong words 0, seed", played.stdout, re.M), played.stdout


def test_program_that_changes_its_memory_sees_a_wrong_word(lab, nodes):
    directory = lab.home / "changer"
    changer = Program(nodes.source, "memory_changer", [directory, 16, 100], directory)
    changer.wait_for_lines(10)
    assert changer.lines()[-1]["wrong"] == 0
    # The program is stopped, so its mappings do not change.
    nodes.source.signal(changer.pid, signal.SIGSTOP)
    maps = nodes.source.run(["cat", f"/proc/{changer.pid}/maps"]).stdout.splitlines()
    places = [line.split()[0] for line in maps if len(line.split()) == 5 and " rw-p " in line]
    with open(nodes.source.host_path(f"/proc/{changer.pid}/mem"), "r+b", buffering=0) as memory:
        for place in places:
            first, end = (int(word, 16) for word in place.split("-"))
            # Leaves out small mappings, because they have the variables of libraries.
            for page in range(first, end, 4096) if end - first >= MIB else ():
                memory.seek(page)
                word = memory.read(8)
                memory.seek(page)
                memory.write(bytes(byte ^ 1 for byte in word))
    nodes.source.signal(changer.pid, signal.SIGCONT)
    wait_until(lambda: changer.lines()[-1]["wrong"] > 0, 20, "a wrong word to show")
    changer.end()


def test_all_memory_travels_frozen_if_asked(nodes, migrations, checker):
    done = migrations.migrate(checker.pid, options=["--stop-and-copy"]).ok()
    assert rounds_of(done) == []
    checker.check_runs_at(nodes.target)


# The target has room for the memory and for half of it once more.
TIGHT = ["--memory-limit", "96MiB"]

# Writes to all of its memory when asked.
REWRITER = """
import os, sys, time
directory = sys.argv[1]
memory = bytearray(os.urandom(1 << 20)) * 64
lines = open(directory + "/lines", "w", buffering=1)
pattern = memory[:1 << 20]
while True:
    if os.path.exists(directory + "/rewrite") and not os.path.exists(directory + "/rewritten"):
        pattern = bytearray(os.urandom(1 << 20))
        memory[:] = pattern * 64
        open(directory + "/rewritten", "w")
    right = all(memory[at:at + len(pattern)] == pattern for at in range(0, 64 << 20, 1 << 20))
    print(os.uname().nodename, right, file=lines)
    time.sleep(0.02)
"""


def test_process_is_copied_while_it_runs_if_there_is_room_for_what_it_writes(
    nodes, make_migrations, checker
):
    migrations = make_migrations(target_options=TIGHT)
    done = migrations.migrate(checker.pid).ok()
    skip_if_kernel_cannot(done)
    assert rounds_of(done) and warnings_of(done) == []
    checker.check_runs_at(nodes.target)


def test_memory_for_which_there_is_no_room_beside_the_rounds_travels_frozen(
    lab, nodes, make_migrations
):
    lines, hooks = lab.home / "lines", lab.home / "hooks"
    rewriter = nodes.source.spawn(["/usr/bin/python3", "-c", REWRITER, lab.home])
    wait_until(lambda: lines.exists() and lines.read_text().count("True") > 3, 30, "lines")
    wait = f"touch {lab.home}/rewrite; until [ -e {lab.home}/rewritten ]; do sleep 0.02; done"
    write_hook(hooks, "before-freeze", wait)
    migrations = make_migrations(target_options=TIGHT)
    done = migrations.migrate(rewriter, options=["--hook", hooks]).ok()
    skip_if_kernel_cannot(done)
    assert rounds_of(done)
    assert any("no room for copies" in sentence for sentence in warnings_of(done)), done.output
    there = f"{nodes.target.name} True\n"
    wait_until(lambda: lines.read_text().count(there) > 3, 30, "lines at the target")
    assert "False" not in lines.read_text()
    nodes.target.signal(rewriter, signal.SIGKILL)


# Pages that trap (glibc from 2.42 on has them below each stack) between pages with content.
GUARDED = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
page, count, guards, install, private_anonymous = 4096, 256, [10, *range(100, 108)], 102, 0x22
start = libc.mmap(None, count * page, 3, private_anonymous, -1, 0)
ctypes.memset(start, 7, count * page)
lines = open(sys.argv[1], "w", buffering=1)
for guard in guards:
    if libc.madvise(start + guard * page, page, install) != 0:
        print("the kernel has no guard pages", file=lines)
        sys.exit()
memory = os.open("/proc/self/mem", os.O_RDONLY)
def traps(number):
    try:
        return os.pread(memory, page, start + number * page) != bytes([7]) * page
    except OSError:
        return True
while True:
    print(os.uname().nodename, [n for n in range(count) if traps(n)] == guards, file=lines)
    time.sleep(0.02)
"""


@pytest.mark.parametrize("options", [[], ["--post-copy"], ["--eager"]], ids=" ".join)
def test_guard_pages_trap_at_the_target(lab, nodes, migrations, options):
    lines = lab.home / "lines"
    pid = nodes.source.spawn(["/usr/bin/python3", "-c", GUARDED, lines])
    wait_until(
        lambda: not nodes.source.alive(pid)
        or (lines.exists() and lines.read_text().count("True") > 3),
        20,
        "lines",
    )
    if not nodes.source.alive(pid):
        pytest.skip(f"NOT TESTED: guard pages: {lines.read_text()}")
    migrations.migrate(pid, options=options).ok()
    there = f"{nodes.target.name} True\n"
    wait_until(lambda: lines.read_text().count(there) > 3, 20, "lines at the target")
    assert "False" not in lines.read_text()
    nodes.target.signal(pid, signal.SIGKILL)


# A read with O_DIRECT writes to memory, but marks no page as written.
def test_process_that_reads_files_directly_moves_frozen(lab, nodes, migrations):
    file = lab.home / "direct"
    program = (
        "import os, sys, time; memory = bytearray(16 << 20); "
        "os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT); "
        "os.rename(sys.argv[1], sys.argv[1] + '.ready'); time.sleep(1000)"
    )
    pid = nodes.source.spawn(["/usr/bin/python3", "-c", program, file])
    wait_until(lambda: (lab.home / "direct.ready").exists(), 20, "the program to start")
    refused = migrations.migrate(pid, options=["--on-timeout", "cancel"])
    assert refused.code == ABORTED and "--on-timeout cancel" in refused.output, refused.output
    follows = migrations.migrate(pid, options=["--on-timeout", "post-copy", "--dry-run"]).ok()
    assert "O_DIRECT" in follows.output, follows.output
    done = migrations.migrate(pid).ok()
    skip_if_kernel_cannot(done)
    assert any("O_DIRECT" in sentence for sentence in warnings_of(done))
    nodes.target.signal(pid, signal.SIGKILL)
