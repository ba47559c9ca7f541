"""Every state of a migration x everything that can fail in it, and the oracle that says whether that was survived.

A case stops a migration of a witness (tests/programs/witness.cc) at a state, does something to somebody, lets it go on, mends what was broken,
has `ppmr migrate --recover` finish it, and then looks:

- no count stands twice in the witness's log, its lines follow on from each other, and it changed nodes at most once
- exactly one copy runs, on the node that the records name as the owner, and its log grows
- nothing is open any more, and a migration with nothing in its way (back to the lab's start: from the source again) succeeds

Lost is allowed in one case that the documentation names: the target's daemon fails while a lazily restarted process still needs its memory.
"""
import os
import random
import re
import signal
import time
from pathlib import Path

from .criu import find_criu
from .migrate import MigrationWorld
from .node import LabError, wait_until
from .programs import REPOSITORY, chain_state, find_program

HOLD_LIMIT = 2       # seconds: --timeout of the migrations
PEER_TIMEOUT = 2     # of the daemons
LONG = HOLD_LIMIT + 1.5

# Where a migration can be stopped. The keys must be the states of ownership_record.h: see missing_states().
STOPS = {
    "preparing": ["source:preparing"],
    "dumping": ["source:dumping"],
    "frozen": ["source:frozen"],
    "sealed": ["source:sealed"],
    "committed": ["source:committed"],
    "restoring": ["target:restoring"],
    "ready": ["target:ready"],
    "owned": ["target:owned"],
    "running": ["target:running"],
    "finished": ["source:finished", "target:finished"],
    "aborted": ["source:aborted", "target:aborted"],
}
VICTIMS = ["source daemon", "target daemon", "migrate", "source criu", "target criu"]
LINKS = ["to the source", "to the target", "both ways"]


def missing_states():
    """The states that the matrix does not know, or that are no more."""
    header = (REPOSITORY / "restart_loader/ownership_record.h").read_text()
    body = header[header.index("enum class MigrationState {"):]
    states = {name.lower() for name in re.findall(r"^  k(\w+),", body[:body.index("};")], re.M)}
    return states ^ set(STOPS)


def all_cases():
    """(stop, what, how): `how` is kill, stop (for longer than the time-out), pause (for shorter) for a victim, cut or blink for a link."""
    for stops in STOPS.values():
        for stop in stops:
            for victim in VICTIMS:
                for how in ("kill", "stop", "pause"):
                    yield stop, victim, how
            for link in LINKS:
                for how in ("cut", "blink"):
                    yield stop, link, how


NOT_REACHED = "not reached"  # verdict: all is well, but the migration had ended before the state


class Wrong(LabError):
    """The oracle's verdict."""


class Arena:
    """Two nodes with mounts in which one case after the other is played."""

    def __init__(self, lab, number=0):
        self.lab, self.number = lab, number
        self.source, self.target = lab.node(f"source{number}"), lab.node(f"target{number}")
        self.link = lab.join(self.source, self.target)
        self.pauses = lab.directory / f"pauses-{number}"
        self.pauses.write_text("")
        self._no_restore = lab.directory / f"no-restore-{number}"
        criu = lab.directory / f"criu-{number}"
        criu.write_text(f'#!/bin/sh\n[ "$1" = restore ] && [ -e {self._no_restore} ] && {{ echo "Error (criu/x.c:1): no restore"; exit 1; }}\nexec {find_criu()} "$@"\n')
        criu.chmod(0o755)
        self._environment = {"PPMR_PAUSE_FILE": str(self.pauses), "PPMR_CRIU": str(criu)}
        self.world = None
        self._witnesses = 0

    def open(self):
        options = ["--peer-timeout", PEER_TIMEOUT]
        self.world = MigrationWorld(self.source, self.target, self.lab.directory / "private", options, ["--pool-size", "64MiB", *options],
                                    name=f"arena{self.number}", environment=self._environment)
        return self

    def close(self):
        if self.world:
            self.world.close()

    # -- one case

    def play(self, stop, what, how, eager):
        """Returns what became of it: "moved", "stayed", "lost in the lazy window", "not there" when there is no such victim at this state, or NOT_REACHED."""
        witness = Witness(self)
        cut = None
        victims = []
        try:
            abort_first = stop.endswith(":aborted")
            self.pauses.write_text(stop)
            if abort_first:
                self._no_restore.touch()  # an abort needs a reason
            running = self.world.start_migrate(witness.pid, options=["--timeout", HOLD_LIMIT, *(["--eager"] if eager else [])],
                                               environment=self._environment)
            try:
                self.world.wait_until_paused(*stop.split(":"), running, timeout=15)
                reached = True
            except LabError:
                if running.running():
                    raise
                reached = False  # given up before (a busy machine and a short time-out): the oracle is asked nevertheless
            if not reached:
                pass
            elif what in LINKS:
                cut = what
                self._cut(what)
                time.sleep(LONG if how == "cut" else 0.3)
            else:
                victims = self._find(what, running)
                if not victims:
                    result = "not there"
                else:
                    for pid in victims:
                        self._signal(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
                    result = None
            self.pauses.write_text("")
            self._no_restore.unlink(missing_ok=True)
            self.world.go_on(*stop.split(":"))
            if what in VICTIMS and victims and how != "kill":
                time.sleep(LONG if how == "stop" else 0.3)
                self._let_go(victims, running)
            if cut and how == "blink":
                self._mend()
                cut = None
            said = running.wait(timeout=60)
            if cut:
                self._mend()
                cut = None
            lazy_window = not eager and (what == "target daemon" or what in LINKS) and how in ("kill", "stop", "cut", "pause")
            self._mend_daemons(what if how == "kill" else None)
            self._recover()
            verdict = self._judge(witness, said, lazy_window)
            if not reached:
                return NOT_REACHED
            return "not there" if what in VICTIMS and not victims else verdict
        except LabError as error:
            raise Wrong(f"{stop}, {what}, {how}, {'eager' if eager else 'lazy'}: {error}\n{self._evidence(witness)}") from error
        finally:
            self._no_restore.unlink(missing_ok=True)
            self.pauses.write_text("")
            for role in ("source", "target"):
                for state in STOPS:
                    self.world.go_on(role, state)
            for pid in victims:
                self._signal(pid, signal.SIGCONT)
            if cut:
                self._mend()
            witness.end()

    def _find(self, what, running):
        """Pids (of the host) of a victim; several CRIUs are all of them."""
        if what == "migrate":
            return [running.host_pid] if running.running() and running.host_pid else []
        if what in ("source daemon", "target daemon"):
            daemon = self.world.mounts.source if what.startswith("source") else self.world.mounts.target
            return [daemon.host_pid] if daemon.running() else []
        word, path = ("dump", self.world.mounts.out) if what == "source criu" else ("restore", self.world.mounts.in_)
        node = self.source if what == "source criu" else self.target
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"criu" not in words[0] or word.encode() not in words or not any(w.startswith(f"{path}/".encode()) for w in words):
                    continue
                if os.readlink(entry / "ns/pid") != os.readlink(f"/proc/{node.init_pid}/ns/pid"):
                    continue
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found[int(entry.name)] = parent
            except (OSError, ValueError, IndexError):
                continue
        return [pid for pid, parent in found.items() if parent not in found]  # not the tasks that it restores

    def _let_go(self, victims, running):
        for pid in victims:
            self._signal(pid, signal.SIGCONT)
        # nsenter stops when its child does, and does not go on by itself.
        for process in (running.process, self.world.mounts.source.process, self.world.mounts.target.process):
            self._signal(process.pid, signal.SIGCONT)

    @staticmethod
    def _signal(pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def _cut(self, way):
        for node, interface, _ in self.link.ends:
            if way == "both ways" or (way == "to the source") == (node is self.source):
                node.run(["iptables", "-I", "INPUT", "-i", interface, "-j", "DROP"])

    def _mend(self):
        for node, _, _ in self.link.ends:
            node.run(["iptables", "-F", "INPUT"])

    def _mend_daemons(self, killed):
        """Whoever died is started again."""
        for daemon in (self.world.mounts.source, self.world.mounts.target):
            if killed == f"{daemon.role} daemon":
                daemon.process.wait(timeout=10)  # nsenter, which ends a little later than the daemon
        self.world.mounts.restart_dead()

    def _recover(self):
        deadline = time.monotonic() + 25
        while True:
            done = [self.world.recover(role, options=["--timeout", "3"], check=False) for role in ("source", "target")]
            if all(one.code == 0 for one in done):
                return
            if time.monotonic() > deadline:
                raise LabError(f"recovery leaves something open: {[one.said for one in done]}")
            time.sleep(0.1)

    # -- the oracle

    def _judge(self, witness, said, lazy_window):
        source = next((record for record in self._records("source", witness)), None)
        target = next((record for record in self._records("target", witness) if source and record["id"] == source["id"]), None)
        moved = source is not None and source["state"] == "finished"
        if source and source["state"] not in ("finished", "aborted"):
            raise LabError(f"the source's record says {source['state']}")
        if target and target["state"] not in ("finished", "aborted"):
            if not (lazy_window and target["state"] == "running"):
                raise LabError(f"the target's record says {target['state']}")
        if source and target and (source["state"] == "aborted") != (target["state"] == "aborted"):
            raise LabError(f"the records differ: {source['state']} and {target['state']}")
        if said.code == 0 and not moved:
            raise LabError("ppmr migrate said that all is well")
        owner, other = (self.target, self.source) if moved else (self.source, self.target)
        # A copy that CRIU has restored and not let go looks alive until CRIU has killed it. Had it executed anything, its log would tell.
        wait_until(lambda: not witness.runs(other), 5, f"the copy on {other.name}, which does not own it, to go")
        if not witness.runs(owner):
            witness.check_log()
            if moved and lazy_window:
                return "lost in the lazy window"
            raise LabError(f"no copy runs on {owner.name}, which owns it (ppmr said: {said.said})")
        try:
            witness.wait_for_growth()
        except LabError:
            if moved and lazy_window:
                witness.check_log()
                return "lost in the lazy window"
            raise
        witness.check_log()
        if moved:
            return "moved"
        self.world.migrate(witness.pid, options=["--timeout", 20], environment=self._environment).ok()
        witness.wait_for_growth()
        if witness.runs(self.source) or not witness.runs(self.target):
            raise LabError("the clean retry left no copy, or two")
        witness.check_log()
        return "stayed"

    def _records(self, role, witness):
        """Of the migrations of this witness: those before it may have had the same pid."""
        return [record for record in self.world.records(role) if record["history"][0][1] > witness.began_ns]

    def _evidence(self, witness):
        said = []
        for role in ("source", "target"):
            for record in self._records(role, witness):
                said.append(f"{role}: {record['state']} {[h[0] for h in record['history']]} error={record['error']!r} told={record['peer_told']} tree={record['trees'][0]['phase']}")
        return "\n".join([*said, self.world.logs(newest=1)])


class Witness:
    def __init__(self, arena):
        arena._witnesses += 1
        self.arena = arena
        self.directory = arena.lab.home / f"witness-{arena.number}-{arena._witnesses}"
        self.directory.mkdir()
        self.log = self.directory / "log"
        self.began_ns = time.time_ns()
        self.pid = arena.source.spawn([find_program("witness"), self.directory])
        wait_until(lambda: self.log.exists() and self.log.stat().st_size > 500, 10, "the witness to get under way")

    def runs(self, node):
        """Whether a copy is there that is not stopped."""
        try:
            status = node.read_text(f"/proc/{self.pid}/status")
        except OSError:
            return False
        state = re.search(r"^State:\t(\w)", status, re.M).group(1)
        name = re.search(r"^Name:\t(.*)", status, re.M).group(1)
        return name == "witness" and state in "RSD"

    def wait_for_growth(self):
        before = self.log.stat().st_size
        wait_until(lambda: self.log.stat().st_size > before + 500, 5, "the witness to go on")

    def check_log(self):
        text = self.log.read_text()
        lines = text[:text.rfind("\n") + 1].splitlines()
        nodes = []
        last_real = 0
        for number, line in enumerate(lines, start=1):
            count, state, node, real, _mono, wrong = line.split()
            if int(count) != number:
                raise LabError(f"line {number} of the witness has count {count}: it was doubled, or went back, or lost something ({line})")
            if int(state) != chain_state(0, number):
                raise LabError(f"line {number} of the witness has a wrong state")
            if int(wrong):
                raise LabError(f"line {number}: {wrong} words of memory are wrong")
            if int(real) <= last_real:
                raise LabError(f"line {number} was written before the one above it: two copies ran")
            last_real = int(real)
            if not nodes or nodes[-1] != node:
                nodes.append(node)
        if nodes not in ([self.arena.source.name], [self.arena.source.name, self.arena.target.name]):
            raise LabError(f"the witness ran on {nodes}")

    def end(self):
        for node in (self.arena.source, self.arena.target):
            node.run(["sh", "-c", 'grep -q "^Name:.witness" /proc/$0/status && kill -9 $0', self.pid], check=False)
        wait_until(lambda: not any(self._is_there(node) for node in (self.arena.source, self.arena.target)), 5, "the witness to be gone")

    def _is_there(self, node):
        try:
            return "Name:\twitness" in node.read_text(f"/proc/{self.pid}/status")
        except OSError:
            return False


def choose(cases, count, seed):
    """`count` cases, every one of `cases` at least once if there is room, in an order that the seed gives."""
    generator = random.Random(seed)
    chosen = []
    while len(chosen) < count:
        round_ = list(cases)
        generator.shuffle(round_)
        chosen += round_
    return [(*case, generator.random() < 0.5) for case in chosen[:count]]
