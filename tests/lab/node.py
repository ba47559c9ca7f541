"""Nodes: pid, mount, network, uts and ipc namespaces with an init that reaps, joined by veth pairs.

    with Lab() as lab:
        source, target, link = lab.pair()           # 10.77.1.1 and 10.77.1.2
        pid = source.spawn([program, lab.home])     # in a new session, a child of the node's init
        target.run(["ping", "-c1", source.address])

The nodes share the root file system, as on a cluster, and therefore `lab.home`. Private to each
node are /run, /dev/shm, /dev/pts and `node.private`. Lab.close kills everything in its nodes; the
kernel removes the namespaces, mounts and links with the processes. The same happens when the Python
that created them dies. Nothing is created in the host's namespaces.
"""
import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from .pace import patience

HELPERS_FROM_PID = 300
# First pid for programs: on a node that only ran helpers, these pids are free.
FIRST_PROGRAM_PID = 3000
PORTS = range(10000, 30000)  # below the kernel's range for outgoing connections
_ports = random.Random()


class LabError(Exception):
    """A failure in the laboratory. The message names the attempt and its result."""


def wait_until(condition, timeout, what, interval=0.005):
    """Returns the first true value of condition(); LabError when patience(timeout) has passed."""
    timeout = patience(timeout)
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise LabError(f"timed out after {timeout:g} s waiting for {what}")
        time.sleep(interval)


def has_stopped(pid):
    """Whether no thread of a process of this machine runs. The other threads of a process go on
    until one of them has taken the SIGSTOP: on a busy machine, for milliseconds after kill(2)."""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "TtZX":
                return False
    except (FileNotFoundError, ProcessLookupError):
        return not Path(f"/proc/{pid}").exists()  # false if only a thread has ended
    return True


def happens(condition, seconds):
    """Whether condition() becomes true within exactly `seconds`: for what must not happen."""
    deadline = time.monotonic() + seconds
    while not (happened := condition()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(happened)


def free_port(address="127.0.0.1"):
    """A free TCP port that no outgoing connection takes. Drawn, so that parallel test runs rarely
    collide."""
    while True:
        port = _ports.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
                return port
            except OSError:
                continue


class Commands:
    """Runs commands on this machine (HOST). Subclasses run them on a node."""

    name = "host"
    address = "127.0.0.1"
    criu = None  # path of the CRIU there, if it is not the host's
    has_pids_of_its_own = False
    private = None  # a directory that other nodes do not see

    def command(self, argv):
        return [str(word) for word in argv]

    def popen(self, argv, **options):
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(self.command(argv), **options)

    def run(self, argv, timeout=60, check=True, **options):
        """Runs to the end and returns the CompletedProcess with text output.

        LabError after patience(timeout), and on failure if `check`.
        """
        timeout = patience(timeout)
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        try:
            done = subprocess.run(
                self.command(argv),
                timeout=timeout,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **options,
            )
        except subprocess.TimeoutExpired as late:
            raise LabError(
                f"on {self.name}: '{' '.join(map(str, argv))}' did not end within {timeout:g} s"
            ) from late
        self._check(argv, done, check)
        return done

    def _check(self, argv, done, check):
        if check and done.returncode != 0:
            output = (done.stderr.strip() or done.stdout.strip() or "(empty)")[-2000:]
            command = " ".join(map(str, argv))
            raise LabError(
                f"on {self.name}: '{command}' ended with {done.returncode}; output: {output}"
            )

    def spawn(self, argv, log="/dev/null", directory="/", first_pid=FIRST_PROGRAM_PID):
        """Starts a program that can be dumped, as a child of the node's init, and returns its pid
        on the node.

        It runs in a new session, reads /dev/null, writes to the file `log`, and has no other
        descriptor. On a node its pid is `first_pid` or one of the next.
        """
        if self.has_pids_of_its_own:
            self._set_last_pid(first_pid, "-ge")
        script = 'cd "$2" && exec >>"$1" 2>&1 && shift 2 && exec "$@"'
        start = 'setsid --fork sh -c "echo \\$\\$; $0" sh "$@" </dev/null'
        done = self.run(["sh", "-c", start, script, log, directory, *argv], timeout=10)
        return int(done.stdout)

    def keep_helpers_low(self):
        """Keeps the pids of further helpers below the pids of programs."""
        if self.has_pids_of_its_own:
            self._set_last_pid(HELPERS_FROM_PID, "-lt")

    def _set_last_pid(self, pid, is_kept):
        # A concurrent fork undoes the write, so repeat it. `cat`, because the shell's `read` gets
        # only one digit.
        script = f"f=/proc/sys/kernel/ns_last_pid; echo {pid} >$f; until [ $(cat $f) {is_kept} {FIRST_PROGRAM_PID} ]; do echo {pid} >$f; done"
        self.run(["sh", "-c", script], timeout=10)

    def scratch(self, name, tmpfs=False):
        """A new private directory of the node, on a new tmpfs if requested. Ends with
        `drop_scratch`."""
        path = self.private / name
        self.run(["mkdir", "-p", path])
        if tmpfs:
            self.run(["mount", "-t", "tmpfs", "-o", "size=90%,mode=0755", "scratch", path])
        return path

    def drop_scratch(self, path):
        self.run(["sh", "-c", 'umount "$0" 2>/dev/null; rm -rf "$0"', path])

    def host_path(self, path):
        """Returns the path by which the host opens `path` of the node."""
        return Path(path)

    def read_text(self, path):
        return self.host_path(path).read_text(errors="replace")

    def exists(self, path):
        return self.host_path(path).exists()

    def names(self, path):
        """Returns the names in a directory."""
        return os.listdir(self.host_path(path))

    def readlink(self, path):
        return os.readlink(self.host_path(path))

    def alive(self, pid):
        try:
            return "\nState:\tZ" not in self.read_text(f"/proc/{pid}/status")
        except OSError:
            return False

    def await_end(self, pid, timeout=10):
        """Waits until a process has ended. After SIGKILL, returning its memory takes time."""
        wait_until(lambda: not self.alive(pid), timeout, f"process {pid} on {self.name} to end")

    def listens(self, port):
        """Returns whether a process listens on the TCP port."""
        tables = self.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"], check=False).stdout
        return any(
            line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
            for line in tables.splitlines()
        )

    def await_listener(self, port, process=None, timeout=30):
        """Waits until the TCP port listens, or `process`, which popen started to listen there, has
        ended."""
        wait_until(
            lambda: (process and process.poll() is not None) or self.listens(port),
            timeout,
            f"port {port} on {self.name} to listen",
        )

    def signal(self, pid, number=signal.SIGTERM):
        self.run(["kill", f"-{int(number)}", pid], check=False, timeout=10)

    def host_pid(self, process):
        """Returns the host pid of a process that `popen` started."""
        return process.pid

    def signal_process(self, process, number):
        """Sends a signal to a process that `popen` started. SIGSTOP returns when it has stopped."""
        pid = self.host_pid(process)
        os.kill(pid, number)
        if number == signal.SIGSTOP:
            wait_until(lambda: has_stopped(pid), 30, f"process {pid} to stop")

    def process_memory_kib(self, process):
        """Returns memory_kib of a process that `popen` started."""
        return HOST.memory_kib(self.host_pid(process))

    def mountinfo(self):
        return Path("/proc/self/mountinfo").read_text()

    def mounts(self, kind=None):
        """Returns (mount point, type) of the node's mounts, or only of the mounts of one type."""
        found = []
        for line in self.mountinfo().splitlines():
            left, right = line.split(" - ", 1)
            point = left.split()[4].encode().decode("unicode_escape")
            if kind is None or right.split()[0] == kind:
                found.append((point, right.split()[0]))
        return found

    def memory_kib(self, pid):
        """Returns VmRSS and VmHWM of a process of the node, in KiB."""
        fields = dict(
            line.split(":", 1)
            for line in self.read_text(f"/proc/{pid}/status").splitlines()
            if ":" in line
        )
        return {key: int(fields[key].split()[0]) for key in ("VmRSS", "VmHWM") if key in fields}


HOST = Commands()


class Node(Commands):
    has_pids_of_its_own = True

    def __init__(self, name, private, all_private, control_groups=""):
        self.name = name
        self._control_groups = control_groups  # the name of those that are the node's own
        self.private = private
        self.address = None  # address on the first link
        self._started = []
        self._helper = subprocess.Popen(
            [
                "unshare",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount",
                "--net",
                "--uts",
                "--ipc",
                "--mount-proc",
                "/usr/bin/python3",
                "-SE",
                str(Path(__file__).with_name("node_init.py")),
                name,
                control_groups,
                *map(str, all_private),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._helper.stdout.readline().strip() != "ready":
            self.close()
            raise LabError(f"node {name} did not start: namespaces need root")
        pid = self._helper.pid
        self.init_pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    def command(self, argv):
        words = [
            "nsenter",
            f"--target={self.init_pid}",
            "--pid",
            "--mount",
            "--net",
            "--uts",
            "--ipc",
            "--wd=/",
            "--",
            *map(str, argv),
        ]
        if not self._control_groups:
            return words
        join = 'for group in $0; do echo 0 >"$group/cgroup.procs"; done; exec "$@"'
        words[-len(argv) - 1 : -len(argv)] = ["--cgroup", "--"]
        return ["sh", "-c", join, " ".join(self._own_groups()), *words]

    def _own_groups(self):
        """Returns the paths of the node's control groups on the host."""
        with open("/proc/self/mountinfo") as mounts:
            fields = [line.split() for line in mounts]
        roots = [f[4] for f in fields if f[-3] in ("cgroup", "cgroup2")]
        return [f"{root}/{self._control_groups}" for root in roots]

    def _remove_groups(self):
        for top in self._own_groups() if self._control_groups else []:
            for directory, _, _ in os.walk(top, topdown=False):
                wait_until(
                    lambda path=directory: self._try_remove(path), 10, f"the end of {directory}"
                )

    @staticmethod
    def _try_remove(group):
        try:
            os.rmdir(group)
            return True
        except FileNotFoundError:
            return True
        except OSError:
            return False  # the kernel has not released the last process yet

    def host_path(self, path):
        return Path(f"/proc/{self.init_pid}/root{path}")

    def host_pid(self, process):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if not children:
            raise LabError(f"on {self.name}: '{' '.join(process.args)}' has ended")
        return int(children[0])

    def popen(self, argv, **options):
        process = super().popen(argv, **options)
        self._started.append(process)
        return process

    # nsenter stops when its child stops, but a little later, and does not continue when the child
    # does, or is killed.
    def signal_process(self, process, number):
        super().signal_process(process, number)
        if number == signal.SIGSTOP:
            wait_until(lambda: has_stopped(process.pid), 30, "nsenter to stop")
        if number in (signal.SIGCONT, signal.SIGKILL):
            process.send_signal(signal.SIGCONT)

    def find_processes(self, wanted):
        """Host pids of the node's processes for whose command line `wanted(words)` is true.

        Descendants of such a process are left out.
        """
        parents = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if not wanted((entry / "cmdline").read_bytes().split(b"\0")):
                    continue
                if os.readlink(entry / "ns/pid") != os.readlink(f"/proc/{self.init_pid}/ns/pid"):
                    continue
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except (OSError, ValueError, IndexError):
                continue
        return [pid for pid, parent in parents.items() if parent not in parents]

    def all_processes(self):
        """Yields (host pid, pid on the node) of each process of the node."""
        namespace = os.readlink(f"/proc/{self.init_pid}/ns/pid")
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "ns/pid") == namespace:
                    [line] = re.findall(r"^NSpid:(.*)$", (entry / "status").read_text(), re.M)
                    yield int(entry.name), int(line.split()[-1])
            except (OSError, ValueError):
                continue  # it has ended

    def mountinfo(self):
        return Path(f"/proc/{self.init_pid}/mountinfo").read_text()

    def close(self):
        """Kills all processes of the node."""
        self._helper.stdin.close()
        try:
            self._helper.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._helper.kill()  # --kill-child: its child, process 1 of the node, ends with it
            self._helper.wait()
        self._helper.stdout.close()
        for process in self._started:
            process.kill()  # an nsenter that stopped with its child has outlived it
            process.wait()
        self._remove_groups()


class Link:
    """A veth pair between two nodes."""

    def __init__(self, ends):
        self.ends = ends  # [(node, interface, address), ...]

    def limit(self, rate=None):
        """Limits the rate in both directions ('1gbit', '200mbit'); None removes the limit."""
        for node, interface, _ in self.ends:
            node.run(["tc", "qdisc", "del", "dev", interface, "root"], check=False)
            if rate:
                shape = ["tbf", "rate", rate, "burst", "1mb", "latency", "50ms"]
                node.run(["tc", "qdisc", "add", "dev", interface, "root", *shape])

    def set_up(self, up):
        """Cuts the link, or restores it."""
        node, interface, _ = self.ends[0]
        node.run(["ip", "link", "set", interface, "up" if up else "down"])

    def received_bytes(self, node):
        interface = next(interface for at, interface, _ in self.ends if at is node)
        shown = node.run(["cat", "/proc/net/dev"]).stdout
        return int(
            next(
                line.split(":", 1)[1].split()[0]
                for line in shown.splitlines()
                if line.strip().startswith(interface + ":")
            )
        )


class Pair(NamedTuple):
    source: Node
    target: Node
    link: Link


class Lab:
    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="ppmr-lab-"))
        self.home = (
            self.directory / "home"
        )  # shared by all nodes, like a cluster's home directories
        self.home.mkdir()
        self.nodes = []
        self._subnets = itertools.count(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def node(self, name, control_groups=False):
        private = self.directory / "private"
        private.mkdir(exist_ok=True)
        groups = f"{self.directory.name}-{name}" if control_groups else ""
        node = Node(name, private, [private, "/run", "/dev/shm"], groups)
        self.nodes.append(node)
        return node

    def pair(self, *names):
        """Two joined nodes, source and target: (source, target, link)."""
        source, target = (self.node(name) for name in names or ("source", "target"))
        return Pair(source, target, self.join(source, target))

    def join(self, left, right):
        subnet = next(self._subnets)
        ends = []
        names = [f"to-{right.name}"[:15], f"to-{left.name}"[:15]]
        left.run(["ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1]])
        self._move_interface(left, names[1], right)
        for number, (node, interface) in enumerate(zip((left, right), names), start=1):
            address = f"10.77.{subnet}.{number}"
            node.run(["ip", "address", "add", f"{address}/24", "dev", interface])
            node.run(["ip", "link", "set", interface, "up"])
            node.address = node.address or address
            ends.append((node, interface, address))
        return Link(ends)

    @staticmethod
    def _move_interface(holder, interface, to):
        # Enters the network namespace only, so the pid is a pid of the host.
        done = subprocess.run(
            [
                "nsenter",
                f"--target={holder.init_pid}",
                "--net",
                "ip",
                "link",
                "set",
                interface,
                "netns",
                str(to.init_pid),
            ],
            text=True,
            capture_output=True,
        )
        if done.returncode != 0:
            raise LabError(f"moving {interface} to node {to.name}: {done.stderr.strip()}")

    def close(self):
        for node in self.nodes:
            node.close()
        self.nodes.clear()
        shutil.rmtree(self.directory, ignore_errors=True)
