"""Programs that use RDMA, started with `ppmr rdma run` on the machines of tests/vm; their moves."""
import re

from .migrations import Migrations
from .node import LabError, wait_until
from .ppmr import find_ppmr
from .programs import find_program

MOVED = 0
GID_INDEX = 1  # of rxe: the IPv4 address
SOURCE_OPTIONS = ["--pool-size", "16MiB"]
TARGET_OPTIONS = ["--memory-limit", "256MiB", "--pool-size", "96MiB"]

# UCX connects over UD and sends over RC with a shared receive queue. UCX_SOCKADDR_TLS_PRIORITY
# avoids the transports of rdma_cm, which would keep the device open. The other settings are for rxe
# (docs/rdma-programs.md).
UCX = [
    "env",
    "UCX_TLS=rc_v,ud_v",
    "UCX_NET_DEVICES=rxe0:1",
    f"UCX_IB_GID_INDEX={GID_INDEX}",
    "UCX_SOCKADDR_TLS_PRIORITY=tcp",
    "UCX_UD_VERBS_ETH_DGID_CHECK=n",
]
SERVER = "10.99.0.1"  # moves with the server


def migrations_of(source, target, name):
    return Migrations(source, target, f"/tmp/{name}", SOURCE_OPTIONS, TARGET_OPTIONS, name=name)


class Program:
    """A program under `ppmr rdma run`. `node` is the machine on which it runs now."""

    def __init__(self, machines, node, directory, name, words, first_pid=None):
        self.node, self.directory, self.name = node, directory, name
        self.out, self.log = directory / f"{name}.out", directory / f"{name}.log"
        place = {} if first_pid is None else {"first_pid": first_pid}
        peers = machines.home / "peers"
        run = [find_ppmr(), "rdma", "run", "--directory", peers, "--", *words]
        environment = ["env", f"PPMR_VERBS_LOG={self.log}"]
        self.pid = node.spawn([*environment, *run], log=self.out, **place)

    def text(self):
        return "".join(file.read_text() for file in (self.out, self.log) if file.exists())

    def move(self, migrations, criu_options=(), options=()):
        """`migrations`: the ones from each machine, by its name. Returns what ppmr said."""
        pair = migrations[self.node.name]
        done = pair.migrate(self.pid, timeout=180, criu_options=criu_options, options=options)
        if done.code != MOVED:
            raise LabError(done.output + pair.logs(2) + self.text())
        if not [event for event in done.events if event.get("event") == "rdma-released"]:
            raise LabError(f"no process was asked to release RDMA: {done.output}")
        self.node = pair.target_at
        return done

    def await_end(self, timeout=180):
        try:
            self.node.await_end(self.pid, timeout=timeout)
        except LabError as late:
            raise LabError(f"{late}; {self.text()}") from None

    def holds(self):
        """The times at which its library began to hold sends back for a peer, and at which it
        opened them again, in seconds of its machine's clock: [(True, 12.5), (False, 14.1)]."""
        line = re.compile(r"^ppmr-verbs\[\d+\] (\d+\.\d+) queue pair \w+ (holds back|goes on)$")
        text = self.log.read_text() if self.log.exists() else ""
        found = filter(None, map(line.match, text.splitlines()))
        return [(match[2] == "holds back", float(match[1])) for match in found]


class Programs:
    """start(node, name, words): all programs share a directory."""

    def __init__(self, machines, directory):
        self.machines, self.directory = machines, directory
        self._started = []
        directory.mkdir()

    def __call__(self, node, name, words):
        # Processes of both machines must not have the same pid if they move. Each machine counts on
        # from the first one that was started there.
        first = self._started[0].pid + 5000 * len(self._started) if self._started else None
        program = Program(self.machines, node, self.directory, name, words, first)
        self._started.append(program)
        return program

    def end(self):
        for program in self._started:
            for node in self.machines.nodes:
                node.signal(program.pid, 9)


class MovingAddress:
    """place(node): the node has SERVER, and the other one reaches it there. During a move both
    have it. It is not on the link, whose addresses are the GIDs of the device."""

    def __init__(self, machines):
        self.machines = machines
        for node in machines.nodes:
            node.run(["modprobe", "-a", "iptable_filter", "xt_mark"])  # for --tcp-established

    def __call__(self, *nodes):
        for node in self.machines.nodes:
            peer = next(other for other in self.machines.nodes if other is not node)
            here = f"ip addr replace {SERVER}/32 dev lo; ip route flush {SERVER}"
            there = f"ip addr del {SERVER}/32 dev lo; ip route replace {SERVER} via {peer.address}"
            node.run(["sh", "-c", here if node in nodes else there], check=False)

    def end(self):
        for node in self.machines.nodes:
            node.run(
                ["sh", "-c", f"ip addr del {SERVER}/32 dev lo; ip route flush {SERVER}"],
                check=False,
            )


# -- the checker of tests/movable_verbs


def start_checkers(machines, start, *options):
    a, b = machines.nodes
    programs = []
    for node, name, partner in ((a, "x", "y"), (b, "y", "x")):
        words = [find_program("checker"), "--name", name, "--partner", partner]
        programs.append(start(node, name, [*words, "--exchange", start.directory, *options]))
    await_rounds(start, programs, 3)
    return programs


def rounds(directory, name):
    path = directory / f"{name}.progress"
    text = path.read_text() if path.exists() else ""
    return int(text) if text.strip() else 0


def await_rounds(start, programs, more):
    goals = {p.name: rounds(start.directory, p.name) + more for p in programs}
    for program in programs:
        wait_until(
            lambda p=program: rounds(start.directory, p.name) >= goals[p.name]
            or "checker:" in p.text(),
            120,
            f"{more} rounds of {program.name}: {program.text()}",
        )
        if "checker:" in program.text():
            raise LabError(program.text())


def finish(start, programs):
    (start.directory / "stop.now").write_text("yes\n")
    for program in programs:
        program.await_end()
        if "all right" not in program.text():
            raise LabError(program.text())


# -- Debian's programs


def start_pingpong(machines, start, count, *options):
    """Returns the server and the client, of which the client moves."""
    a, b = machines.nodes
    # Without stdbuf its lines stay in a buffer until the end.
    words = ["stdbuf", "-oL", "ibv_rc_pingpong", "-c", "-g", str(GID_INDEX)]
    words += ["-n", str(count), "-s", "4096", *options]
    server = start(b, "server", words)
    wait_until(lambda: "local address" in server.text(), 60, "the server to start")
    client = start(a, "client", [*words, b.address])
    wait_until(lambda: "remote address" in client.text(), 60, "both to connect")
    return server, client


def start_ucx(machines, start, moving_address, what, size, count):
    """Returns the server, which moves with its address, and the client."""
    a, b = machines.nodes
    moving_address(a)
    words = [*UCX, "stdbuf", "-oL", "ucx_perftest", "-t", what, "-s", size, "-n", count, "-w", 10]
    server = start(a, "server", [*words])
    wait_until(lambda: "Waiting" in server.text(), 60, "the server to start")
    client = start(b, "client", [*words, SERVER])
    wait_until(lambda: "[thread 0]" in client.text(), 60, "traffic")
    return server, client


def move_ucx(server, client, migrations, moving_address):
    here = server.node
    there = migrations[here.name].target_at
    moving_address(here, there)
    done = server.move(migrations, ["--tcp-established"])
    moving_address(there)
    moved_at = iterations(client)
    wait_until(
        lambda: iterations(client) > moved_at or "Final:" in client.text(),
        120,
        f"traffic: {client.text()}",
    )
    return done


def iterations(client):
    """The number in the last line of ucx_perftest's progress."""
    lines = [line for line in client.text().splitlines() if line.startswith("[thread 0]")]
    return int(lines[-1].split()[2]) if lines else 0
