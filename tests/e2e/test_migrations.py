"""`ppmr migrations` while something moves; and no control sequence of a process on a terminal."""
import json
import subprocess

from lab.migrations import write_hook
from lab.node import wait_until
from lab.ppmr import find_ppmr
from lab.workers import check_moved, check_stayed, start_workers

MIB = 1 << 20
CLEAR = "\x1b[2J\x1b[8m"  # clears a terminal, and hides what follows
FORGED = "\nforge"  # would be a line of its own


def listed(migrations, role, *options):
    words = [find_ppmr(), "migrations", "--state-dir", migrations.states[role], *options]
    return migrations.node(role).run(words).stdout


def test_migration_in_progress_is_listed_and_cancelled_by_its_first_digits(
    lab, nodes, migrations
):
    assert listed(migrations, "source") == "no migration is in progress or open on this node\n"
    [worker] = start_workers(lab, nodes, 1, size_mib=64)
    running = migrations.start_migrate(worker.pid, options=["--max-rate", "4M"])

    def copying():
        lines = listed(migrations, "source", "--json").splitlines()
        found = [json.loads(line) for line in lines]
        return found if found and found[0]["bytes"] > MIB else None

    [one] = wait_until(copying, 20, "memory to be copied")
    assert one["phase"] == "copying" and one["pid"] == worker.pid and one["peer"]
    assert one["promised_s"] == 0.3
    assert one["rate_bytes_per_s"] < 16 * MIB < one["expected_bytes"]
    [line] = listed(migrations, "source").splitlines()
    digits, pid, *_ = line.split()
    assert one["migration"].startswith(digits) and int(pid) == worker.pid
    assert "round 1" in line and "%" in line and len(line) < 120
    [there] = listed(migrations, "target").splitlines()
    assert there.startswith(digits) and "from" in there

    words = [find_ppmr(), "migrate", "--cancel", digits[:6]]
    nodes.source.run([*words, "--state-dir", migrations.states["source"]])
    assert running.wait().code == 11
    check_stayed(worker, nodes)
    assert listed(migrations, "source").startswith("no migration")


def test_control_sequences_and_lines_of_a_process_reach_no_terminal(lab, nodes, migrations):
    script = (
        "import ctypes, sys, time\n"
        "ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)\n"
        f"open({str(lab.home / 'named')!r}, 'w').close()\n"
        "while True: time.sleep(0.05)\n"
    )
    nodes.source.spawn(["/usr/bin/python3", "-c", script, CLEAR + FORGED])
    wait_until((lab.home / "named").exists, 10, "the process to have its name")
    nodes.target.keep_helpers_low()
    common = ["--state-dir", migrations.states["source"]]
    evacuate = [find_ppmr(), "evacuate", "--match", "sys.argv", "--mount", migrations.out, *common]
    for command in (
        [*evacuate, "--dry-run"],
        evacuate,
        [find_ppmr(), "history", *common],
        [find_ppmr(), "migrate", "--recover", *common],
        [find_ppmr(), "timeline", "--text", *common],
    ):
        done = nodes.source.run(["sh", "-c", '"$@" 2>&1', "-", *command])
        assert done.returncode == 0 and "\x1b" not in done.stdout, repr(done.stdout)
        begins = [line.split(" ")[0] for line in done.stdout.splitlines()]
        assert not {"forge", "while", "import"} & set(begins), done.stdout


def test_help_of_a_command_is_printed(ppmr):
    words = [[ppmr, "help", "migrate"], [ppmr, "migrate", "--help"]]
    shown = [subprocess.run(word, capture_output=True, timeout=20, text=True) for word in words]
    assert shown[0].returncode == 0 and "--to" in shown[0].stdout
    assert shown[0].stdout == shown[1].stdout
    unknown = subprocess.run([ppmr, "help", "x"], capture_output=True, timeout=20, text=True)
    assert unknown.returncode == 2 and "unknown subcommand x" in unknown.stderr


def test_wrong_command_line_with_json_prints_its_error_as_json(ppmr):
    done = subprocess.run(
        [ppmr, "migrate", "--json", "--pid", "none"], capture_output=True, timeout=20, text=True
    )
    told = json.loads(done.stdout)
    assert done.returncode == 2 and told["exit_code"] == 2
    assert not told["ok"] and "--pid" in told["error"]


def test_evacuation_without_a_match_says_so_in_json_too(migrations):
    done = migrations.evacuate("--match", "no such process here").ok()
    assert done.summary["exit_code"] == 0


def test_evacuation_of_a_control_group_that_does_not_exist_is_an_error(migrations):
    done = migrations.evacuate("--cgroup", "/no-such-group")
    assert done.code == 2 and "there is no control group /no-such-group" in done.err


def test_hooks_run_before_the_freeze_and_after_the_end(lab, nodes, migrations):
    directory = lab.home / "hooks"
    directory.mkdir()
    seen = directory / "seen"
    [worker] = start_workers(lab, nodes, 1)
    runs = f"grep State: /proc/{worker.pid}/status | cut -f2 | cut -c1"
    write_hook(directory, "before-freeze", f'echo "before $PPMR_PIDS $({runs})" >>{seen}; exit 1')
    write_hook(directory, "after-abort", f'echo "abort $PPMR_REASON" >>{seen}')
    write_hook(directory, "after-run", f'echo "run $PPMR_TARGET" >>{seen}; exit 1')
    options = ["--hook", directory]

    done = migrations.migrate(worker.pid, options=options)
    assert done.code == 11 and "before-freeze" in done.err, done.output
    check_stayed(worker, nodes)
    before, abort = seen.read_text().splitlines()
    assert before.startswith(f"before {worker.pid} ") and before[-1] in "SRD"
    assert abort.startswith("abort ") and "before-freeze" in abort

    seen.unlink()
    write_hook(directory, "before-freeze", f"echo before >>{seen}")
    done = migrations.migrate(worker.pid, options=options).ok()
    check_moved(worker, nodes)
    assert seen.read_text().splitlines() == ["before", f"run {migrations.address}"]
    assert any("after-run" in event.get("sentence", "") for event in done.events), done.output


def test_drained_mount_refuses_in_the_dry_run(lab, nodes, migrations):
    [worker] = start_workers(lab, nodes, 1)
    nodes.source.run([find_ppmr(), "drain", migrations.out])
    done = migrations.migrate(worker.pid, options=["--dry-run"])
    assert done.code == 11 and f"ppmr drain --resume {migrations.out}" in done.err, done.output
    nodes.source.run([find_ppmr(), "drain", "--resume", migrations.out])
    migrations.migrate(worker.pid, options=["--dry-run"]).ok()
