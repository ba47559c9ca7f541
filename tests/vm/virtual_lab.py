"""Two virtual machines, `a` and `b`, each with an RDMA device on the link that joins them.

    with VirtualLab() as lab:
        lab.a.run(["rping", "-s", "-C", "1"])             # as on a node of lab.node: run, popen, spawn, signal, mounts, ...
        lab.cut_link(); lab.restore_link()
        lab.b.kill(); lab.b.boot()

Both boot this machine's own root file system, read-only below a tmpfs, so that every program of the host is there. The host's paths hold in the
machines for what is shared: `lab.home` (writable, seen by all), the repository and the build's output. /tmp, /run, /dev, /proc are their own.

Who takes part: this process; a supervisor (machine_supervisor.py) that starts the QEMUs and ends them when this process ends; in each machine an agent
(guest_agent.py) that runs commands. The link is a pair of datagram sockets: a machine that is killed leaves no connection behind that the other's
QEMU would have to notice, and comes back to the same link. A second cable, link1, is plugged in but not configured: for tests of two rails.
"""
import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from lab.node import Commands, LabError, wait_until
from lab.programs import REPOSITORY

from . import image, qmp
from .agent_client import Agent, NotRunning

HERE = Path(__file__).resolve().parent
PREFIX = "ppmr-vm-"
NAMES = ("a", "b")
SUBNET = "10.78.0"
READY = "ppmr-vm: ready"
AGENT_ADDRESS = "10.0.2.15"  # in QEMU's own little network; nothing outside can be reached from it
LINK_MTU = 9000  # room for RDMA's largest path MTU, 4096
MEMORY_MIB = 2048
CPUS = 1
# All that QEMU can emulate, but for what it emulates far more slowly than programs do without (README.md: what was learnt).
CPU_MODEL = "max,-erms,-sse4.2,-pclmulqdq"


class VirtualNode(Commands):
    """A machine, with the interface of lab.node.Node; only `host_path` and `host_pid` have no meaning here."""

    criu = "/usr/sbin/criu"  # Debian 12's own, made for this kernel
    has_pids_of_its_own = True

    def __init__(self, lab, name, number):
        self.name, self.address = name, f"{SUBNET}.{number}"
        self.lab, self.directory = lab, lab.directory / name
        self.private = Path("/tmp/private")  # a directory only this machine sees the contents of
        self.agent = Agent(self.directory)

    # -- commands

    def command(self, argv):
        return [
            "/usr/bin/python3",
            "-SE",
            str(HERE / "exec.py"),
            str(self.directory),
            "--",
            *map(str, argv),
        ]

    def popen(self, argv, **options):
        """A process of the host that stands for the command; its `guest_pid()` is the command's pid in the machine."""
        told, tell = os.pipe()
        options.setdefault("stdin", subprocess.DEVNULL)
        command = self.command(argv)
        command[3:3] = ["--pid-fd", str(tell)]
        try:
            process = subprocess.Popen(
                command, pass_fds=[tell, *options.pop("pass_fds", ())], **options
            )
        except BaseException:
            os.close(told)
            raise
        finally:
            os.close(tell)
        with open(told, encoding="ascii") as file:
            pid = (
                file.read()
            )  # comes when the command has been started, or ends empty if it could not be
        process.guest_pid = lambda: _required_pid(pid, self, argv)
        return process

    def run(self, argv, timeout=60, check=True, input=None, env=None, cwd=None, text=True):
        argv = [str(word) for word in argv]
        try:
            done = self.agent.run(
                argv,
                timeout,
                stdin=input.encode() if isinstance(input, str) else input,
                env=env,
                cwd=cwd,
            )
        except subprocess.TimeoutExpired as late:
            raise LabError(
                f"on {self.name}: '{' '.join(argv)}' did not end within {timeout} s; it said: {(late.stderr or late.output or b'nothing')[-2000:].decode(errors='replace')}"
            ) from late
        if text:
            done.stdout, done.stderr = done.stdout.decode(errors="replace"), done.stderr.decode(
                errors="replace"
            )
        self._check(argv, done, check)
        return done

    def signal(self, pid, number=signal.SIGTERM):
        """Nothing happens if the process or the whole machine is gone."""
        try:
            self.agent.ask("signal", pid=pid, number=int(number))
        except (ProcessLookupError, NotRunning):
            pass

    def signal_process(self, process, number):
        self.signal(process.guest_pid(), number)

    def process_memory_kib(self, process):
        return self.memory_kib(process.guest_pid())

    # -- files: of the machine, not of the host

    def read_text(self, path):
        return self.agent.ask("read", path=str(path))

    def exists(self, path):
        return self.agent.ask("exists", path=str(path))

    def names(self, path):
        return self.agent.ask("names", path=str(path))

    def readlink(self, path):
        return self.agent.ask("readlink", path=str(path))

    def mountinfo(self):
        try:
            return self.read_text("/proc/self/mountinfo")
        except NotRunning:
            return ""

    def host_path(self, path):
        raise LabError(
            f"{path} of machine {self.name} cannot be opened from the host: read_text, exists, names, readlink, pull"
        )

    def host_pid(self, process):
        raise LabError(
            f"a process of machine {self.name} has no pid on the host: signal_process, process_memory_kib"
        )

    def push(self, host_path, path, timeout=120):
        """Copies a file of the host into the machine."""
        with self._passing() as passed:
            shutil.copy(host_path, passed.name)
            self.run(["cp", passed.name, path], timeout=timeout)

    def pull(self, path, host_path, timeout=120):
        """Copies a file of the machine to the host."""
        with self._passing() as passed:
            self.run(["cp", path, passed.name], timeout=timeout)
            shutil.copy(passed.name, host_path)

    def _passing(self):
        return tempfile.NamedTemporaryFile(dir=self.lab.home, prefix="passing-")

    # -- the machine

    def running(self):
        return self.name in self.lab._ask_supervisor("state").split()

    def start(self):
        """Switches the machine on, without waiting for it: await_ready."""
        (self.directory / "agent.json").unlink(missing_ok=True)
        self.lab._ask_supervisor(f"boot {self.name}")

    def await_ready(self, timeout=180):
        began = time.monotonic()

        def ready_or_over():
            return READY in self.console() or not self.running()

        try:
            wait_until(ready_or_over, timeout, f"machine {self.name} to boot", interval=0.02)
        except LabError as late:
            raise LabError(f"{late}; its console: {self._tail()}") from None
        if READY not in self.console():
            raise LabError(f"machine {self.name} ended while it booted; {self._tail()}")
        (self.directory / "agent.json.new").write_text(
            json.dumps({"port": self._agent_port(), "token": self.lab.token})
        )
        (self.directory / "agent.json.new").rename(self.directory / "agent.json")
        self.clock_off_by = self.agent.set_clock()
        return time.monotonic() - began

    def boot(self, timeout=180):
        self.start()
        self.await_ready(timeout)

    def kill(self):
        """As if its power had failed."""
        self.lab._ask_supervisor(f"kill {self.name}")

    def console(self):
        """What the machine has written to its console in this boot."""
        try:
            return (self.directory / "console.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def _tail(self):
        qemu = (self.directory / "qemu.log").read_text(errors="replace").strip()
        return "\n".join(
            [
                *self.console().strip().splitlines()[-20:],
                *([f"QEMU said: {qemu[-2000:]}"] if qemu else []),
            ]
        )

    def set_link(self, up):
        """Plugs the machine's end of the link in, or out."""
        qmp.ask(self.directory / "qmp.sock", "set_link", name="link0", up=up)

    def _agent_port(self):
        shown = qmp.ask(
            self.directory / "qmp.sock", "human-monitor-command", **{"command-line": "info usernet"}
        )
        for line in shown.splitlines():
            words = line.split()
            if words and words[0] == "TCP[HOST_FORWARD]":
                return int(words[3])
        raise LabError(f"QEMU of machine {self.name} does not forward to its agent: {shown}")


def _required_pid(pid, node, argv):
    if not pid:
        raise LabError(f"on {node.name}: '{' '.join(map(str, argv))}' was not started")
    return int(pid)


class VirtualLab:
    def __init__(
        self, memory_mib=MEMORY_MIB, cpus=CPUS, backed=False, say=lambda text: None, results=None
    ):
        """Boots both machines. `results`: a directory that gets their consoles when the laboratory closes.

        `backed`: their memory is taken from the host before they start. Otherwise its first touch is several times slower than any later one, which no
        real machine's is.
        """
        image.check_can_run()
        self._say, self._results = say, Path(results) if results else None
        remove_stale()
        self.token = secrets.token_hex(16)
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = open(self.directory / "lock", "w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._supervisor_process = None
        try:
            self._prepare(memory_mib, cpus, backed)
            self._start_supervisor()
            began = time.monotonic()
            for node in self.nodes:
                node.start()
            for node in self.nodes:
                node.await_ready()
            say(
                f"both machines are up after {time.monotonic() - began:.1f} s: a is {self.a.address}, b is {self.b.address}, {memory_mib} MiB and {cpus} CPUs each"
            )
        except BaseException:
            self.close()
            raise

    @classmethod
    def attach(cls, directory):
        """The laboratory of another process, which goes on owning it."""
        lab = cls.__new__(cls)
        lab.directory, lab.home = Path(directory), Path(directory) / "home"
        lab.token = (lab.directory / "token").read_text()
        lab._supervisor_process = lab._results = lab._lock = None
        lab._name_nodes()
        lab._ask_supervisor("state")
        return lab

    def _name_nodes(self):
        self.a, self.b = self.nodes = [
            VirtualNode(self, name, number) for number, name in enumerate(NAMES, start=1)
        ]

    def node(self, name):
        for node in self.nodes:
            if node.name == name:
                return node
        raise LabError(f"no machine is called {name}; there are {', '.join(NAMES)}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _prepare(self, memory_mib, cpus, backed):
        self.home = (
            self.directory / "home"
        )  # shared by both, like the home directories of a cluster
        self.home.mkdir()
        (self.directory / "token").write_text(self.token)
        self._name_nodes()
        kernel, modules = image.find_kernel()
        self._say(f"booting {kernel.name} on two emulated machines (QEMU, {self.directory})")
        kernel = image.unpack_kernel(kernel, self.directory)
        shares = _shares(self.home)
        commands = {}
        for number, node in enumerate(self.nodes, start=1):
            peer = self.nodes[2 - number]
            node.directory.mkdir()
            settings = {
                "name": node.name,
                "address": node.address,
                "link_mac": _mac(0, number),
                "spare_mac": _mac(2, number),
                "agent_address": AGENT_ADDRESS,
                "agent_mac": _mac(1, number),
                "agent_program": HERE / "guest_agent.py",
                "token": self.token,
                "shares": " ".join(
                    f"{tag} {mode} {shlex.quote(str(path))}" for tag, mode, path in shares
                ),
            }
            initramfs = image.make_initramfs(modules, settings, node.directory)
            commands[node.name] = _qemu(
                node.directory,
                peer.directory,
                number,
                kernel,
                initramfs,
                shares,
                memory_mib,
                cpus,
                backed,
            )
        (self.directory / "machines.json").write_text(json.dumps(commands))

    def _start_supervisor(self):
        self._supervisor_process = subprocess.Popen(
            ["/usr/bin/python3", "-SE", str(HERE / "machine_supervisor.py"), str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=[self._lock.fileno()],
        )
        if self._supervisor_process.stdout.readline().strip() != "ready":
            raise LabError("the supervisor of the machines did not start")

    def _ask_supervisor(self, request):
        return _ask_supervisor(self.directory, request)

    def cut_link(self):
        """Pulls the cable at both ends."""
        for node in self.nodes:
            if node.running():
                node.set_link(False)

    def restore_link(self):
        for node in self.nodes:
            if node.running():
                node.set_link(True)

    def make_whole(self):
        """Boots what is off, and restores the link; where it carries nothing all the same, both machines are booted again."""
        self._boot([node for node in self.nodes if not node.running()])
        self.restore_link()
        try:
            wait_until(self.link_carries, 10, "the link to carry anything", interval=0.1)
        except LabError:
            # QEMU 7.2's network device, in some hours under load: it waits for room that it already has.
            self._say("the link is dead: both machines are booted again")
            for node in self.nodes:
                node.kill()
            wait_until(
                lambda: not any(node.running() for node in self.nodes),
                10,
                "the machines to end",
                interval=0.05,
            )
            self._boot(self.nodes)

    @staticmethod
    def _boot(nodes):
        for node in nodes:
            node.start()
        for node in nodes:
            node.await_ready()

    def link_carries(self):
        return (
            self.a.run(
                ["busybox", "ping", "-c", "1", "-W", "2", self.b.address], check=False
            ).returncode
            == 0
        )

    def close(self):
        if not self._lock:
            return  # closed, or another's
        if self._results:
            self.collect(self._results)
        if self._supervisor_process:
            self._supervisor_process.stdin.close()
            try:
                self._supervisor_process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._supervisor_process.kill()  # its machines go with it
                self._supervisor_process.wait()
            self._supervisor_process.stdout.close()
            self._supervisor_process = None
        shutil.rmtree(self.directory, ignore_errors=True)
        self._lock.close()
        self._lock = None

    def collect(self, results):
        """Copies what the machines and their QEMUs have said to results/NAME/."""
        for name in NAMES:
            for log in (self.directory / name).glob("*.log"):
                (results / name).mkdir(parents=True, exist_ok=True)
                shutil.copy(log, results / name)


def _ask_supervisor(directory, request):
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(str(directory / "supervisor.sock"))
            connection.sendall(request.encode())
            said = connection.recv(1000).decode()
    except OSError as error:
        raise NotRunning(f"the laboratory in {directory} is not running: {error}") from None
    if not said.startswith("ok"):
        raise LabError(f"{request}: {said.removeprefix('error ') or 'the supervisor has ended'}")
    return said.removeprefix("ok").strip()


def as_json(value):
    return json.dumps(value)


def _mac(network, number):
    return f"52:54:00:70:7{network}:0{number}"


def _shares(home):
    """[(tag, mode, path), ...]: what is at the same path in the machines, beside what the root file system has, and always as it is on the host now."""
    read_only = {REPOSITORY.resolve()}
    for place in (
        REPOSITORY / "bazel-bin",
        os.environ.get("PPMR") and Path(os.environ["PPMR"]).resolve().parent,
        os.environ.get("PPMR_PROGRAMS"),
    ):
        if place and Path(place).is_dir():
            read_only.add(Path(place).resolve())
    outermost = [
        path
        for path in sorted(read_only)
        if not any(path != other and path.is_relative_to(other) for other in read_only)
    ]
    return [
        (f"share{number}", mode, path)
        for number, (mode, path) in enumerate([("rw", home), *(("ro", path) for path in outermost)])
    ]


def _qemu(directory, peer_directory, number, kernel, initramfs, shares, memory_mib, cpus, backed):
    def quoted(path):
        return str(path).replace(",", ",,")

    def cable(name, mac):
        ends = f"local.path={quoted(directory / name)}.sock,remote.type=unix,remote.path={quoted(peer_directory / name)}.sock"
        return [
            "-netdev",
            f"dgram,id={name}-cable,local.type=unix,{ends}",
            "-device",
            f"virtio-net-pci,id={name},netdev={name}-cable,mac={mac},host_mtu={LINK_MTU},rx_queue_size=1024,romfile=",
        ]

    command = [
        image.find_qemu(),
        "-name",
        f"ppmr-{directory.name},debug-threads=on",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-machine",
        "pc,memory-backend=memory",
        "-accel",
        "tcg,thread=multi",
        "-cpu",
        CPU_MODEL,
        "-smp",
        str(cpus),
        "-m",
        str(memory_mib),
        "-object",
        f"memory-backend-ram,id=memory,size={memory_mib}M,prealloc={'on' if backed else 'off'}",
        "-kernel",
        str(kernel),
        "-initrd",
        str(initramfs),
        "-append",
        "console=ttyS0 panic=-1 mitigations=off quiet no_timer_check tsc=reliable rdinit=/init",
        "-serial",
        f"file:{quoted(directory / 'console.log')}",
        "-qmp",
        f"unix:{quoted(directory / 'qmp.sock')},server=on,wait=off",
        *cable("link0", _mac(0, number)),
        *cable("link1", _mac(2, number)),
        "-netdev",
        f"user,id=agent,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:0-{AGENT_ADDRESS}:1",
        "-device",
        f"virtio-net-pci,netdev=agent,mac={_mac(1, number)},romfile=",
    ]
    for tag, mode, path in [("root", "ro", "/"), *shares]:
        command += [
            "-fsdev",
            f"local,id={tag},path={quoted(path)},security_model=none,multidevs=remap{',readonly=on' if mode == 'ro' else ''}",
            "-device",
            f"virtio-9p-pci,fsdev={tag},mount_tag={tag}",
        ]
    return command


def running():
    """The laboratory that was booted last and is up, or None."""
    for socket_file in sorted(
        Path(tempfile.gettempdir()).glob(f"{PREFIX}*/supervisor.sock"),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    ):
        try:
            return VirtualLab.attach(socket_file.parent)
        except (LabError, OSError):
            continue
    return None


def remove_stale():
    """Removes directories of laboratories whose owner and supervisor were both killed."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/lock"):
        try:
            with open(lock) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:
            continue
