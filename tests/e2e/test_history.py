"""`ppmr history` on both nodes, after a move, after a failure, and without any migration."""
import json
import re
import subprocess

from lab.checker import Checker
from lab.criu import criu_that
from lab.node import wait_until
from lab.programs import REPOSITORY
from lab.protection import Protection, lose
from lab.workers import start_workers


def history(ppmr, migrations, role, *options):
    words = [ppmr, "history", "--state-dir", migrations.states[role], *options]
    return migrations.node(role).run(words).stdout


def test_history_shows_moves_and_failures_at_both_nodes(ppmr, lab, nodes, migrations):
    moved, stayed = start_workers(lab, nodes, 2)
    done = migrations.migrate(moved.pid).ok()
    no_dump = criu_that(lab.home, '[ "$1" = swrk ] && exit 1')
    failed = migrations.migrate(stayed.pid, environment={"PPMR_CRIU": str(no_dump)})
    assert failed.code == 11, failed.output
    at_source = [
        json.loads(line) for line in history(ppmr, migrations, "source", "--json").splitlines()
    ]
    assert [line["result"] for line in at_source] == ["moved", "stayed"]
    assert at_source[0]["trees"][0]["pid"] == moved.pid
    assert abs(at_source[0]["downtime_s"] - done.summary["trees"][0]["downtime_s"]) < 1e-3
    documented = set(re.findall(r"`(\w+)`", (REPOSITORY / "docs/json.md").read_text()))
    keys = {key for line in at_source for key in [*line, *line["trees"][0]]}
    assert keys - documented == set()
    (at_target,) = [
        json.loads(line)
        for line in history(ppmr, migrations, "target", "--json", "--since", "1h").splitlines()
        if json.loads(line)["result"] == "moved"
    ]
    assert at_target["role"] == "target" and at_target["migration"] == at_source[0]["migration"]
    assert at_target["downtime_s"] < 0
    titles, first, *_ = history(ppmr, migrations, "source").splitlines()
    assert titles.split() == ["ID", "BEGAN", "FROM", "TO", "PROCESSES", "DOWNTIME", "RESULT"]
    assert first.startswith(at_source[0]["migration"][:8] + " ")
    assert first.endswith("moved") and f"{moved.pid} " in first
    titles, *shown = history(ppmr, migrations, "source", "--failed").splitlines()
    assert len(shown) == 1 and f"{stayed.pid} " in shown[0] and "stayed: " in shown[0]


def test_history_lists_protected_processes_at_both_nodes(ppmr, lab, nodes, migrations):
    ledger = Checker(lab, nodes, mib=16)
    protection = Protection(migrations, ledger.pid, every="600")
    protection.wait_for_epochs(1)
    [epoch] = protection.epochs()
    documented = set(re.findall(r"`(\w+)`", (REPOSITORY / "docs/json.md").read_text()))
    for role in ("source", "target"):
        [shown] = map(json.loads, history(ppmr, migrations, role, "--json").splitlines())
        assert set(shown) - documented == set()
        assert (shown["protected"], shown["role"], shown["pid"]) == ("ledger", role, ledger.pid)
        assert (shown["from"], shown["to"]) == (nodes.source.name, nodes.target.name)
        assert 0 <= shown["age_ms"] < 60_000
        for key, value in (("epoch", "number"), ("pause_ms",) * 2, ("bytes",) * 2):
            assert shown[key] == epoch[value], key
        sentence, _, titles, line = history(ppmr, migrations, role).splitlines()
        assert sentence.startswith("no migration in the records")
        assert titles.split()[:2] == ["PROTECTED", "FROM"]
        assert line.startswith("ledger ") and f"{ledger.pid} python3" in line
        assert "ledger" not in history(ppmr, migrations, role, "--failed")
    lose(nodes.source)
    protection.take_over()

    def is_moved():
        [taken] = map(json.loads, history(ppmr, migrations, "target", "--json").splitlines())
        return "protected" not in taken and taken["result"] == "moved"

    wait_until(is_moved, 20, "all memory to be at the target")
    ledger.end()


def test_empty_history_prints_a_sentence(ppmr, tmp_path):
    missing = tmp_path / "missing"
    done = subprocess.run(
        [ppmr, "history", "--state-dir", missing], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0
    assert done.stdout.startswith("no migration in the records of this node")
    assert not missing.exists(), "a command that only reads must create nothing"


def test_wrong_duration_is_refused(ppmr):
    done = subprocess.run(
        [ppmr, "history", "--since", "soon"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2 and "7d" in done.stderr
