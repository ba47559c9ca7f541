"""Two virtual machines, `a` and `b`, each with an RDMA device on the link that joins them.

    with VirtualLab() as lab:
        lab.a.run(["rping", "-s", "-C", "1"])             # the interface of lab.node.Node
        lab.cut_link(); lab.restore_link()
        lab.b.kill(); lab.b.boot()

Both boot this computer's root file system, read-only below a tmpfs, so all programs of the host are
available. `lab.home` (writable by both machines), the repository and the build's output are shared
and have the same paths as on the host. /tmp, /run, /dev, /proc are private.

Actors: this process; a supervisor (machine_supervisor.py) that starts the QEMUs and ends them when
this process ends; in each machine an agent (guest_agent.py) that runs commands. The link is a pair
of datagram sockets, so a killed machine leaves no broken connection in the other QEMU and uses the
same link after its next boot. A second cable, link1, is plugged in but not configured, for tests of
two rails.
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
from lab.pace import patience
from lab.programs import REPOSITORY

from . import image, qmp
from .agent_client import Agent, NotRunning
from .flushed_disk import FlushedDisk, disk_of_qemu, new_file_system

HERE = Path(__file__).resolve().parent
PREFIX = "ppmr-vm-"
NAMES = ("a", "b")
SUBNET = "10.78.0"
READY = "ppmr-vm: ready"
AGENT_ADDRESS = "10.0.2.15"  # in QEMU's user network, which reaches nothing else
LINK_MTU = 9000  # holds a packet of RDMA's largest path MTU, 4096
MEMORY_MIB = 2048
CPUS = 1
# Everything that QEMU can emulate, except what it emulates more slowly than a program's fallback
# runs (README.md).
BOOTS_MAX = 6
CPU_MODEL = "max,-erms,-sse4.2,-pclmulqdq"


class VirtualNode(Commands):
    """A machine, with the interface of lab.node.Node except `host_path` and `host_pid`."""

    criu = "/usr/sbin/criu"  # Debian 12's CRIU, which supports this kernel
    has_pids_of_its_own = True

    def __init__(self, lab, name, number):
        self.name, self.address = name, f"{SUBNET}.{number}"
        self.lab, self.directory = lab, lab.directory / name
        self.private = Path("/tmp/private")
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
        """A host process that represents the command; its `guest_pid()` is the command's pid in the
        machine."""
        read_end, write_end = os.pipe()
        options.setdefault("stdin", subprocess.DEVNULL)
        command = self.command(argv)
        command[3:3] = ["--pid-fd", str(write_end)]
        try:
            process = subprocess.Popen(
                command, pass_fds=[write_end, *options.pop("pass_fds", ())], **options
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        with open(read_end, encoding="ascii") as file:
            pid = file.read()  # empty if the command did not start
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
                f"on {self.name}: '{' '.join(argv)}' did not end within {patience(timeout):g} s; its output: {(late.stderr or late.output or b'none')[-2000:].decode(errors='replace')}"
            ) from late
        if text:
            done.stdout = done.stdout.decode(errors="replace")
            done.stderr = done.stderr.decode(errors="replace")
        self._check(argv, done, check)
        return done

    def signal(self, pid, number=signal.SIGTERM):
        """Has no effect if the process or the whole machine has ended."""
        try:
            self.agent.ask("signal", pid=pid, number=int(number))
        except (ProcessLookupError, NotRunning):
            pass

    def signal_process(self, process, number):
        self.signal(process.guest_pid(), number)

    def process_memory_kib(self, process):
        return self.memory_kib(process.guest_pid())

    # -- files of the machine

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
            f"{path} of machine {self.name} cannot be opened from the host: use read_text, exists, names, readlink or pull"
        )

    def host_pid(self, process):
        raise LabError(
            f"a process of machine {self.name} has no pid on the host: use signal_process or process_memory_kib"
        )

    def push(self, host_path, path, timeout=120):
        """Copies a file of the host into the machine."""
        with self._shared_file() as shared:
            shutil.copy(host_path, shared.name)
            self.run(["cp", shared.name, path], timeout=timeout)

    def pull(self, path, host_path, timeout=120):
        """Copies a file of the machine to the host."""
        with self._shared_file() as shared:
            self.run(["cp", path, shared.name], timeout=timeout)
            shutil.copy(shared.name, host_path)

    def _shared_file(self):
        return tempfile.NamedTemporaryFile(dir=self.lab.home, prefix="copy-")

    # -- the machine

    def running(self):
        return self.name in self.lab._ask_supervisor("state").split()

    def start(self):
        """Switches the machine on. Does not wait for the boot; see await_ready."""
        (self.directory / "agent.json").unlink(missing_ok=True)
        self.lab._ask_supervisor(f"boot {self.name}")

    def await_ready(self, timeout=180):
        began = time.monotonic()

        def ready_or_ended():
            return READY in self.console() or not self.running()

        try:
            wait_until(ready_or_ended, timeout, f"machine {self.name} to boot", interval=0.02)
        except LabError as late:
            raise LabError(f"{late}; its console: {self._tail()}") from None
        if READY not in self.console():
            raise LabError(
                f"machine {self.name} ended while it booted; its console: {self._tail()}"
            )
        (self.directory / "agent.json.new").write_text(
            json.dumps({"port": self._agent_port(), "token": self.lab.token})
        )
        (self.directory / "agent.json.new").rename(self.directory / "agent.json")
        self.clock_off_by = self.agent.set_clock()
        return time.monotonic() - began

    def clock_rate(self):
        """Returns how many seconds of the machine pass in a second of the host."""
        began, there = time.monotonic(), self.agent.ask("clock")
        time.sleep(0.3)
        return (self.agent.ask("clock") - there) / 1e9 / (time.monotonic() - began)

    def boot(self):
        self.lab._boot([self])

    def kill(self):
        """Ends the machine without warning, like a power failure."""
        self.lab._ask_supervisor(f"kill {self.name}")

    def console(self):
        """Returns the machine's console output since its last boot."""
        try:
            return (self.directory / "console.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def _tail(self):
        qemu = (self.directory / "qemu.log").read_text(errors="replace").strip()
        return "\n".join(
            [
                *self.console().strip().splitlines()[-20:],
                *([f"QEMU's output: {qemu[-2000:]}"] if qemu else []),
            ]
        )

    def mount_disk(self, path):
        """Mounts the disk of this machine (`disk_mib`). A boot does not mount it."""
        self.run(["modprobe", "virtio_blk"])
        self.run(["mkdir", "-p", path])
        self.run(["mount", "-t", "ext4", "/dev/vda", path])

    def set_link(self, up):
        """Plugs the cable in or out at this machine's end of the link."""
        qmp.execute(self.directory / "qmp.sock", "set_link", name="link0", up=up)

    def _agent_port(self):
        shown = qmp.execute(
            self.directory / "qmp.sock", "human-monitor-command", **{"command-line": "info usernet"}
        )
        for line in shown.splitlines():
            words = line.split()
            if words and words[0] == "TCP[HOST_FORWARD]":
                return int(words[3])
        raise LabError(f"QEMU of machine {self.name} forwards no port to the agent: {shown}")


def _required_pid(pid, node, argv):
    if not pid:
        raise LabError(f"on {node.name}: '{' '.join(map(str, argv))}' did not start")
    return int(pid)


class VirtualLab:
    def __init__(
        self,
        memory_mib=MEMORY_MIB,
        cpus=CPUS,
        backed=False,
        log=lambda text: None,
        results=None,
        disk_mib=0,
        root=Path("/"),
    ):
        """Boots both machines. `log` receives progress messages. `results`: a directory for the
        consoles, written by close().

        `backed`: QEMU touches the machines' memory before they start. Otherwise its first touch is
        several times slower than any later one, unlike on a real machine.

        `disk_mib`: each machine has an empty disk of this size that loses what was not flushed when
        the machine is killed (flushed_disk.py), `node.disk`.

        `root`: another root file system, whose kernel and systemd the machines boot.
        """
        image.check_can_run(root)
        self._log, self._results = log, Path(results) if results else None
        remove_stale()
        self.token = secrets.token_hex(16)
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = open(self.directory / "lock", "w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._supervisor_process = None
        self._disks = []
        try:
            self._prepare(memory_mib, cpus, backed, disk_mib, root)
            self._start_supervisor()
            began = time.monotonic()
            self._boot(self.nodes)
            log(
                f"both machines are up after {time.monotonic() - began:.1f} s: a is {self.a.address}, b is {self.b.address}, {memory_mib} MiB and {cpus} CPUs each"
            )
        except BaseException:
            self.close()
            raise

    @classmethod
    def attach(cls, directory):
        """Returns the laboratory of another process, which stays its owner."""
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
        raise LabError(f"no machine is called {name}; the machines are {', '.join(NAMES)}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _prepare(self, memory_mib, cpus, backed, disk_mib, root):
        self.home = self.directory / "home"  # shared, like the home directories of a cluster
        self.home.mkdir()
        (self.directory / "token").write_text(self.token)
        self._name_nodes()
        kernel, common_initramfs = image.cached_image(root)
        self._log(f"booting two emulated machines (QEMU, {self.directory})")
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
                "boots_systemd": "" if root == Path("/") else "yes",
                "shares": " ".join(
                    f"{tag} {mode} {shlex.quote(str(path))}" for tag, mode, path in shares
                ),
            }
            initramfs = image.make_initramfs(common_initramfs, settings, node.directory)
            commands[node.name] = _qemu(
                node.directory,
                peer.directory,
                number,
                kernel,
                initramfs,
                [("root", "ro", root), *shares],
                memory_mib,
                cpus,
                backed,
            )
            if disk_mib:
                node.disk = FlushedDisk(new_file_system(disk_mib), node.directory / "disk.sock")
                self._disks.append(node.disk)
                commands[node.name] += disk_of_qemu(node.directory / "disk.sock")
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
            raise LabError("machine_supervisor.py did not start")

    def _ask_supervisor(self, request):
        return _ask_supervisor(self.directory, request)

    def cut_link(self):
        """Unplugs the cable at both ends."""
        for node in self.nodes:
            if node.running():
                node.set_link(False)

    def restore_link(self):
        for node in self.nodes:
            if node.running():
                node.set_link(True)

    def repair(self):
        """Boots machines that are off and restores the link. If the link still carries nothing,
        boots both machines again."""
        self._boot([node for node in self.nodes if not node.running()])
        self.restore_link()
        try:
            wait_until(self.link_carries, 10, "the link to carry anything", interval=0.1)
        except LabError:
            # QEMU 7.2's network device sometimes stalls after hours under load: it waits for free
            # buffers that it already has.
            self._log("the link is dead: booting both machines again")
            for node in self.nodes:
                node.kill()
            wait_until(
                lambda: not any(node.running() for node in self.nodes),
                10,
                "the machines to end",
                interval=0.05,
            )
            self._boot(self.nodes)

    def _boot(self, nodes):
        """On a loaded host Linux sometimes measures a wrong frequency of its clock while it boots,
        and time in the machine then runs several times too fast. Such a machine boots again."""
        for _ in range(BOOTS_MAX):
            for node in nodes:
                node.start()
            for node in nodes:
                node.await_ready()
            nodes = [node for node in nodes if not 0.7 < node.clock_rate() < 1.5]
            if not nodes:
                return
            self._log(f"wrong clock: booting {' and '.join(node.name for node in nodes)} again")
            for node in nodes:
                node.kill()
            wait_until(lambda: not any(node.running() for node in nodes), 10, "the machines to end")
        raise LabError(f"the clock of a machine was wrong after {BOOTS_MAX} boots")

    def link_carries(self):
        return (
            self.a.run(
                ["busybox", "ping", "-c", "1", "-W", "2", self.b.address], check=False
            ).returncode
            == 0
        )

    def close(self):
        if not self._lock:
            return  # closed already, or owned by another process
        if self._results:
            self.collect(self._results)
        if self._supervisor_process:
            self._supervisor_process.stdin.close()
            try:
                self._supervisor_process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._supervisor_process.kill()  # the kernel then also kills the machines
                self._supervisor_process.wait()
            self._supervisor_process.stdout.close()
            self._supervisor_process = None
        for disk in self._disks:
            disk.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._lock.close()
        self._lock = None

    def collect(self, results):
        """Copies the logs of the machines and their QEMUs to results/NAME/."""
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
            reply = connection.recv(1000).decode()
    except OSError as error:
        raise NotRunning(f"the laboratory in {directory} is not running: {error}") from None
    if not reply.startswith("ok"):
        raise LabError(f"{request}: {reply.removeprefix('error ') or 'the supervisor has ended'}")
    return reply.removeprefix("ok").strip()


def _mac(network, number):
    return f"52:54:00:70:7{network}:0{number}"


def _shares(home):
    """[(tag, mode, path), ...]: directories at the same path in the machines. They always show the
    host's present state, unlike the root file system."""
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
    for tag, mode, path in shares:
        command += [
            "-fsdev",
            f"local,id={tag},path={quoted(path)},security_model=none,multidevs=remap{',readonly=on' if mode == 'ro' else ''}",
            "-device",
            f"virtio-9p-pci,fsdev={tag},mount_tag={tag}",
        ]
    return command


def running():
    """Returns the laboratory that is up, the last booted one if there are several, or None."""
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
    """Removes directories of laboratories whose owner and supervisor were killed."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/lock"):
        try:
            with open(lock) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:
            continue
