"""Nodes: pid, mount, network, uts and ipc namespaces with an init that reaps, joined by veth pairs.

    with Lab() as lab:
        source, target = lab.node("source"), lab.node("target")
        link = lab.join(source, target)             # 10.77.x.1 and 10.77.x.2
        pid = source.spawn([program, lab.home])     # a session of its own, a child of the node's init
        target.run(["ping", "-c1", source.address])

What the nodes share, as on a cluster, is the root file system and so `lab.home`. Private to each are /run, /dev/shm, /dev/pts and `node.private`.
Closing the lab kills everything in its nodes; namespaces, mounts and links go with the processes. The same happens if the python that made
them dies. Nothing is ever made in the host's own namespaces.
"""
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

HELPERS_FROM_PID = 300
FIRST_PROGRAM_PID = 3000  # programs get pids from here on, so that the same pids are free on a node that only ran helpers


class LabError(Exception):
    """Something in the laboratory did not work; the message says what was tried and what came back."""


def wait_until(condition, timeout, what, interval=0.005):
    """Returns the first true value of condition(); LabError when `timeout` seconds have passed."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise LabError(f"waited {timeout:g} s in vain for {what}")
        time.sleep(interval)


def free_port(address="127.0.0.1"):
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


class Commands:
    """Running commands somewhere. Node overrides where; Host is this very machine, for what runs over loopback."""

    name = "host"
    address = "127.0.0.1"
    criu = None  # where it is, if it is another than the host's
    has_pids_of_its_own = False
    private = None  # a directory that no other node sees

    def command(self, argv):
        return [str(word) for word in argv]

    def popen(self, argv, **options):
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(self.command(argv), **options)

    def run(self, argv, timeout=60, check=True, **options):
        """Runs to the end and returns the CompletedProcess with text output; LabError if it fails and `check`, or takes too long."""
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
                f"on {self.name}: '{' '.join(map(str, argv))}' did not end within {timeout} s"
            ) from late
        self._check(argv, done, check)
        return done

    def _check(self, argv, done, check):
        if check and done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip() or "nothing")[-2000:]
            raise LabError(
                f"on {self.name}: '{' '.join(map(str, argv))}' ended with {done.returncode} and said: {said}"
            )

    def spawn(self, argv, log="/dev/null", directory="/"):
        """Starts a program that can be dumped: session of its own, standard input from /dev/null, output in the file `log`, no other
        descriptor, a child of the node's init. Returns its pid as the node sees it."""
        if self.has_pids_of_its_own:
            self._set_last_pid(FIRST_PROGRAM_PID, "-ge")
        script = 'cd "$2" && exec >>"$1" 2>&1 && shift 2 && exec "$@"'
        told = self.run(
            [
                "sh",
                "-c",
                'setsid --fork sh -c "echo \\$\\$; $0" sh "$@" </dev/null',
                script,
                log,
                directory,
                *argv,
            ],
            timeout=10,
        )
        return int(told.stdout)

    def keep_helpers_low(self):
        """What runs here to help does not get to the pids of programs."""
        if self.has_pids_of_its_own:
            self._set_last_pid(HELPERS_FROM_PID, "-lt")

    def _set_last_pid(self, pid, is_kept):
        # A fork at the same moment undoes it, hence the look. By cat: the shell's own read gets one digit of it and then the end.
        script = f"f=/proc/sys/kernel/ns_last_pid; echo {pid} >$f; until [ $(cat $f) {is_kept} {FIRST_PROGRAM_PID} ]; do echo {pid} >$f; done"
        self.run(["sh", "-c", script], timeout=10)

    def scratch(self, name, tmpfs=False):
        """A fresh private directory of the node, with a tmpfs of its own if asked (see `drop_scratch`)."""
        path = self.private / name
        self.run(["mkdir", "-p", path])
        if tmpfs:
            self.run(["mount", "-t", "tmpfs", "-o", "size=90%,mode=0755", "scratch", path])
        return path

    def drop_scratch(self, path):
        self.run(["sh", "-c", 'umount "$0" 2>/dev/null; rm -rf "$0"', path])

    def host_path(self, path):
        """Where `path` of the node can be opened from here."""
        return Path(path)

    def read_text(self, path):
        return self.host_path(path).read_text(errors="replace")

    def exists(self, path):
        return self.host_path(path).exists()

    def names(self, path):
        """What is in a directory."""
        return os.listdir(self.host_path(path))

    def readlink(self, path):
        return os.readlink(self.host_path(path))

    def alive(self, pid):
        try:
            return "\nState:\tZ" not in self.read_text(f"/proc/{pid}/status")
        except OSError:
            return False

    def await_end(self, pid, timeout=10):
        """LabError if the process does not go away. A killed one never runs again, but giving its memory back takes time."""
        wait_until(lambda: not self.alive(pid), timeout, f"process {pid} on {self.name} to be gone")

    def signal(self, pid, number=signal.SIGTERM):
        self.run(["kill", f"-{int(number)}", pid], check=False, timeout=10)

    def host_pid(self, process):
        """The pid, on the host, of what `popen` started."""
        return process.pid

    def signal_process(self, process, number):
        """Sends a signal to what `popen` started."""
        os.kill(self.host_pid(process), number)

    def process_memory_kib(self, process):
        """memory_kib of what `popen` started."""
        return HOST.memory_kib(self.host_pid(process))

    def mountinfo(self):
        return Path("/proc/self/mountinfo").read_text()

    def mounts(self, kind=None):
        """(mount point, type) of every mount the node sees, or of those of one type."""
        found = []
        for line in self.mountinfo().splitlines():
            left, right = line.split(" - ", 1)
            point = left.split()[4].encode().decode("unicode_escape")
            if kind is None or right.split()[0] == kind:
                found.append((point, right.split()[0]))
        return found

    def memory_kib(self, pid):
        """VmRSS and VmHWM of a process of the node, in KiB."""
        fields = dict(
            line.split(":", 1)
            for line in self.read_text(f"/proc/{pid}/status").splitlines()
            if ":" in line
        )
        return {key: int(fields[key].split()[0]) for key in ("VmRSS", "VmHWM") if key in fields}


HOST = Commands()


class Node(Commands):
    has_pids_of_its_own = True

    def __init__(self, name, private, all_private):
        self.name = name
        self.private = private  # a directory only this node sees the contents of
        self.address = None  # of the first link
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
                *map(str, all_private),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._helper.stdout.readline().strip() != "ready":
            self.close()
            raise LabError(f"node {name} did not come up: making namespaces needs root")
        pid = self._helper.pid
        self.init_pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    def command(self, argv):
        return [
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

    def host_path(self, path):
        return Path(f"/proc/{self.init_pid}/root{path}")

    def host_pid(self, process):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if not children:
            raise LabError(f"on {self.name}: '{' '.join(process.args)}' has ended")
        return int(children[0])

    def find_processes(self, wanted):
        """Pids, of the host, of the processes here whose words are wanted; of those that are each other's parents only the first."""
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

    def mountinfo(self):
        return Path(f"/proc/{self.init_pid}/mountinfo").read_text()

    def close(self):
        """Kills everything in the node."""
        self._helper.stdin.close()
        try:
            self._helper.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._helper.kill()  # --kill-child: its child, process 1 of the node, goes with it
            self._helper.wait()
        self._helper.stdout.close()


class Link:
    """A veth pair between two nodes."""

    def __init__(self, ends):
        self.ends = ends  # [(node, interface, address), ...]

    def limit(self, rate=None):
        """Limits the rate in both directions ('1gbit', '200mbit'), or lifts the limit."""
        for node, interface, _ in self.ends:
            node.run(["tc", "qdisc", "del", "dev", interface, "root"], check=False)
            if rate:
                node.run(
                    [
                        "tc",
                        "qdisc",
                        "add",
                        "dev",
                        interface,
                        "root",
                        "tbf",
                        "rate",
                        rate,
                        "burst",
                        "1mb",
                        "latency",
                        "50ms",
                    ]
                )

    def set_up(self, up):
        """Pulls the cable, or plugs it in again."""
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


class Lab:
    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="ppmr-lab-"))
        self.home = (
            self.directory / "home"
        )  # shared by all nodes, like the home directories of a cluster
        self.home.mkdir()
        self.nodes = []
        self._subnets = itertools.count(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def node(self, name):
        private = self.directory / "private"
        private.mkdir(exist_ok=True)
        node = Node(name, private, [private, "/run", "/dev/shm"])
        self.nodes.append(node)
        return node

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
        # Only the network namespace is entered here, so that the pid means what it means on the host.
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
