"""PostgreSQL under pgbench: what its clients get while it moves with its address, their connections
and its shared buffers. Its data are on storage that both nodes share.

*Downtime* is what the clients see: of the times in which no transaction was completed, the longest
one that contains the freeze. pgbench writes its log when it ends, so it runs for a set time.
"""
import time

from lab.node import LabError, wait_until
from lab.services import Postgres

from .loads import mortal
from .plan import Item, Outcome
from .redis_moves import TCP, Clients
from .shape_trees import Beat, Tree, tasks_of
from .shape_ways import DEFAULT, LAZY_PAGES, POST_COPY

SERIES = "PostgreSQL under load"
PORT, USER, CLIENTS = 6391, "postgres", 4
SCALE_MIB = 15  # MiB of one unit of pgbench's scale
MOVE_S = 12  # a move in the slowest of the ways ends within it
WAYS = (DEFAULT, POST_COPY, LAZY_PAGES)
OPTIONS = [*TCP, "--file-locks", "--ghost-limit", "64M"]


class Loaded(Tree):
    """PostgreSQL with its data and its clients. Each transaction is a beat."""

    dump_options = OPTIONS

    def __init__(self, testbed, clients, server, mib):
        self.node, self._clients = testbed.source, clients
        self.shape = type("Named", (), {"name": "PostgreSQL", "checks": False})
        self._directory = testbed.lab.home / testbed.label("postgres")
        self._address = clients.moving.address
        clients.go_on(testbed.source)
        self.pid = server.start(self.node, self._address, PORT, self._directory)
        self._idle = len(tasks_of(self.node, self.pid))
        self._pgbench(["--initialize", "--quiet", "--scale", max(1, mib // SCALE_MIB)])
        before_s, after_s = testbed.effort.watched_s
        seconds = int(before_s + MOVE_S + after_s)
        words = ["--client", CLIENTS, "--time", seconds, "--log", "--progress", 1]
        self._output = self._directory / "pgbench"
        self._load = self._start_pgbench(words)
        wait_until(lambda: "progress" in self._said(), 30, "pgbench to run")
        time.sleep(before_s)
        self._tasks = tasks_of(self.node, self.pid)
        clients.hold_when_frozen(self.node.host_path(f"/proc/{self.pid}/stat"))

    def _words(self, words):
        where = ["--host", self._address, "--port", PORT, "--username", USER]
        return ["/usr/bin/pgbench", *words, *where, "postgres"]

    def _pgbench(self, words):
        self._clients.node.run(self._words(words), timeout=300)

    def _start_pgbench(self, words):
        script = 'cd "$0" && exec "$@" >pgbench 2>&1'
        command = ["sh", "-c", script, self._directory, *self._words(words)]
        return self._clients.node.popen(mortal(command))

    def _said(self):
        return self._output.read_text() if self._output.exists() else ""

    def await_beats(self, count, after=0.0, timeout=30):
        """The log is written at the end, so this cannot wait for a transaction."""
        if not self.node.alive(self.pid):
            raise LabError("PostgreSQL has ended: " + (self._directory / "log").read_text()[-500:])

    def arrived(self, node):
        super().arrived(node)
        self._clients.go_on(node)

    def gap(self, moment, source, target):
        wait_until(lambda: self._load.poll() is not None, 60, "pgbench to end")
        if self._load.returncode != 0:
            raise LabError(f"pgbench: {self._said()[-500:]}")
        wait_until(self._serves_nobody, 10, "the processes that served pgbench to end")
        beats = [beat.time for beat in self.beats()]
        earlier = [time for time in beats if time <= moment]
        later = [time for time in beats if time > moment]
        if not earlier or not later:
            raise LabError(f"pgbench has no transactions on both sides of the move: {len(beats)}")
        return max(earlier), min(later)

    def _serves_nobody(self):
        self._tasks = tasks_of(self.node, self.pid)
        return len(self._tasks) <= self._idle

    def beats(self):
        found = []
        for log in self._directory.glob("pgbench_log.*"):
            for line in log.read_text().splitlines():
                words = line.split()
                found.append(Beat(int(words[4]) + int(words[5]) / 1e6, self.node.name))
        return found

    def end(self, *nodes):
        self._clients.go_on(self.node)
        if self._load.poll() is None:
            self._load.kill()  # mortal: the client ends, too
            self._load.wait()
        super().end(*nodes)

    def remove(self):
        self.node.run(["rm", "-rf", self._directory])


def measure(testbed, moves, mib):
    source = testbed.nodes("veth")[0]
    server = Postgres()
    server.settings = {
        "shared_buffers": f"{mib}MB",
        "max_wal_size": "4GB",
        "fsync": "off",  # the machine's disk is not what is measured
        "autovacuum": "off",
    }
    has_pgbench = source.run(["test", "-x", "/usr/bin/pgbench"], check=False).returncode == 0
    if server.missing() or not has_pgbench:
        why = "PostgreSQL is missing: third_party/install services"
        return Outcome(not_measured={"all ways": why})
    clients = Clients(testbed)
    try:
        made = moves(testbed, lambda: Loaded(testbed, clients, server, mib), int(mib * 1.3), WAYS)
        made.run(testbed.effort.move_runs)
    finally:
        clients.close()
    return Outcome(
        made.samples(lambda one: one.downtime),
        not_measured=made.not_measured,
        also={"all memory in place": made.samples(lambda one: one.complete)},
    )


def plan(testbed, section, moves):
    effort = testbed.effort
    mib = effort.busy_mib
    seconds = MOVE_S + sum(effort.watched_s) + 10 + mib / 50
    yield Item(
        section,
        SERIES,
        f"{mib >> 10} GiB" if mib >= 1024 else f"{mib} MiB",
        {"mib": mib, "clients": CLIENTS},
        "s",
        lambda: measure(testbed, moves, mib),
        4 + (effort.shape_warm_ups + effort.move_runs) * len(WAYS) * seconds,
    )
