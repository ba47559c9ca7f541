"""Every state of a migration x everything that can fail in it, and the oracle that says whether that was survived.

A case stops a migration of a witness (tests/programs/witness.cc) at a state, does something to somebody, lets it go on, mends what was broken,
has `ppmr migrate --recover` finish it, and then looks:

- no count stands twice in the witness's log, its lines follow on from each other and in time, its memory is what it was; its nodes are the source,
  then the target once it has moved, and no other
- exactly one copy runs, on the node that the records name as the owner, and its log grows. Of the other copy no task executes its own code at any
  look; what is left of it (a task that has SIGKILL pending, or one that CRIU has restored and not let go) is gone within seconds. How long that takes
  is a matter of the machine, so time is not what decides here: a copy that executed anything is in the log
- nothing is open any more, and a migration with nothing in its way (back to the lab's start: from the source again) succeeds

Lost is allowed where the documentation says so, and nowhere else: may_be_lost().
"""
import os
import random
import re
import signal
import subprocess
import time

from .criu import IS_A_KEEPERS, find_criu
from .migrate import MigrationWorld
from .node import LabError, wait_until
from .programs import REPOSITORY
from .witness import ABSENT, RUNS, Witness

HOLD_LIMIT = 2  # seconds: --timeout of the migrations
PEER_TIMEOUT = 2  # of the daemons
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
VICTIMS = [
    "source daemon",
    "target daemon",
    "migrate",
    "keeper",
    "source criu",
    "source relay",
    "target criu",
    "target relay",
    "lazy pages",
]
LINKS = ["to the source", "to the target", "both ways"]

# Where each CRIU, with its relay, and the keeper are at each state. HELD: it waits for the record, so it is there, or the case is wrong. IN_THE_MIDDLE: it begins when the state has
# been written; the case waits for that, and then for a random moment. LEAVING: the state lets it go, so it may or may not still be there.
# What is not named does not exist yet, or is gone: nothing to be played.
HELD, IN_THE_MIDDLE, LEAVING = "held", "in the middle", "leaving"
WHERE_CRIU_IS = {
    "source criu": {
        "source:dumping": IN_THE_MIDDLE,
        "source:frozen": HELD,
        "source:sealed": HELD,
        "source:committed": HELD,
        "target:ready": HELD,
        "target:owned": HELD,
        "target:running": HELD,
        "source:finished": LEAVING,
        "source:aborted": LEAVING,
        "target:aborted": LEAVING,
    },
    "target criu": {
        "target:restoring": IN_THE_MIDDLE,
        "source:sealed": HELD,
        "source:committed": HELD,
        "target:ready": HELD,
        "target:owned": HELD,
        "target:running": LEAVING,
        "source:finished": LEAVING,
    },
    "keeper": {
        "target:restoring": IN_THE_MIDDLE,
        "source:dumping": HELD,
        "source:frozen": HELD,
        "source:sealed": HELD,
        "source:committed": HELD,
        "target:ready": HELD,
        "target:owned": HELD,
        "target:running": LEAVING,
        "source:finished": LEAVING,
    },
    "lazy pages": {
        "source:sealed": HELD,
        "source:committed": HELD,
        "target:ready": HELD,
        "target:owned": HELD,
        "target:running": LEAVING,
        "source:finished": LEAVING,
    },
}
for node in ("source", "target"):
    WHERE_CRIU_IS[f"{node} relay"] = WHERE_CRIU_IS[f"{node} criu"]
# The state that names the stop, and whoever must not go on meanwhile: a target that is ready would be given the processes at once.
ALSO_HELD = {"target:ready": ["source:sealed"]}
IN_THE_MIDDLE_WITHIN = 0.06  # seconds from the begin of a CRIU: longer than the dump, or the restore, of a witness takes in a quiet moment


def where_is(victim, stop):
    return WHERE_CRIU_IS[victim].get(stop) if victim in WHERE_CRIU_IS else HELD


def may_be_lost(stop, what, how, eager):
    """Whether MIGRATION.md says that the process may be lost."""
    if what == "source criu":  # its parasite is in the process; see play_criu_kills()
        return stop == "source:dumping" and how == "kill"
    decided = stop in (
        "source:committed",
        "target:owned",
        "target:running",
        "source:finished",
        "target:finished",
    )
    if eager:
        return False
    if what == "lazy pages" and how != "kill":
        return True  # once it goes on it gives up, whatever was decided meanwhile: CRIU takes the EINTR of its epoll_wait for an error
    if what in (
        "target criu",
        "target relay",
    ):  # without a CRIU that says that all tasks run, lazy-pages gives up
        return how == "kill" and stop in ("target:running", "source:finished")
    return decided and how == "kill" and what in ("target daemon", "lazy pages")


def missing_states():
    """The states that the matrix does not know, or that are no more."""
    header = (REPOSITORY / "restart_loader/records/ownership_record.h").read_text()
    body = header[header.index("enum class MigrationState {") :]
    states = {name.lower() for name in re.findall(r"^  k(\w+),", body[: body.index("};")], re.M)}
    return states ^ set(STOPS)


def all_cases():
    """(stop, what, how, eager): `how` is kill, stop (for longer than the time-out), pause (for shorter) for a victim, cut or blink for a link; `eager` is
    None where both will do."""
    for stops in STOPS.values():
        for stop in stops:
            for victim in VICTIMS:
                for how in ("kill", "stop", "pause") if where_is(victim, stop) else ():
                    yield stop, victim, how, False if victim == "lazy pages" else None
            for link in LINKS:
                for how in ("cut", "blink"):
                    yield stop, link, how, None


GONE = "gone already"  # verdict: all is well, but the victim, which the state lets go, had gone
LOST = "lost"  # verdict: where may_be_lost()
TRIES = 3  # for a state to be reached; each try is judged


class Wrong(LabError):
    """The oracle's verdict."""


class Arena:
    """Two nodes with mounts in which one case after the other is played."""

    def __init__(self, lab, number=0, seed=0):
        self.lab, self.number = lab, number
        self.source, self.target = lab.node(f"source{number}"), lab.node(f"target{number}")
        self.link = lab.join(self.source, self.target)
        self.pauses = lab.directory / f"pauses-{number}"
        self.pauses.write_text("")
        self._no_restore = lab.directory / f"no-restore-{number}"
        criu = lab.directory / f"criu-{number}"
        self.mutation = (
            lab.directory / f"mutation-{number}"
        )  # shell commands before each CRIU: how a test makes the protocol wrong
        criu.write_text(
            f'#!/bin/sh\n[ -e {self.mutation} ] && . {self.mutation}\n{IS_A_KEEPERS} && [ -e {self._no_restore} ] && {{ echo "Error (criu/x.c:1): no restore"; exit 1; }}\nexec {find_criu()} "$@"\n'
        )
        criu.chmod(0o755)
        self._environment = {"PPMR_PAUSE_FILE": str(self.pauses), "PPMR_CRIU": str(criu)}
        self.world = None
        self._witnesses = 0
        self._random = random.Random(f"{seed} {number}")

    def open(self):
        options = ["--peer-timeout", PEER_TIMEOUT]
        self.world = MigrationWorld(
            self.source,
            self.target,
            self.lab.directory / "private",
            options,
            ["--pool-size", "64MiB", *options],
            name=f"arena{self.number}",
            environment=self._environment,
        )
        return self

    def close(self):
        if self.world:
            self.world.close()

    def new_witness(self):
        self._witnesses += 1
        return Witness(
            self.lab.home / f"witness-{self.number}-{self._witnesses}", self.source, self.target
        )

    # -- one case

    def play(self, stop, what, how, eager):
        """Returns what became of it: "moved", "stayed", GONE, or LOST where that is allowed."""
        for attempt in range(TRIES):
            # On a busy machine the short time-out may end a migration before it comes to the state.
            verdict = self._play(stop, what, how, eager, HOLD_LIMIT << attempt)
            if verdict:
                return verdict
        raise Wrong(
            f"{stop}, {what}, {how}: {TRIES} migrations ended before this state was reached"
        )

    def _play(self, stop, what, how, eager, hold_limit):
        """None when the migration had ended before the state; the oracle had nothing to say to that."""
        witness = self.new_witness()
        cut = None
        victims = []
        held = [stop, *ALSO_HELD.get(stop, [])]
        where = where_is(what, stop) if what in VICTIMS else None
        try:
            self.pauses.write_text(" ".join(held))
            if stop.endswith(":aborted"):
                self._no_restore.touch()  # an abort needs a reason
            running = self.world.start_migrate(
                witness.pid,
                options=["--timeout", hold_limit, *(["--eager"] if eager else [])],
                environment=self._environment,
            )
            reached = self._await_states(held, running)
            if reached and what in LINKS:
                cut = what
                self._cut(what)
                time.sleep(LONG if how == "cut" else 0.3)
            elif reached:
                if where == IN_THE_MIDDLE:
                    self._go_on(held)
                victims = self._await_victims(what, where, running)
                for pid in victims:
                    self._signal(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            self._no_restore.unlink(missing_ok=True)
            self._go_on(held)
            if victims and how != "kill":
                time.sleep(hold_limit + 1.5 if how == "stop" else 0.3)
                self._let_go(victims, running)
            if cut and how == "blink":
                self._mend()
                cut = None
            said = running.wait(timeout=60)
            if cut:
                self._mend()
                cut = None
            self._mend_daemons(what if how == "kill" else None)
            self._recover()
            verdict = self._judge(witness, said, reached and may_be_lost(stop, what, how, eager))
            if not reached:
                return None
            return GONE if what in VICTIMS and not victims else verdict
        except (LabError, OSError) as error:
            raise Wrong(
                f"{stop}, {what}, {how}, {'eager' if eager else 'lazy'}: {error}\n{self._evidence(witness)}"
            ) from error
        finally:
            self._no_restore.unlink(missing_ok=True)
            self._go_on([f"{role}:{state}" for role in ("source", "target") for state in STOPS])
            for pid in victims:
                self._signal(pid, signal.SIGCONT)
            if cut:
                self._mend()
            witness.end()

    def _await_states(self, held, running):
        """False when the migration ended before."""
        for state in held:
            try:
                self.world.wait_until_paused(*state.split(":"), running, timeout=15)
            except LabError:
                if running.running():
                    raise
                return False
        return True

    def _go_on(self, held):
        self.pauses.write_text("")
        for state in held:
            self.world.go_on(*state.split(":"))

    def _await_victims(self, what, where, running):
        if where == LEAVING:
            return self._find(what, running)
        interval = 0.0005 if where == IN_THE_MIDDLE else 0.005
        found = wait_until(
            lambda: self._find(what, running) or (not running.running() and where == IN_THE_MIDDLE),
            10,
            f"{what} to be there",
            interval=interval,
        )
        if found is True:
            return []
        if where == IN_THE_MIDDLE:
            time.sleep(self._random.uniform(0, IN_THE_MIDDLE_WITHIN))
        return found

    def _find(self, what, running):
        """Pids (of the host) of a victim; several CRIUs are all of them."""
        if what == "migrate":
            return [running.host_pid] if running.running() and running.host_pid else []
        if what in ("source daemon", "target daemon"):
            daemon = (
                self.world.mounts.source if what.startswith("source") else self.world.mounts.target
            )
            return [daemon.host_pid] if daemon.running() else []
        if what == "keeper":
            return self._find_keepers()
        if what.endswith(" relay"):
            return (self.source if what == "source relay" else self.target).find_processes(
                lambda words: words[1] == b"migration-relay"
            )
        word = {"source criu": "dump", "target criu": "restore", "lazy pages": "lazy-pages"}[what]
        path = self.world.mounts.out if what == "source criu" else self.world.mounts.in_
        node = self.source if what == "source criu" else self.target
        return self.find_criu(node, word, path)

    def _find_keepers(self):
        state_directory = bytes(self.world.states["target"])
        return self.target.find_processes(
            lambda words: words[:2] == [b"ppmr", b"migration-restore"] and state_directory in words
        )

    @staticmethod
    def find_criu(node, word, path):
        def wanted(words):
            by_command = (
                words[0].endswith(b"criu")
                and word.encode() in words
                and any(one.startswith(bytes(path)) for one in words)
            )
            return by_command or words[0].startswith(f"criu: {word} --rpc".encode())

        return node.find_processes(wanted)  # not the tasks that a CRIU restores

    def _let_go(self, victims, running):
        for pid in victims:
            self._signal(pid, signal.SIGCONT)
        # nsenter stops when its child does, and does not go on by itself.
        for process in (
            running.process,
            self.world.mounts.source.process,
            self.world.mounts.target.process,
        ):
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
                daemon.process.wait(
                    timeout=10
                )  # nsenter, which ends a little later than the daemon
        self.world.mounts.restart_dead()

    def _recover(self):
        deadline = time.monotonic() + 25
        while True:
            done = [
                self.world.recover(role, options=["--timeout", "3"], check=False)
                for role in ("source", "target")
            ]
            if all(one.code == 0 for one in done):
                return
            if time.monotonic() > deadline:
                raise LabError(f"recovery leaves something open: {[one.said for one in done]}")
            time.sleep(0.1)

    # -- the oracle

    def _judge(self, witness, said, may_be_lost_):
        source = next((record for record in self._records("source", witness)), None)
        target = next(
            (
                record
                for record in self._records("target", witness)
                if source and record["id"] == source["id"]
            ),
            None,
        )
        moved = source is not None and source["state"] == "finished"
        if source and source["state"] not in ("finished", "aborted"):
            raise LabError(f"the source's record says {source['state']}")
        if (
            target
            and target["state"] not in ("finished", "aborted")
            and not (may_be_lost_ and target["state"] == "running")
        ):
            raise LabError(f"the target's record says {target['state']}")
        if source and target and (source["state"] == "aborted") != (target["state"] == "aborted"):
            raise LabError(f"the records differ: {source['state']} and {target['state']}")
        if said.code == 0 and not moved:
            raise LabError("ppmr migrate said that all is well")
        owner, other = (self.target, self.source) if moved else (self.source, self.target)

        def other_is_gone():
            state = witness.state(other)
            if state == RUNS:
                raise LabError(f"the copy on {other.name}, which does not own it, runs")
            return state == ABSENT

        wait_until(
            other_is_gone,
            5,
            f"the copy on {other.name}, which does not own it, to go (it is {witness.state(other)})",
        )
        nodes = [self.source.name, self.target.name] if moved else [self.source.name]
        try:
            wait_until(
                lambda: witness.state(owner) == RUNS,
                5,
                f"the copy on {owner.name}, which owns it, to run; it is {witness.state(owner)}, and ppmr said: {said.said}",
            )
            witness.wait_for_growth()
        except LabError:
            if not may_be_lost_:
                raise
            wait_until(
                lambda: witness.state(owner) == ABSENT,
                5,
                f"the copy on {owner.name} that is lost to be gone",
            )
            witness.check_log([nodes, nodes[:1]])
            if moved and "MEMORY LOST" not in target["error"]:
                raise LabError(
                    "the process is lost, and the target's record does not say so"
                ) from None
            return LOST
        witness.check_log([nodes])
        if moved:
            return "moved"
        self.world.migrate(
            witness.pid, options=["--timeout", 20], environment=self._environment
        ).ok()
        witness.wait_for_growth()
        wait_until(
            lambda: witness.state(self.source) == ABSENT,
            5,
            "the copy on the source to be gone after the clean retry",
        )
        if witness.state(self.target) != RUNS:
            raise LabError(f"the clean retry left no copy: {witness.state(self.target)}")
        witness.check_log([[self.source.name, self.target.name]])
        return "stayed"

    def _records(self, role, witness):
        """Of the migrations of this witness: those before it may have had the same pid."""
        return [
            record
            for record in self.world.records(role)
            if record["history"][0][1] > witness.began_ns
        ]

    def _evidence(self, witness):
        said = []
        for role in ("source", "target"):
            for record in self._records(role, witness):
                said.append(
                    f"{role}: {record['state']} {[h[0] for h in record['history']]} error={record['error']!r} told={record['peer_told']} tree={record['trees'][0]['phase']}"
                )
        return "\n".join([*said, self.world.logs(newest=1)])


def choose(cases, count, seed):
    """`count` cases, every one of `cases` at least once if there is room, in an order that the seed gives."""
    generator = random.Random(seed)
    chosen = []
    while len(chosen) < count:
        round_ = list(cases)
        generator.shuffle(round_)
        chosen += round_
    return [
        (*case[:3], generator.random() < 0.5 if case[3] is None else case[3])
        for case in chosen[:count]
    ]


def play_plain_criu_kill(arena, seed):
    """A `criu dump` of a witness without ppmr, killed at a random moment from its begin on. Returns whether the process survived that."""
    witness = arena.new_witness()
    images = arena.source.scratch(f"plain-{witness.log.parent.name}")
    try:
        dump = arena.source.popen(
            [
                find_criu(),
                "dump",
                "-t",
                witness.pid,
                "-D",
                images,
                "-W",
                images,
                "-o",
                "dump.log",
                "--leave-running",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        found = wait_until(
            lambda: arena.find_criu(arena.source, "dump", images) or dump.poll() is not None,
            10,
            "criu dump to begin",
            interval=0.0005,
        )
        time.sleep(random.Random(seed).uniform(0, IN_THE_MIDDLE_WITHIN))
        for pid in found if found is not True else []:
            arena._signal(pid, signal.SIGKILL)
        dump.wait(timeout=20)
        try:
            witness.wait_for_growth()
        except LabError:
            if witness.state(arena.source) != ABSENT:
                raise
            return False
        return True
    finally:
        witness.end()
        arena.source.drop_scratch(images)
