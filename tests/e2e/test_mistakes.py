"""What an operator mistypes, or has not set up yet: ppmr ends with a documented exit code, and its
message names the object, the fault and the remedy. Each case is one start of ppmr."""
import random
import subprocess
import time

import pytest

from lab.node import HOST, free_port
from lab.ppmr import Daemon, find_ppmr

USAGE, NOT_MOUNTED, NO_DAEMON = 2, 5, 6

# Stands for a process that runs, an empty directory, and a key file.
PID, DIR, KEY = "{pid}", "{directory}", "{key}"
TO = ("--to", "127.0.0.1")
RECORDS = ("--state-dir", DIR)
NO_PID = "999999999"

LIMITS_OF_ROUNDS = {
    "--max-downtime": "1s",
    "--max-time": "9s",
    "--max-rate": "1M",
    "--cpu-share": "50",
    "--on-timeout": "cancel",
}

# The words of the command; the exit code; the object and the remedy that the message must name.
MISTAKES = [
    # nothing to do, or not what was meant
    (["frobnicate"], USAGE, "frobnicate", "ppmr --help"),
    (["help", "frobnicate"], USAGE, "frobnicate", "ppmr --help"),
    (["migrate"], USAGE, "--pid PID, --runc NAME or --unit NAME", "ppmr migrate --help"),
    (["migrate", "--pid", PID], USAGE, "--to HOST", "ppmr migrate --help"),
    (["migrate", "--pidd", PID], USAGE, "--pidd", "ppmr migrate --help"),
    (["migrate", "--pid", "redis", *TO], USAGE, "'redis' is no pid", "pgrep"),
    (["migrate", "--pid", "0", *TO], USAGE, "--pid: '0'", "1 to 2147483647"),
    (["evacuate", *TO], USAGE, "--cgroup G", "ppmr evacuate --help"),
    (["devices", "--x"], USAGE, "--x", "ppmr devices --help"),
    (["rdma", "run"], USAGE, "PROGRAM", "ppmr rdma run --help"),
    (["completion", "tcsh"], USAGE, "tcsh", "{bash,zsh,fish}"),
    # values
    (["migrate", "--pid", PID, *TO, "--max-downtime", "soon"], USAGE, "'soon'", "e.g. 5, 0.5"),
    (["migrate", "--pid", PID, *TO, "--max-downtime", "0"], USAGE, "--max-downtime", "--post-copy"),
    (["evacuate", "--user", "nobody", *TO, "--max-downtime", "0"], USAGE, "more than 0", "--post"),
    (["migrate", "--pid", PID, *TO, "--max-time", "0"], USAGE, "--max-time", "--stop-and-copy"),
    (["migrate", "--pid", PID, *TO, "--timeout", "0"], USAGE, "--timeout", "at most 24 h"),
    (["migrate", "--pid", PID, *TO, "--hook", "/no"], USAGE, "--hook", "/no"),
    (["history", "--since", "soon"], USAGE, "'soon'", "90m or 7d"),
    (["protect", "--pid", PID, *TO, "--every", "1ms"], USAGE, "--every", "at least 1 s"),
    (["protect", "--pid", PID, *TO, "--name", "a/b"], USAGE, "'a/b'", "only letters, digits"),
    (["target", DIR, "--listen", "7440"], USAGE, "'7440'", "node-b:7440"),
    (["target", DIR, "--listen", "127.0.0.1:0", "--memory-limit", "1Q"], USAGE, "1Q", "GiB"),
    (
        ["target", DIR, "--listen", "127.0.0.1:0", "--memory-limit", "1000TiB"],
        USAGE,
        "--memory-limit 1000",
        "choose less",
    ),
    (
        ["target", DIR, "--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:9440"],
        USAGE,
        "0.0.0.0:9440",
        "use 127.0.0.1:9440",
    ),
    (["source", DIR], USAGE, "--target HOST:PORT", "ppmr source --help"),
    # options that exclude each other
    *(
        (
            ["migrate", "--pid", PID, *TO, way, limit, value],
            USAGE,
            f"{first} excludes {second}",
            "ppmr migrate --help",
        )
        for limit, value in LIMITS_OF_ROUNDS.items()
        for way, first, second in (
            ("--stop-and-copy", "--stop-and-copy", limit),
            ("--eager", "--eager", limit),
            ("--leave-running", limit, "--leave-running"),
        )
    ),
    # credentials
    (["target", DIR, "--listen", ":7440"], USAGE, ":7440", "--key-file"),
    (["target", DIR, "--listen", ":7440", "--check"], USAGE, ":7440", "--key-file"),
    (["target", DIR, "--listen", "[::]:7440", "--check"], USAGE, "[::]:7440", "--key-file"),
    (["source", DIR, "--target", "192.0.2.1:7440", "--check"], USAGE, "192.0.2.1", "--key-file"),
    (["target", DIR, "--listen", ":0", "--key-file", "/no"], USAGE, "/no", "ppmr keygen /no"),
    (["migrate", "--pid", PID, *TO, "--key-file", "/no"], USAGE, "/no", "ppmr keygen /no"),
    (["keygen", "/no/key"], USAGE, "/no/key", "mkdir -p"),
    (["keygen", KEY], USAGE, KEY, "move it away first"),
    (["target", DIR, "--listen", "127.0.0.1:0", "--keep-dir", DIR], USAGE, DIR, "ppmr keygen FILE"),
    (["target", DIR, "--listen", "127.0.0.1:0", "--allow-restart"], USAGE, "as root", "--key-file"),
    (
        ["target", DIR, "--listen", "127.0.0.1:0", "--spill-dir", "/no", "--check"],
        USAGE,
        "--spill-dir /no",
        "mkdir -m 700 /no",
    ),
    # processes, users, groups
    (["protect", "--pid", NO_PID, *TO], USAGE, NO_PID, "ps -e"),
    (["protect", "--pid", PID, *TO, "--name", "db@copy"], USAGE, "'db@copy'", "choose a name"),
    (["evacuate", "--cgroup", "/no/such", *TO], USAGE, "/no/such", "systemd-cgls"),
    (["evacuate", "--user", "nosuchuser", *TO], USAGE, "'nosuchuser'", "getent passwd"),
    # records
    (["migrate", "--cancel", "12ab", *RECORDS], USAGE, "12ab", "ppmr migrations"),
    (["migrate", "--set", "12ab", "max-rate=1M", *RECORDS], USAGE, "12ab", "ppmr migrations"),
    (["timeline", "12ab", *RECORDS], USAGE, "12ab", "ppmr migrations"),
    (["timeline", *RECORDS], USAGE, DIR, "on the nodes of the migration"),
    (["takeover", "nobody", *RECORDS], USAGE, "'nobody'", "`ppmr takeover` lists"),
    (["takeover", "db", "--copy", "--instead-of", "two"], USAGE, "excludes", "--copy"),
    # mounts and daemons
    (["migrate", "--pid", PID, "--mount", DIR], NOT_MOUNTED, DIR, "--to HOST needs none"),
    (["status", DIR], NOT_MOUNTED, DIR, "ppmr status"),
    (["status", "/no/such"], NOT_MOUNTED, "look up /no of /no/such:", "`ppmr status` lists the mounts"),
    (["drain", DIR], NOT_MOUNTED, DIR, "ppmr status"),
    (["doctor", DIR], NOT_MOUNTED, DIR, "ppmr status"),
    (["commit", DIR], NOT_MOUNTED, DIR, "ppmr status"),
    (["restart", DIR], NOT_MOUNTED, DIR, "criu restore"),
    (["job", "status", "--socket", "/no/socket"], NO_DAEMON, "/no/socket", "ppmr job agent"),
    (["job", "return", "h2", "--socket", "/no/socket"], NO_DAEMON, "/no/socket", "ppmr job agent"),
    (["job", "evacuate"], USAGE, "HOST", "ppmr job evacuate --help"),
    (["job", "evacuate", "b", "--max-downtime", "0"], USAGE, "more than 0", "--max-downtime"),
    (["job", "evacuate", "b", "--max-rate", "1K"], USAGE, "at least 1 MiB", "--max-rate"),
    (["job", "evacuate", "b", "--slow-down", "96"], USAGE, "95", "--slow-down"),
    (["job", "evacuate", "b", "--cancel", "--to", "c"], USAGE, "excludes", "--to"),
    (["job", "evacuate", "b", "--cancel", "--max-time", "9s"], USAGE, "excludes", "--max-time"),
    # configuration
    (["config", "check", "--directory", DIR], USAGE, DIR, "the package brings"),
    (["config", "check", "/no/such"], USAGE, "/no/such", "ppmr target --check"),
    (["target", "--config", "/no/such"], USAGE, "/no/such", "/etc/ppmr/target.conf"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    directory = tmp_path_factory.mktemp("empty")
    key = tmp_path_factory.mktemp("key") / "key"
    subprocess.run([find_ppmr(), "keygen", key], check=True, capture_output=True)
    process = subprocess.Popen(["/usr/bin/sleep", "600"])
    yield {"pid": process.pid, "directory": directory, "key": key}
    process.kill()
    process.wait()


def filled(word, places):
    return word.format(**places) if word in (PID, DIR, KEY) else word


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: " ".join(case[0]).replace("/", "|"))
def test_message_names_the_object_and_the_remedy(places, case):
    words, code, named, remedy = case
    done = subprocess.run(
        [find_ppmr(), *(filled(word, places) for word in words)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == code, done.stderr
    assert filled(named, places) in done.stderr, done.stderr
    assert remedy in done.stderr, done.stderr
    assert done.stderr.startswith("ppmr"), done.stderr
    assert done.stdout == ""


def test_list_of_mistakes_is_long_and_has_none_twice():
    assert len(MISTAKES) >= 40
    assert len({tuple(words) for words, *_ in MISTAKES}) == len(MISTAKES)


OPTIONS_OF_TARGETS = [
    ["--listen", "127.0.0.1:{port}"],
    ["--listen", "[::1]:{port}"],
    ["--listen", ":{port}"],
    ["--listen", "[::]:{port}"],
    ["--listen", "192.0.2.1:{port}"],  # TEST-NET-1: not an address of this machine
    ["--listen", ":{port}", "--key-file", KEY],
    ["--listen", "[::]:{port}", "--key-file", KEY],
    ["--listen", ":{port}", "--key-file", KEY, "--allow-restart"],
    ["--listen", ":{port}", "--insecure", "--allow-restart"],
    ["--listen", "127.0.0.1:{port}", "--memory-limit", "64MiB"],
    ["--listen", "127.0.0.1:{port}", "--memory-limit", "9999GiB"],
    ["--listen", "127.0.0.1:{port}", "--spill-dir", "/does/not/exist"],
    ["--listen", "127.0.0.1:{port}", "--log-file", "/does/not/exist"],
]


@pytest.mark.parametrize("options", OPTIONS_OF_TARGETS, ids=" ".join)
def test_what_the_check_accepts_starts_and_what_it_refuses_does_not(places, tmp_path, options):
    port = free_port()
    words = [word.format(port=port, **places) for word in options]
    checked = subprocess.run(
        [find_ppmr(), "target", tmp_path / "in", *words, "--check"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    if checked.returncode == 0:
        Daemon(HOST, "target", tmp_path / "in", words).close()
        return
    started = subprocess.run(
        [find_ppmr(), "target", tmp_path / "in", *words],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert started.returncode == checked.returncode
    assert started.stderr.splitlines()[-1] == checked.stderr.splitlines()[-1]


FREE, OWN = "{port}", "{own}"  # a free port, and a directory of the daemon
# Values of options, good and bad ones; True: the option has none.
OF_BOTH = {
    "--key-file": [KEY, "/no"],
    "--pool-size": ["8MiB", "64KiB", "1M", "900TiB"],
    "--peer-timeout": ["5", "0.1", "0"],
    "--transport": ["tcp", "verbs", "auto"],
    "--metrics": ["127.0.0.1:" + FREE, "0.0.0.0:9"],
    "--state-dir": [OWN + "/state", "/proc/none"],
    "--audit-file": [OWN + "/audit", "/no/audit"],
    "--log-file": [OWN + "/log", "/no/log"],
    "--user": ["nobody", "no-such-user"],
}
OF_TARGET = {
    "--allow-restart": [True],
    "--allow-root-restart": [True],
    "--insecure": [True],
    "--consume": [True],
    "--memory-limit": ["64MB", "1B", "9999GiB"],
    "--spill-dir": [OWN, "/no"],
    "--keep-dir": [OWN, "/no"],
    "--keep-key": [KEY, "/no"],
    "--restart-policy": ["/no"],
}
OF_SOURCE = {
    "--chunk-size": ["64KiB", "65537", "2MiB"],
    "--streams": ["1", "8", "999"],
    "--compress": ["lz4", "off", "gz"],
    "--idle-timeout": ["60", "1"],
    "--tls-cert": ["/no"],
}
ADDRESSES = ["127.0.0.1:" + FREE, "[::1]:" + FREE, ":" + FREE, "[::]:" + FREE, "192.0.2.1:" + FREE]


def drawn_options(role, draw):
    choices = {**OF_BOTH, **(OF_TARGET if role == "target" else OF_SOURCE)}
    words = ["--listen", draw.choice(ADDRESSES)] if role == "target" else ["--discard"]
    for option in draw.sample(sorted(choices), draw.randint(1, 5)):
        value = draw.choice(choices[option])
        words += [option] if value is True else [option, value]
    return words


@pytest.mark.parametrize("role", ["target", "source"])
def test_check_and_start_agree_about_drawn_options(places, tmp_path, role, long):
    seed = int(time.time())
    print(f"seed {seed}")
    draw = random.Random(seed)
    for number in range(300 if long else 15):
        own, mountpoint = tmp_path / f"own{number}", tmp_path / f"mnt{number}"
        own.mkdir(mode=0o700)
        known = {**places, "own": own}
        drawn = drawn_options(role, draw)
        words = [word.format(port=free_port(), **known) for word in drawn]
        command = [find_ppmr(), role, mountpoint, *words]
        checked = subprocess.run([*command, "--check"], capture_output=True, text=True, timeout=60)
        if checked.returncode == 0:
            Daemon(HOST, role, mountpoint, words).close()
            continue
        started = subprocess.run([*command, "-f"], capture_output=True, text=True, timeout=60)
        # If there are several faults, the check and the start may name different ones.
        assert started.returncode > 0, (drawn, checked.stderr, started.stderr)
