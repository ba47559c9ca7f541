"""redis under load: what its clients get every 100 ms while it moves with its address and their
connections.

The clients run on a fourth node. Their packets wait there from the moment redis is frozen until it
runs again (`tests/lab/moving_address.py`). Otherwise TCP would send them again after 0.2, 0.6, 1.4
s, and the end of every downtime would be rounded up to one of these moments. CRIU locks the
connections itself. *Downtime* is what the clients see: from the last answer before the move to the
first one after it.
"""
import threading
import time

from lab.moving_address import MovingAddress
from lab.node import LabError, wait_until
from lab.programs import REPOSITORY

from .loads import mortal
from .plan import Item, Outcome
from .shape_trees import Beat, Tree
from .spread import spread

SERIES = "redis under load"
PORT = 6390
VALUE_BYTES = 4000  # with redis's header, a page
CONNECTIONS = 4
TCP = ["--tcp-established"]
CLIENT = ["/usr/bin/python3", "-SE", REPOSITORY / "bench/workloads/redis_load.py"]
POLL_S = 0.001
BIN_S = 0.1
BEATS_PER_S = 200  # the clients note the first and the last answer of each 10 ms
LOST = "service lost"
ENDED = "XZ"
STOPPED = "tT" + ENDED


def state_of(stat):
    """Returns the letter of proc(5), or X if there is no such process any more."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"


class Clients:
    """The address that moves, the node of the clients, and whether the packets of the clients
    may pass."""

    def __init__(self, testbed):
        lab = testbed.lab
        self.moving = MovingAddress(lab, testbed.source, testbed.target)
        self.node = lab.node("clients")
        self.moving.put_behind(lab, self.node)
        self.moving.share()
        self._watching, self._gate = None, threading.Lock()

    def hold_when_frozen(self, stat):
        """Holds the packets while the process with this file /proc/PID/stat is stopped, and from
        its end on. A stop is no freeze if the process goes on: ppmr stops it for a moment when it
        looks at it, and when it begins to track its memory."""
        self._watching = stat
        self._frozen = threading.Thread(target=self._watch, args=(stat,), daemon=True)
        self._frozen.start()

    def _watch(self, stat):
        holding = False
        while True:
            with self._gate:
                if self._watching is not stat:
                    return
                state = state_of(stat)
                if (state in STOPPED) != holding:
                    holding = not holding
                    self.moving.hold() if holding else self.moving.let_through()
                if state in ENDED:
                    self._watching = None
                    return
            time.sleep(POLL_S)

    def go_on(self, node):
        with self._gate:
            self._watching = None
            self.moving.go_on(node)

    def close(self):
        with self._gate:
            self._watching = None
        self.moving.close()


class Redis(Tree):
    """redis with its clients. The answers that the clients receive are the beats of redis."""

    dump_options = TCP

    def __init__(self, testbed, clients, mib):
        self.node, self._clients = testbed.source, clients
        self._before_s, self._after_s = testbed.effort.watched_s
        self._directory = testbed.lab.home / testbed.label("redis")
        self._directory.mkdir()
        self._log, self._beats = self._directory / "log", self._directory / "answers"
        self._load = None
        clients.go_on(testbed.source)
        self.shape = type("Named", (), {"name": "redis", "checks": False})
        address, keys = clients.moving.address, (mib << 20) // 4096
        words = f"--port {PORT} --bind {address} --protected-mode no --appendonly no".split()
        words += ["--save", "", "--dir", self._directory]
        self.pid = self.node.spawn(["redis-server", *words], log=self._log)
        self._tasks = [self.pid]
        self.node.await_listener(PORT)
        where = [address, PORT, keys, VALUE_BYTES]
        clients.node.run([*CLIENT, "fill", *where], timeout=300)
        self._load = clients.node.popen(mortal([*CLIENT, "load", *where, CONNECTIONS, self._beats]))
        try:
            self.await_beats(int(self._before_s * BEATS_PER_S), timeout=30)
        except LabError as error:
            written = self._beats.read_text().splitlines() if self._beats.exists() else []
            raise LabError(f"{error}; its clients: {written[-1] if written else 'no answers'}")
        clients.hold_when_frozen(self.node.host_path(f"/proc/{self.pid}/stat"))

    def answers(self):
        """(time of the first answer, of the last one, number of answers) of each 10 ms in which
        there were some."""
        if not self._beats.exists():
            return []
        text = self._beats.read_text()
        lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return [
            (int(words[0]) / 1e9, int(words[1]) / 1e9, int(words[2]))
            for words in lines
            if words[0].isdigit()
        ]

    def beats(self):
        return [
            Beat(moment, self.node.name)
            for first, last, _ in self.answers()
            for moment in (first, last)
        ]

    def gap(self, moment, source, target):
        beats = self.beats()
        self.last = max(beat.time for beat in beats if beat.time <= moment)
        self.first = min(beat.time for beat in beats if beat.time > moment)
        return self.last, self.first

    def arrived(self, node):
        super().arrived(node)
        self._clients.go_on(node)

    def check(self):
        """Waits until the time after the move has passed. LabError if an answer was wrong or a
        connection broke."""
        left = self.first + self._after_s - time.time()
        time.sleep(max(0, left))
        self._stop_load()
        text = self._beats.read_text().splitlines()
        if not text or text[-1] != "done":
            raise LabError(f"the clients of redis: {text[-1] if text else 'no answers'}")

    def _stop_load(self):
        if self._load and self._load.poll() is None:
            self._clients.node.signal_process(self._load, 15)
            wait_until(lambda: self._load.poll() is not None, 20, "the clients of redis to end")

    def rates(self):
        """Points (seconds since the last answer before the move, answers per second)."""
        bins = {}
        for first, _, count in self.answers():
            place = int((first - self.last) // BIN_S)
            bins[place] = bins.get(place, 0) + count
        seconds = self.first - self.last + self._after_s
        places = range(int(-self._before_s / BIN_S), int(seconds / BIN_S))
        return [[(place + 0.5) * BIN_S, bins.get(place, 0) / BIN_S] for place in places]

    def lost_s(self):
        """What the move cost: the answers that are missing after the freeze, in seconds at the rate
        of the end, when all is over."""
        after = [rate for at, rate in self.rates() if at > 0]
        usual = spread(after[-max(1, int(self._after_s / 4 / BIN_S)) :]).median
        if not usual:
            raise LabError(f"redis answers its clients no more {self._after_s} s after its move")
        return sum((1 - rate / usual) * BIN_S for rate in after)

    def end(self, *nodes):
        self._clients.go_on(self.node)
        if self._load and self._load.poll() is None:
            self._load.kill()  # mortal: the client ends, too
            self._load.wait()
        super().end(*nodes)


def measure(testbed, moves, mib):
    source = testbed.nodes("veth")[0]
    if source.run(["sh", "-c", "command -v redis-server"], check=False).returncode != 0:
        why = "redis-server is missing: third_party/install installs it"
        return Outcome(not_measured={"all ways": why})
    clients, served = Clients(testbed), {}

    def moved(way, redis):
        served.setdefault(way, []).append((redis.lost_s(), redis.rates()))

    try:
        made = moves(testbed, lambda: Redis(testbed, clients, mib), int(mib * 1.3), after=moved)
        made.run(testbed.effort.move_runs)
    finally:
        clients.close()
    served = {way: served[way] for way in made.moved}
    return Outcome(
        made.samples(lambda one: one.downtime),
        not_measured=made.not_measured,
        also={
            f"{LOST}, s": {way: [lost for lost, _ in found] for way, found in served.items()},
            "all memory in place": made.samples(lambda one: one.complete),
        },
        curves={
            way: sorted(found, key=lambda one: one[0])[len(found) // 2][1]
            for way, found in served.items()
        },
    )


def plan(testbed, section, moves):
    effort = testbed.effort
    mib = effort.busy_mib
    yield Item(
        section,
        SERIES,
        f"{mib >> 10} GiB" if mib >= 1024 else f"{mib} MiB",
        {"mib": mib, "connections": CONNECTIONS},
        "s",
        lambda: measure(testbed, moves, mib),
        4
        + (effort.shape_warm_ups + effort.move_runs)
        * 7
        * (1.5 + sum(effort.watched_s) + mib / 150),
    )
