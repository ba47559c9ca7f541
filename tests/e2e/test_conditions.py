"""What stands in the way of a move, on either node: `ppmr` changes nothing, and its message names
the object, the fault and the remedy. Each case is one start of ppmr; test_mistakes.py has the
mistakes that need no second node."""
import pytest

from lab.node import Lab, wait_until
from lab.ppmr import Daemon, find_ppmr, make_key
from lab.workers import take_pid

USAGE, PEER_FAILED, ABORTED = 2, 4, 11
NO_ADDRESS = "192.0.2.1"  # TEST-NET-1
PYTHON = ["/usr/bin/python3", "-c"]


class Stage:
    """Processes of `one` move to `two`. There the target at port 7440 accepts all of them, the one
    at port 7441 only those of users."""

    def __init__(self, lab):
        nodes = lab.pair("one", "two")
        self.one, self.two = nodes.source, nodes.target
        self.key = make_key(lab.directory / "private/key", self.one, self.two)
        self.state = ["--state-dir", self.one.scratch("state")]
        self.one.run(["mkdir", "-p", "/run/only-here"])
        self.two.keep_helpers_low()
        for port, accepts in (("7440", "--allow-root-restart"), ("7441", "--allow-restart")):
            words = ["--listen", f":{port}", *self.key, accepts, "--pool-size", "64MiB"]
            words += ["--state-dir", self.two.scratch(f"state-{port}")]
            Daemon(self.two, "target", f"/run/ppmr/in-{port}", words)

    def start(self, *words):
        return self.one.spawn(list(words))

    def python(self, script):
        """Starts a process that runs this script, then sleeps. Returns its pid when it sleeps."""
        ready = self.one.scratch(f"ready-{len(script)}-{hash(script) & 0xffff}") / "ready"
        pid = self.start(*PYTHON, f"{script}\nopen({str(ready)!r}, 'w')\nimport time\ntime.sleep(600)")
        wait_until(lambda: self.one.exists(ready), 20, "the program to be ready")
        return pid

    def child_of(self, pid):
        return int(self.one.run(["pgrep", "-P", str(pid)]).stdout.split()[0])

    def migrate(self, pid, *options, to=None, key=None):
        to = to or self.two.address
        words = ["migrate", "--pid", pid, "--to", to, *(key or self.key), *self.state]
        return [*words, "--dry-run", *options]


def sleeper(stage):
    return stage.start("/usr/bin/sleep", "600")


def with_taken_pid(stage):
    pid = sleeper(stage)
    take_pid(stage.two, pid)
    return stage.migrate(pid)


def with_program_only_here(stage):
    stage.one.run(["cp", "/usr/bin/sleep", "/run/only-here/program"])
    return stage.migrate(stage.start("/run/only-here/program", "600"))


def in_directory_only_here(stage):
    return stage.migrate(stage.start("/bin/sh", "-c", "cd /run/only-here; exec sleep 600"))


def with_file_only_here(stage):
    return stage.migrate(stage.start("/bin/sh", "-c", "exec sleep 600 >/run/only-here/log"))


def with_address_only_here(stage):
    script = f"import socket; s = socket.create_server(('{stage.one.address}', 8080))"
    return stage.migrate(stage.python(script))


def with_port_taken(stage):
    script = "import socket; s = socket.create_server(('0.0.0.0', 7440))"
    return stage.migrate(stage.python(script))


def with_connection(stage):
    script = "import socket; s = socket.create_server(('127.0.0.1', 8082)); "
    script += "c = socket.create_connection(('127.0.0.1', 8082)); d = s.accept()"
    return stage.migrate(stage.python(script))


def with_connection_that_waits(stage):
    script = "import socket; s = socket.create_server(('127.0.0.1', 8083)); "
    script += "c = socket.create_connection(('127.0.0.1', 8083))"
    return stage.migrate(stage.python(script), "--", "--tcp-established")


def with_data_that_waits(stage):
    script = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('\\0waits'); s.listen(); "
    script += "c = socket.socket(socket.AF_UNIX); c.connect('\\0waits'); c.send(b'data')"
    return stage.migrate(stage.python(script))


def half_of_a_pair(stage):
    script = "import os, socket, time; a, b = socket.socketpair()\n"
    script += "if not os.fork(): time.sleep(600)"
    return stage.migrate(stage.child_of(stage.python(script)))


def in_a_loop(stage):
    shell = stage.start("/bin/sh", "-c", "while true; do sleep 600; done")
    wait_until(lambda: stage.one.run(["pgrep", "-P", str(shell)], check=False).stdout, 20, "a child")
    return stage.migrate(stage.child_of(shell))


def with_device(stage):
    return stage.migrate(stage.python("f = open('/dev/fuse', 'rb')"))


def with_lock(stage):
    script = "import fcntl; f = open('/run/only-here/locked', 'w'); fcntl.lockf(f, fcntl.LOCK_EX)"
    return stage.migrate(stage.python(script))


def a_zombie(stage):
    parent = stage.python("import os\nif not os.fork(): os._exit(0)")
    return stage.migrate(stage.child_of(parent))


def to_drained(stage):
    stage.two.run([find_ppmr(), "drain", "/run/ppmr/in-7441"])
    return stage.migrate(sleeper(stage), to=f"{stage.two.address}:7441")


# The function that makes the command; the exit code; the object and the remedy that the message
# must name.
CONDITIONS = [
    (with_taken_pid, ABORTED, "is taken at the target", "ps -f -p"),
    (with_program_only_here, ABORTED, "/run/only-here/program", "install the same version there"),
    (in_directory_only_here, ABORTED, "/run/only-here", "create it there"),
    (with_file_only_here, ABORTED, "/run/only-here/log", "shared file system"),
    (with_address_only_here, ABORTED, "does not have the address", "ip address add"),
    (with_port_taken, ABORTED, "port 7440 is already in use", "ss -lnp"),
    (with_connection, ABORTED, "127.0.0.1:8082", "--tcp-established"),
    (with_connection_that_waits, ABORTED, "127.0.0.1:8083", "--skip-in-flight"),
    (with_data_that_waits, ABORTED, "the Unix socket @waits", "try again when it has"),
    (half_of_a_pair, ABORTED, "connected over a Unix socket", "with all of its descendants"),
    (in_a_loop, ABORTED, "the loop of the shell", "kill -KILL"),
    (with_device, ABORTED, "/dev/fuse", "close the device first"),
    (with_lock, ABORTED, "/run/only-here/locked", "--file-locks"),
    (a_zombie, USAGE, "has ended (it is a zombie)", "ps -e"),
    (lambda stage: stage.migrate(1), USAGE, "process 1 cannot be moved", "--runc"),
    (lambda stage: stage.migrate(999_999), USAGE, "no process 999999", "ppmr history"),
    (
        lambda stage: stage.migrate(sleeper(stage), to=f"{stage.two.address}:7441"),
        ABORTED,
        "runs as root",
        "--allow-root-restart",
    ),
    (
        lambda stage: stage.migrate(sleeper(stage), to=f"{stage.two.address}:7442"),
        PEER_FAILED,
        "7442",
        "start `ppmr target` there",
    ),
    (
        lambda stage: stage.migrate(sleeper(stage), to=NO_ADDRESS),
        PEER_FAILED,
        NO_ADDRESS,
        "correct the address",
    ),
    (
        lambda stage: stage.migrate(sleeper(stage), to="no-such-host.invalid"),
        PEER_FAILED,
        "no-such-host.invalid",
        "correct the name",
    ),
    (
        lambda stage: stage.migrate(
            sleeper(stage), to=f"{stage.two.name}.invalid:7440", key=["--key-file", "/no/key"]
        ),
        USAGE,
        "/no/key",
        "ppmr keygen",
    ),
    (
        lambda stage: ["migrate", "--runc", "nosuch", "--to", stage.two.address, *stage.key],
        USAGE,
        "nosuch",
        "runc list",
    ),
    (to_drained, ABORTED, "is drained", "ppmr drain --resume /run/ppmr/in-7441"),
]


@pytest.fixture(scope="module")
def stage(ppmr):
    with Lab() as lab:
        yield Stage(lab)


@pytest.mark.parametrize("case", CONDITIONS, ids=lambda case: f"{case[0].__name__} {case[3]}")
def test_message_names_the_object_and_the_remedy(stage, case):
    make, code, object_, remedy = case
    done = stage.one.run([find_ppmr(), *map(str, make(stage))], check=False, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert object_ in done.stderr and remedy in done.stderr, done.stderr
    assert len([line for line in done.stderr.splitlines() if "exit status" in line]) <= 1
