"""The output that people see on a terminal. No escape sequence is written to other outputs."""
import re
import signal
import subprocess
import xml.etree.ElementTree

import pytest

from lab.node import HOST
from lab.ppmr import find_ppmr
from lab.programs import REPOSITORY, SteadyWorker
from lab.terminal import ENTERS_ALTERNATE_SCREEN, ESCAPE, Terminal

SVG = "{http://www.w3.org/2000/svg}"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*3[0-7]m")
INTERRUPTED = 130


def watch(at, *options, **how):
    return Terminal(at, [find_ppmr(), "status", "--watch", *options], **how)


def migrate_words(migrations, pid, *options):
    state = ["--state-dir", migrations.states["source"]]
    return [find_ppmr(), "migrate", "--pid", pid, "--mount", migrations.out, *state, *options]


def start_worker(lab, nodes, size_mib=48):
    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=size_mib, threads=1)
    worker.wait_for_lines(5)
    return worker


@pytest.mark.parametrize(
    "leave, exit_code",
    [
        (lambda terminal: terminal.type("q"), 0),
        (lambda terminal: terminal.type("\x03"), INTERRUPTED),  # Ctrl-C
        (lambda terminal: terminal.type("\x1c"), INTERRUPTED),  # Ctrl-backslash
        (lambda terminal: terminal.process.send_signal(signal.SIGTERM), INTERRUPTED),
        (lambda terminal: terminal.process.send_signal(signal.SIGHUP), INTERRUPTED),
    ],
    ids=["q", "Ctrl-C", "Ctrl-backslash", "SIGTERM", "SIGHUP"],
)
def test_watch_leaves_the_terminal_as_it_was(ppmr, tmp_path, leave, exit_code):
    with watch(HOST, "--state-dir", tmp_path) as terminal:
        terminal.wait_for("q quits")
        assert ENTERS_ALTERNATE_SCREEN in terminal.raw and not terminal.is_restored()
        leave(terminal)
        assert terminal.end() == exit_code
        assert terminal.is_restored()


def test_watch_leaves_the_terminal_as_it_was_when_the_mount_has_gone(mounts):
    with watch(mounts.source_at, mounts.out) as terminal:
        terminal.wait_for("connected over tcp")
        mounts.source.stop()
        assert terminal.end() == 5
        assert terminal.is_restored()
        after = terminal.raw[terminal.raw.rindex(ESCAPE + "[?1049l") :]
        assert "is not in a ppmr mount" in after and "TROUBLESHOOTING in ppmr(8)" in after


def test_watch_suspends_and_resumes(ppmr, tmp_path):
    with watch(HOST, "--state-dir", tmp_path) as terminal:
        terminal.wait_for("q quits")
        terminal.process.send_signal(signal.SIGTSTP)
        terminal.wait_for(lambda terminal: ESCAPE + "[?1049l" in terminal.raw)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for(lambda terminal: terminal.raw.count(ENTERS_ALTERNATE_SCREEN) == 2)
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.is_restored()


def test_watch_suspends_while_it_draws(ppmr, tmp_path):
    with watch(HOST, "--state-dir", tmp_path) as terminal:
        terminal.wait_for("q quits")
        for number in range(1, 101):
            terminal.resize(100 - number % 2, 30)  # the program draws everything again
            terminal.process.send_signal(signal.SIGTSTP)
            terminal.wait_for(lambda terminal: terminal.raw.count(ESCAPE + "[?1049l") == number)
            terminal.process.send_signal(signal.SIGCONT)
            terminal.wait_for(
                lambda terminal: terminal.raw.count(ENTERS_ALTERNATE_SCREEN) == number + 1
            )
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.is_restored()


def test_watch_follows_the_size_of_the_terminal(mounts):
    mounts.source_at.run(["mkdir", mounts.out / ("checkpoint-" + "x" * 60)])
    with watch(mounts.source_at, mounts.out, columns=100, rows=30) as terminal:
        terminal.wait_for("checkpoint-x")
        wide = [line.split()[0] for line in terminal.lines if line]
        assert "connected" in terminal.text and "slots" in terminal.text
        terminal.resize(40, 20)
        # Each entry still has one line: the line is cut, not wrapped.
        terminal.wait_for(
            lambda terminal: [line.split()[0] for line in terminal.lines if line][:5] == wide[:5]
            and any(line.endswith("…") for line in terminal.lines)
        )
        terminal.resize(40, 5)
        terminal.wait_for(r"(?s)\Appmr on .*q quits.*0 more lines above, \d+ below")
        terminal.type("\x1bOB")  # the down key
        terminal.wait_for("1 more lines above")
        for columns, rows in [(1, 1), (3, 2), (2, 40), (200, 1)]:
            seen = len(terminal.raw)
            terminal.resize(columns, rows)
            terminal.wait_for(lambda terminal: len(terminal.raw) > seen)
        terminal.resize(100, 30)
        terminal.wait_for(r"(?s)q quits.*connected.*slots.*checkpoint-x")
        terminal.type("q")
        assert terminal.end() == 0


@pytest.mark.parametrize(
    "environment, coloured",
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)],
    ids=["default", "empty NO_COLOR", "NO_COLOR"],
)
def test_watch_has_colours_unless_NO_COLOR_is_set(mounts, environment, coloured):
    with watch(mounts.source_at, mounts.out, environment=environment) as terminal:
        terminal.wait_for("connected over tcp")
        terminal.type("q")
        assert terminal.end() == 0
        assert (COLOUR.search(terminal.raw) is not None) == coloured


def test_watch_on_a_dumb_terminal_writes_plain_lines(mounts):
    with watch(mounts.source_at, mounts.out, environment={"TERM": "dumb"}, rows=200) as terminal:
        terminal.wait_for(lambda terminal: terminal.text.count(": source, pid") >= 2)
        assert ESCAPE not in terminal.raw


@pytest.mark.parametrize("json", [[], ["--json"]], ids=["text", "json"])
def test_watch_into_a_pipe_writes_plain_lines(mounts, json):
    """stdin and stderr are a terminal, but only stdout decides."""
    command = [find_ppmr(), "status", mounts.out, "--watch", *json]
    with Terminal(mounts.source_at, command, stdout=subprocess.PIPE) as terminal:
        heads = []
        while len(heads) < 2:
            line = terminal.process.stdout.readline().decode()
            assert ESCAPE not in line
            if '"role":"source"' in line or ": source, pid" in line:
                heads.append(line)
        assert heads[0].startswith("{" if json else str(mounts.out))
        assert terminal.raw == ""


def test_progress_and_watch_show_a_migration_on_terminals(lab, nodes, migrations):
    worker = start_worker(lab, nodes, size_mib=160)  # the process needs more than the pool
    nodes.link.limit("400mbit")
    state = ["--state-dir", migrations.states["source"]]
    with watch(nodes.source, *state, columns=140, rows=40) as screen:
        screen.wait_for("connected over tcp")
        # With this limit, no warning says that the slow link breaks the promise.
        words = migrate_words(migrations, worker.pid, "--max-downtime", "60s")
        with Terminal(nodes.source, words, 110, 12) as terminal:
            terminal.wait_for(
                rf"{worker.pid} steady_worker +round 1 .* of .*B  +\d+%  .*/s  .* left"
            )
            assert len(re.findall(r"(?m)^ +\d+ steady_worker ", terminal.text)) == 1, terminal.text
            screen.wait_for(
                rf"(?s)migrations\n +\w{{8}} +{worker.pid} .* \d+%  .*/s  .*left  .* of .* to target"
            )
            assert terminal.end(60) == 0, terminal.text
            assert re.search(r"steady_worker +moved", terminal.text)
            assert terminal.text.count("\n") == 3, terminal.text
            assert COLOUR.search(terminal.raw)
        screen.wait_for(rf"{worker.pid} steady_worker +moved +.* downtime ")
        screen.type("q")
        assert screen.end() == 0
    worker.node = nodes.target
    worker.end()


def test_progress_on_a_narrow_terminal_without_colours_does_not_wrap(lab, nodes, migrations):
    worker = start_worker(lab, nodes)
    nodes.link.limit("400mbit")
    command = migrate_words(migrations, worker.pid)
    with Terminal(
        nodes.source, command, columns=30, rows=40, environment={"NO_COLOR": "1"}
    ) as terminal:
        terminal.wait_for(r"(?m)^ +\d+ steady_worker .*>$")
        assert len(re.findall(r"(?m)^ +\d+ steady_work", terminal.text)) == 1, terminal.text
        assert terminal.end(60) == 0
        assert not COLOUR.search(terminal.raw)
    worker.node = nodes.target
    worker.end()


def test_progress_in_a_file_is_one_plain_line_for_each_phase(lab, nodes, migrations):
    worker = start_worker(lab, nodes)
    done = nodes.source.run(migrate_words(migrations, worker.pid))
    assert ESCAPE not in done.stdout + done.stderr
    who = f"{worker.pid} steady_worker: "
    lines = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert re.fullmatch(r"migration [0-9a-f]{32} of \d+ \w+ to target has begun", lines[0])
    assert [re.sub(r"^[0-9.]+ \w+ ", "", line.removeprefix(who)) for line in lines[1:]] == [
        "copying its memory while it runs",
        "round 1, 48.1 MiB",
        "frozen, dumping",
        "verified at the target",
        "runs at the target",
        "all of its memory is in place",
    ]
    assert re.search(r"steady_worker +moved", done.stdout)
    worker.node = nodes.target
    worker.end()


def test_quiet_migration_prints_nothing_but_errors(lab, nodes, migrations):
    worker = start_worker(lab, nodes)
    done = nodes.source.run(migrate_words(migrations, worker.pid, "--quiet"))
    assert (done.stdout, done.stderr) == ("", "")
    worker.node = nodes.target
    worker.end()
    command = migrate_words(migrations, worker.pid, "--quiet")  # the terminal has gone
    failed = nodes.source.run(command, check=False)
    assert failed.returncode != 0 and failed.stdout == ""
    assert failed.stderr.startswith("ppmr migrate: ") and str(worker.pid) in failed.stderr
    evacuate = [find_ppmr(), "evacuate", "--mount", migrations.out, "--match", "no such program"]
    done = nodes.source.run([*evacuate, "--quiet"])
    assert (done.stdout, done.stderr) == ("", "")


def test_timeline_shows_a_migration(lab, nodes, migrations):
    worker = start_worker(lab, nodes)
    first = migrations.migrate(worker.pid).ok().summary["trees"][0]
    worker.node = nodes.target
    worker.end()

    def timeline(role, *words, check=True):
        at, state = migrations.node(role), migrations.states[role]
        command = [find_ppmr(), "timeline", *words, "--state-dir", state]
        return at.run(command, check=check)

    root = xml.etree.ElementTree.fromstring(timeline("source").stdout)
    assert root.tag == f"{SVG}svg" and root.get("width") == "900"
    texts = [element.text for element in root.iter(f"{SVG}text")]
    for row in ("process", "dump", "transfer", "seal", "restore", "hand over", "time, ms"):
        assert row in texts
    titles = [element.text for element in root.iter(f"{SVG}title")]
    # The bar is as long as the downtime that migrate has printed.
    begin, end = re.search(r"stands still: ([\d.]+) to ([\d.]+) ms", "\n".join(titles)).groups()
    assert float(end) - float(begin) == pytest.approx(first["downtime_s"] * 1000, abs=0.2)
    assert titles[0] == f"steady_worker ({worker.pid}) to target"
    of_id = timeline("source", first["migration"][:6]).stdout
    assert of_id == timeline("source").stdout, "the last migration is the only one"
    text = timeline("source", "--text").stdout
    assert ESCAPE not in text and "stands still" in text and "restore" in text
    at_target = timeline("target", "--text").stdout
    assert "from tls-psk" in at_target and "restore" in at_target and "dump" not in at_target

    unknown = timeline("source", "0123456789abcdef" * 2, check=False)
    assert unknown.returncode == 2 and "no migration with the ID 0123456789abcdef" in unknown.stderr
    wrong = timeline("source", "../x", check=False)
    assert wrong.returncode == 2 and "is not the ID of a migration" in wrong.stderr


def test_timeline_without_records_creates_nothing(ppmr, tmp_path):
    missing = tmp_path / "state"
    command = [ppmr, "timeline", "--state-dir", missing]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "no migration has a record in" in done.stderr
    assert done.stdout == "" and not missing.exists()


def test_errors_lead_to_a_section_of_the_manual_that_exists(ppmr, tmp_path):
    command = [ppmr, "commit", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    code, page = re.search(
        r"exit status (\d+): see TROUBLESHOOTING in ([a-z-]+)\(8\)", done.stderr
    ).groups()
    assert int(code) == done.returncode == 5
    assert ESCAPE not in done.stderr
    with Terminal(HOST, command) as terminal:
        assert terminal.end() == 5
        assert terminal.raw.startswith(f"{ESCAPE}[31mppmr commit:{ESCAPE}[0m ")
    for page, codes in (("ppmr", range(3, 10)), ("ppmr-migrate", range(10, 13))):
        text = (REPOSITORY / f"docs/man/{page}.8.md").read_text()
        section = re.search(r"^## TROUBLESHOOTING$(.*?)(?=^## |\Z)", text, re.M | re.S).group(1)
        assert [int(code) for code in re.findall(r"^(\d+)$", section, re.M)] == list(codes)
