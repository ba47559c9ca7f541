"""Plays one failure case after the other and judges each with an oracle.

A case stops a migration of a witness (tests/programs/witness.cc) at a state, lets something fail,
lets the migration go on, and repairs the failure: daemons that died are started again. Nobody runs
`ppmr migrate --recover`: the settlers of the daemons end what is open, for which they have
`--timeout` + 30 s. Then the oracle checks:

- No count occurs twice in the witness's log, its lines follow on from each other and in time, and
  its memory is correct. It ran on the source, then on the target if it moved, and on no other node.
- Exactly one copy runs, on the node that the records name as the owner, and its log grows. The
  other copy executes none of its own code, and what is left of it (a task with SIGKILL pending, or
  one that CRIU has restored and not released) is gone within seconds. The machine's speed decides
  how long that takes, so the oracle does not judge by time: a copy that executed anything is in the
  log.
- No migration is left open, and a migration without a failure succeeds.
- Nothing is left of a move: no program, no checkpoint and none of its memory (except of a lost
  process, which its user may still want), no frozen control group; and where the process stays, no
  filter rule of CRIU, and its TCP connection works. No mapping of the process is registered with a
  userfaultfd, and no program that outlives the move holds one. runc lists a container (RUNC) where
  it runs, and only there.

Two witnesses that move together (SEVERAL) have one fate. The original of a copy (COPY) runs on,
whatever fails, and the copy runs or is gone.

A process may be lost only where failure_cases.may_be_lost() says so.
"""
import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from .criu import IS_A_SUPERVISORS, find_criu
from .failure_cases import (
    COPY,
    EAGER,
    IN_THE_MIDDLE,
    LEAVING,
    LINKS,
    POST_COPY,
    ROUND,
    RUNC,
    SEVERAL,
    STOP_OF_ROUND,
    STOPS,
    SYSTEMD,
    VICTIMS,
    may_be_lost,
    where_is,
)
from .migrations import Migrations
from .node import LabError, has_stopped, wait_until
from .pace import patience
from .tracking import is_tracked, userfaultfds
from .witness import ABSENT, RUNS, ContainerWitness, Witness

HOLD_LIMIT = 2  # seconds; --timeout of the migrations
PEER_TIMEOUT = 2  # seconds; --peer-timeout of the daemons
LONG = HOLD_LIMIT + 1.5  # seconds that a cut lasts
SHORT = 0.3  # seconds that a pause or a blink lasts
# Also pauses these states to keep the first state: otherwise the coordinator would commit as soon
# as the target is ready.
ALSO_HELD = {"target:ready": ["source:sealed"]}
# Seconds after the start of a CRIU. An undisturbed dump or restore of a witness takes longer.
IN_THE_MIDDLE_WITHIN = 0.06
ROUND_SECONDS = 1  # a failure in a round comes within these
OPTIONS_OF = {
    EAGER: ["--eager"],
    POST_COPY: ["--post-copy"],
    COPY: ["--leave-running"],
    ROUND: ["--max-rate", "1MiB"],  # the memory of a witness takes two seconds
}
CRIU_OPTIONS = ["--tcp-established"]  # a witness has a connection
MARK_OF_CRIU = "0xc114"  # in its filter rules
SLOW = "8mbit"  # at this rate the memory of a witness arrives about a second after the decision

# Verdict: correct, but the victim, which the state releases, had already ended.
GONE = "gone already"
LOST = "lost"  # verdict: the process is lost, and may_be_lost() allows that
COPIED = "copied"  # verdict: the original and its copy run
SURVIVED, HANGS = "survived", "hangs"  # verdicts of a plain dump that was killed
# Victims of several programs.
PARTS = {
    "both daemons": ["source daemon", "target daemon"],
    "source group": ["migrate", "source runc", "source criu", "source relay", "page reader"],
    "target group": [
        *("supervisor", "target runc", "target criu", "target relay", "pager", "guard", "agent")
    ],
}
TRIES = 3  # attempts to reach a state; the oracle judges each


PROGRAMS_OF_A_MOVE = (
    b"migrate",
    b"migration-relay",
    b"migration-restore",
    b"serve-pages",
    b"guard-pages",
    b"page-reader",
)


class Wrong(LabError):
    """The oracle's objection."""


def is_settled(role, record):
    """Decides as OwnershipRecord::is_settled(): an aborted move is over when its processes go on.
    """
    if role == "source" and record["state"] == "aborted":
        return record["peer_notified"] and record["tasks_resumed"]
    return record["state"] in ("finished", "aborted")


class Arena:
    """Two nodes with mounts on which cases are played one after the other."""

    def __init__(self, lab, number=0, seed=0):
        self.lab, self.number = lab, number
        self.source, self.target, self.link = lab.pair(f"source{number}", f"target{number}")
        self.pauses = lab.directory / f"pauses-{number}"
        self.pauses.write_text("")
        self._no_restore = lab.directory / f"no-restore-{number}"
        # Shell commands that run before each CRIU. A test breaks the protocol with these commands.
        self.mutation = lab.directory / f"mutation-{number}"
        # Called with the witness when the state is reached, before anything fails.
        self.before_failure = lambda witness: None
        criu = lab.directory / f"criu-{number}"
        criu.write_text(
            f"#!/bin/sh\n[ -e {self.mutation} ] && . {self.mutation}\n"
            f"{IS_A_SUPERVISORS} && [ -e {self._no_restore} ] && "
            '{ echo "Error (criu/x.c:1): no restore"; exit 1; }\n'
            f'exec {find_criu()} "$@"\n'
        )
        criu.chmod(0o755)
        self._environment = {"PPMR_PAUSE_FILE": str(self.pauses), "PPMR_CRIU": str(criu)}
        self.migrations = None
        self._witnesses = 0
        self._kept = set()  # names of checkpoints of lost processes
        self._groups = []  # control groups of containers
        self._random = random.Random(f"{seed} {number}")

    def open(self):
        options = ["--peer-timeout", PEER_TIMEOUT]
        self.migrations = Migrations(
            self.source,
            self.target,
            self.lab.directory / "private",
            options,
            ["--pool-size", "64MiB", *options],
            name=f"arena{self.number}",
            environment=self._environment,
            settles=True,
        )
        return self

    def close(self):
        if self.migrations:
            self.migrations.close()
        for group in self._groups:
            for path in Path("/sys/fs/cgroup").glob(f"**/{group}"):
                with contextlib.suppress(OSError):  # it has not ended yet
                    path.rmdir()

    def new_witness(self, mode=None):
        self._witnesses += 1
        directory = self.lab.home / f"witness-{self.number}-{self._witnesses}"
        if mode == RUNC:
            group = f"{self.lab.directory.name}-{directory.name}"
            self._groups.append(group)
            return ContainerWitness(directory, self.source, self.target, group)
        return Witness(directory, self.source, self.target, connected=True)

    def _start_migrate(self, witnesses, mode, options):
        pids = [one.pid for one in witnesses]
        if mode == RUNC:
            pids, options = [], ["--runc", witnesses[0].name, *options]
        return self.migrations.start_migrate(*pids, options=options, criu_options=CRIU_OPTIONS)

    # -- one case

    def play(self, stop, what, how, mode):
        """Returns the verdict: "moved", "stayed", GONE, or LOST where that is allowed."""
        for attempt in range(TRIES):
            # On a busy machine the short timeout may end a migration before it reaches the state,
            # so each attempt doubles it.
            verdict = self._play(stop, what, how, mode, HOLD_LIMIT << attempt)
            if verdict:
                return verdict
        raise Wrong(
            f"{stop}, {what}, {how}: {TRIES} migrations ended before they reached this state"
        )

    def _play(self, stop, what, how, mode, hold_limit):
        """Returns None if the migration ended before the state and the oracle has no objection."""
        witnesses = [self.new_witness(mode) for _ in range(2 if mode == SEVERAL else 1)]
        witness = witnesses[0]
        cut = None
        victims = []
        held = [stop, *ALSO_HELD.get(stop, [])] if stop != STOP_OF_ROUND else []
        where = where_is(what, stop, mode) if what in VICTIMS else None
        try:
            self.pauses.write_text(" ".join(held))
            if mode == POST_COPY:
                self.link.limit(SLOW)
            if stop.endswith(":aborted"):
                # Without this failure there would be no reason for an abort.
                self._no_restore.touch()
            running = self._start_migrate(
                witnesses, mode, ["--timeout", hold_limit, *OPTIONS_OF.get(mode, [])]
            )
            reached = self._await_states(held, running)
            if mode == ROUND:
                reached = self._await_round(running)
            if reached:
                self.before_failure(witness)
            if reached and what in LINKS:
                cut = what
                self._cut(what)
                time.sleep(LONG if how == "cut" else SHORT)  # the duration of the failure
            elif reached:
                if where == IN_THE_MIDDLE:
                    self._go_on(held)
                victims = self._await_victims(what, where, running, witnesses, mode)
                self._fail(victims, how)
            self._no_restore.unlink(missing_ok=True)
            self._go_on(held)
            if victims and how in ("stop", "pause"):
                time.sleep(
                    hold_limit + 1.5 if how == "stop" else SHORT
                )  # the duration of the failure
                self._continue(victims, running)
            if cut and how == "blink":
                self._restore_link()
                cut = None
            done = running.wait(timeout=60)
            if cut:
                self._restore_link()
                cut = None
            self.link.limit()
            self._restart_daemons(PARTS.get(what, [what]) if how == "kill" else [])
            self._await_settled(witness, hold_limit)
            may_end = reached and may_be_lost(stop, what, how, mode)
            if mode == COPY:
                verdict = self._judge_copy(witness, done, may_end)
            else:
                was_ended = what in ("original", "restored tasks")
                verdict = self._judge_all(witnesses, done, may_end, was_ended)
            self._check_leftovers(witness.state(self.source) == RUNS, verdict == LOST)
            self._check_untracked(witnesses)
            if mode == RUNC and verdict != LOST:
                self._check_containers(witnesses, verdict)
            if verdict == "stayed":
                for one in witnesses:
                    self._check_retry(one, mode)
            if not reached:
                return None
            return GONE if what in VICTIMS and not victims else verdict
        except (LabError, OSError) as error:
            raise Wrong(
                f"{stop}, {what}, {how}, {mode}: {error}\n{self._evidence(witness)}"
            ) from error
        finally:
            self._no_restore.unlink(missing_ok=True)
            self._go_on([f"{role}:{state}" for role in ("source", "target") for state in STOPS])
            for pid in victims:
                self._signal(pid, signal.SIGCONT)
            if cut:
                self._restore_link()
            self.link.limit()
            self._end_all()
            for one in witnesses:
                one.end()

    def _await_round(self, running):
        """Returns False if the migration ended before it copied memory in a round."""

        def copies():
            return any(event.get("event") == "copying" for event in running.events())

        wait_until(lambda: copies() or not running.running(), 15, "a live round to begin")
        time.sleep(self._random.uniform(0, ROUND_SECONDS))
        return copies()

    def _end_all(self):
        """Ends all copies, and removes the rules of connections that have moved or ended: the next
        witness may have the same ports. A copy has a pid namespace of its own, so its pid is not
        the witness's.
        """
        for node in (self.source, self.target):
            node.run(["pkill", "-9", "-x", "witness"], check=False)
            for chain in ("INPUT", "OUTPUT") if self._filter_rules(node) else ():
                node.run(["iptables", "-w", "-F", chain])

    def _await_states(self, held, running):
        """Returns False if the migration ended before it reached the states."""
        for state in held:
            try:
                self.migrations.wait_until_paused(*state.split(":"), running, timeout=15)
            except LabError:
                if running.running():
                    raise
                return False
        return True

    def _go_on(self, held):
        self.pauses.write_text("")
        for state in held:
            self.migrations.go_on(*state.split(":"))

    def _fail(self, victims, how):
        first = {"kill": [signal.SIGKILL], SYSTEMD: [signal.SIGTERM, signal.SIGCONT]}
        for number in first.get(how, [signal.SIGSTOP]):
            for pid in victims:
                self._signal(pid, number)
        if how == SYSTEMD:
            time.sleep(SHORT)  # systemd waits longer; a program that ignores SIGTERM gains nothing
            for pid in victims:
                self._signal(pid, signal.SIGKILL)

    def _await_victims(self, what, where, running, witnesses, mode):
        if where == LEAVING:
            return self._find(what, running, witnesses, mode)
        interval = 0.0005 if where == IN_THE_MIDDLE else 0.005
        found = wait_until(
            lambda: self._find(what, running, witnesses, mode)
            or (not running.running() and where == IN_THE_MIDDLE),
            10,
            f"{what} to start",
            interval=interval,
        )
        if found is True:
            return []
        if where == IN_THE_MIDDLE:
            time.sleep(self._random.uniform(0, IN_THE_MIDDLE_WITHIN))
        return found

    def _find(self, what, running, witnesses, mode):
        """Returns the host pids of a victim. With several CRIUs, returns the pids of all."""
        if what in PARTS:
            found = [self._find(part, running, witnesses, mode) for part in PARTS[what]]
            return [pid for of_part in found for pid in of_part]
        if what in ("original", "restored tasks"):
            node = self.source if what == "original" else self.target
            return [pid for witness in witnesses for pid in witness.host_pids(node)]
        if what.endswith(" runc"):
            word = b"checkpoint" if what == "source runc" else b"restore"
            node = self.source if what == "source runc" else self.target
            return node.find_processes(lambda words: words[0].endswith(b"runc") and word in words)
        if what == "agent":
            return self.target.find_processes(lambda words: words[1] == b"migration-agent")
        if what == "migrate":
            return [running.host_pid] if running.running() and running.host_pid else []
        node = self.source if what.startswith("source") else self.target
        if what.endswith(" daemon"):
            daemon = self.migrations.source if node is self.source else self.migrations.target
            return [daemon.host_pid] if daemon.running() else []
        if what == "supervisor":
            return self._find_supervisors()
        if what == "guard":
            directory = bytes(self.migrations.states["target"])
            return node.find_processes(
                lambda words: words[1] == b"guard-pages"
                and any(word.startswith(directory) for word in words)
            )
        if what.endswith(" relay"):
            return node.find_processes(lambda words: words[1] == b"migration-relay")
        if what == "page reader":
            directory = b"--index=" + bytes(self.migrations.states["source"])
            return self.source.find_processes(
                lambda words: words[1] == b"page-reader"
                and any(word.startswith(directory) for word in words)
            )
        path = self.migrations.out if node is self.source else self.migrations.in_
        if what == "pager":
            return node.find_processes(
                lambda words: words[1] == b"serve-pages"
                and any(word.startswith(bytes(path)) for word in words)
            )
        word = {"source criu": "dump", "target criu": "restore"}[what]
        return self._find_waiting_criu(node) if mode == ROUND else self.find_criu(node, word, path)

    def _find_supervisors(self):
        state_directory = bytes(self.migrations.states["target"])
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

        return node.find_processes(wanted)  # without the tasks that a CRIU restores

    @staticmethod
    def _find_waiting_criu(node):
        """Returns the host pids of the CRIUs that were started ahead and have no request yet."""
        return node.find_processes(lambda words: words[0].endswith(b"criu") and words[1] == b"swrk")

    def _continue(self, victims, running):
        # nsenter stops when its child stops, but a little later, and does not continue when the
        # child continues. A SIGCONT before it stops would have no effect.
        started = (running, self.migrations.source, self.migrations.target)
        parents = [one.process.pid for one in started if one.running() and one.host_pid in victims]
        for pid in parents:
            wait_until(lambda pid=pid: has_stopped(pid), 30, "nsenter to stop")
        for pid in [*victims, *parents]:
            self._signal(pid, signal.SIGCONT)

    @staticmethod
    def _signal(pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def _cut(self, direction):
        for node, interface, _ in self.link.ends:
            if direction == "both ways" or (direction == "to the source") == (node is self.source):
                node.run(["iptables", "-I", "INPUT", "-i", interface, "-j", "DROP"])

    def _restore_link(self):
        for node, _, _ in self.link.ends:
            node.run(["iptables", "-F", "INPUT"])

    def _restart_daemons(self, killed):
        for daemon in (self.migrations.source, self.migrations.target):
            if f"{daemon.role} daemon" in killed:
                daemon.process.wait(
                    timeout=patience(30)
                )  # nsenter ends a little later than the daemon
        self.migrations.restart_dead()

    def _await_settled(self, witness, hold_limit):
        """Waits until the daemons have settled the migration. No person runs `--recover`."""

        def open_records():
            records = [
                (role, one) for role in ("source", "target") for one in self._records(role, witness)
            ]
            return [one for role, one in records if not is_settled(role, one)]

        try:
            wait_until(
                lambda: not open_records(), hold_limit + 30, "the migration to settle", interval=0.1
            )
        except LabError as late:
            if any(tree["lost"] for one in open_records() for tree in one["trees"]):
                return  # _check_records() judges it
            raise LabError(f"{late}; it is still open") from None

    # -- the oracle

    def _judge_all(self, witnesses, done, loss_is_allowed, was_ended):
        verdicts = {self._judge(one, done, loss_is_allowed, was_ended) for one in witnesses}
        # One of several trees may be lost although the others have moved or stayed.
        if len(verdicts) > 1 and verdicts not in ({"moved", LOST}, {"stayed", LOST}):
            raise LabError(f"two trees of one migration have two fates: {sorted(verdicts)}")
        return LOST if LOST in verdicts else verdicts.pop()

    def _judge_copy(self, witness, done, original_may_end):
        source, _ = self._check_records(witness, True)
        if done.code == 0 and (source is None or source["state"] != "finished"):
            raise LabError("ppmr migrate reported success, but nothing was copied")
        if witness.state(self.source) != RUNS and not original_may_end:
            wait_until(
                lambda: witness.state(self.source) == RUNS,
                5,
                f"the original to run on; it is {witness.state(self.source)}",
            )
        if witness.state(self.source) != ABSENT:
            witness.wait_for_growth()
        witness.check_log_of_copy()
        copied = bool(self.target.run(["pgrep", "-x", "witness"], check=False).stdout)
        self.target.run(["pkill", "-9", "-x", "witness"], check=False)
        return COPIED if copied else "not copied"

    def _judge(self, witness, done, loss_is_allowed, was_ended):
        """`was_ended`: the case itself has ended the process, which no record needs to know."""
        source, target = self._check_records(witness, loss_is_allowed)
        moved = source is not None and source["state"] == "finished"
        if done.code == 0 and not moved:
            raise LabError("ppmr migrate reported success, but the process did not move")
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
                f"the copy on {owner.name}, which owns it, to run; it is {witness.state(owner)}; "
                f"output of ppmr: {done.output}",
            )
            witness.wait_for_growth()
        except LabError:
            if not loss_is_allowed:
                raise
            wait_until(
                lambda: witness.state(owner) == ABSENT,
                5,
                f"the lost copy on {owner.name} to be gone",
            )
            witness.check_log([nodes, nodes[:1]])
            if moved and not was_ended and not any(tree["lost"] for tree in target["trees"]):
                raise LabError(
                    "the process is lost, but the target's record does not say so"
                ) from None
            return LOST
        witness.check_log([nodes])
        return "moved" if moved else "stayed"

    def _check_records(self, witness, loss_is_allowed):
        """Returns the records of the last migration at the source and the target. None: the node
        has no record.
        """
        source = next(iter(self._records("source", witness)), None)
        target = next(
            (
                record
                for record in self._records("target", witness)
                if source and record["id"] == source["id"]
            ),
            None,
        )
        if source and source["state"] not in ("finished", "aborted"):
            raise LabError(f"the source's record is in state {source['state']}")
        if target and target["state"] not in ("finished", "aborted"):
            if not (loss_is_allowed and target["state"] == "running"):
                raise LabError(f"the target's record is in state {target['state']}")
        if source and target and (source["state"] == "aborted") != (target["state"] == "aborted"):
            raise LabError(f"the records differ: {source['state']} and {target['state']}")
        return source, target

    def _check_leftovers(self, stays, is_lost):
        for node in (self.source, self.target):
            wait_until(
                lambda: not self._programs_left(node),
                10,
                f"the programs of the move on {node.name} to end: {self._programs_left(node)}",
            )
        # The checkpoints of a lost process stay, because a person may want them.
        if is_lost:
            self._kept.update(self.target.names(self.migrations.in_))
        wait_until(
            lambda: self._kept.issuperset(self.target.names(self.migrations.in_)),
            30,  # the settler of a source removes them, every 20 s
            f"the checkpoints to go: {self.target.names(self.migrations.in_)}",
        )
        if not self._kept:
            used = self.migrations.target.status()["store"]["used_bytes"]
            if used != 0:
                raise LabError(f"{used} bytes of a checkpoint are left at the target")
        wait_until(lambda: not self._frozen_groups(), 10, "the frozen control groups to go")
        # The rules of a connection that has moved stay, because this kernel must not answer its
        # peer.
        rules = self._filter_rules(self.source) + self._filter_rules(self.target)
        if stays and rules:
            raise LabError(f"filter rules of CRIU are left: {rules}")

    def _check_untracked(self, witnesses):
        for node in (self.source, self.target):
            holders = userfaultfds(node)
            if holders:
                raise LabError(f"on {node.name} the move is over, but these track memory: {holders}")
            for one in witnesses:
                if any(is_tracked(pid) for pid in one.host_pids(node)):
                    raise LabError(f"the witness on {node.name} is still tracked")

    def _frozen_groups(self):
        """Returns the frozen control groups of this arena's migrations, by their IDs."""
        ids = [record["id"] for record in self.migrations.records("source")]
        wanted = {f"ppmr-frozen-{id}" for id in ids}
        # Groups of others come and go: os.walk() passes over them.
        return [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if name in wanted]

    @staticmethod
    def _filter_rules(node):
        saved = node.run(["iptables-save", "-t", "filter"], check=False).stdout
        return [line for line in saved.splitlines() if MARK_OF_CRIU in line.lower()]

    @staticmethod
    def _programs_left(node):
        return node.find_processes(
            lambda words: words[1] in PROGRAMS_OF_A_MOVE
            or words[0].startswith(b"criu: ")
            or words[0].endswith(b"runc")
        )

    def _check_containers(self, witnesses, verdict):
        """runc knows each container where it runs, and only there."""
        expected = [verdict == "stayed", verdict == "moved"]
        nodes = (self.source, self.target)
        for one in witnesses:
            wait_until(
                lambda one=one: [one.is_listed(node) for node in nodes] == expected,
                10,
                f"runc to list {one.name} where it runs, which {verdict}",
            )

    def _check_retry(self, witness, mode):
        """A migration without a failure succeeds."""
        self._start_migrate([witness], mode, ["--timeout", 20]).wait(60).ok()
        witness.wait_for_growth()
        wait_until(
            lambda: witness.state(self.source) == ABSENT,
            5,
            "the copy on the source to be gone after the retry",
        )
        if witness.state(self.target) != RUNS:
            raise LabError(f"after the retry the copy is {witness.state(self.target)}")
        witness.check_log([[self.source.name, self.target.name]])

    def _records(self, role, witness):
        """Returns only records of this witness, because an earlier witness may have had the same
        pid.
        """
        return [
            record
            for record in self.migrations.records(role)
            if record["history"][0][1] > witness.began_ns
        ]

    def _evidence(self, witness):
        lines = []
        for role in ("source", "target"):
            for record in self._records(role, witness):
                lines.append(
                    f"{role}: {record['state']} {[h[0] for h in record['history']]} error={record['error']!r} "
                    f"peer_notified={record['peer_notified']} tree={record['trees'][0]['phase']}"
                )
        return "\n".join([*lines, self.migrations.logs(newest=1)])

    # -- CRIU without ppmr

    def play_plain_criu_kill(self, seed):
        """Kills a `criu dump` of a witness, without ppmr, at a random moment after its start.

        Returns SURVIVED, LOST, or HANGS: the witness waits for its connection, which nobody takes
        out of repair mode, or behind filter rules that nobody removes.
        """
        witness = self.new_witness()
        images = self.source.scratch(f"plain-{witness.log.parent.name}")
        words = [find_criu(), "dump", "-t", witness.pid, "-D", images, "-W", images, *CRIU_OPTIONS]
        try:
            dump = self.source.popen(
                [*words, "-o", "dump.log", "--leave-running"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            found = wait_until(
                lambda: self.find_criu(self.source, "dump", images) or dump.poll() is not None,
                10,
                "criu dump to start",
                interval=0.0005,
            )
            time.sleep(random.Random(seed).uniform(0, IN_THE_MIDDLE_WITHIN))
            for pid in found if found is not True else []:
                self._signal(pid, signal.SIGKILL)
            dump.wait(timeout=patience(20))
            try:
                witness.wait_for_growth()
            except LabError:
                self.source.run(["iptables", "-F"])  # the next case must not find CRIU's rules
                return LOST if witness.state(self.source) == ABSENT else HANGS
            return SURVIVED
        finally:
            witness.end()
            self.source.drop_scratch(images)
