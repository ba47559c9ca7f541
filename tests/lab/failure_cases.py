"""Every state of a migration x everything that can fail in it. `arena.py` plays these cases and
judges them."""
import random
import re

from .programs import REPOSITORY

# Where a migration can be stopped. The keys must be the states of ownership_record.h: see
# missing_states().
STOPS = {
    "preparing": ["source:preparing"],
    "dumping": ["source:dumping"],
    "frozen": ["source:frozen"],
    "sealed": ["source:sealed"],
    "committed": ["source:committed"],
    "restoring": ["target:restoring"],
    "ready": ["target:ready"],
    "running": ["target:running"],
    "finished": ["source:finished", "target:finished"],
    "aborted": ["source:aborted", "target:aborted"],
}
VICTIMS = [
    "source daemon",
    "target daemon",
    "migrate",
    "supervisor",
    "source criu",
    "source relay",
    "target criu",
    "target relay",
    "pager",
    "guard",
    "page reader",
    "agent",
    "source runc",
    "target runc",
    "both daemons",
    "restored tasks",
    "source group",
    "target group",
    "original",
]
# How a victim fails. "systemd" is what systemd sends to a control group that it stops: SIGTERM and
# SIGCONT, then SIGKILL.
KILL, STOP, PAUSE, SYSTEMD = "kill", "stop", "pause", "systemd"
HOWS_OF = {
    "both daemons": [KILL],
    "restored tasks": [KILL],
    "source group": [SYSTEMD],  # all programs of the move at the source, without the daemon
    "target group": [SYSTEMD],
    "original": [SYSTEMD],  # the process that moves, at the source
}
LAZY, EAGER, POST_COPY = WAYS = ["lazy", "eager", "post-copy"]
# SEVERAL: two trees in one migration. COPY: --leave-running. RUNC: a container. ROUND: a live round
# that lasts.
SEVERAL, COPY, RUNC, ROUND = "several", "copy", "runc", "round"
MODES = [*WAYS, SEVERAL, COPY, RUNC]
# The modes in which a victim exists, for victims that do not exist in every mode.
MODES_OF = {
    "pager": [LAZY, SEVERAL, RUNC],
    "guard": [LAZY, POST_COPY, SEVERAL, RUNC],
    "page reader": [LAZY, POST_COPY, SEVERAL, RUNC],
    "restored tasks": [*WAYS, SEVERAL, RUNC],
    "source runc": [RUNC],
    "target runc": [RUNC],
}
# In a live round both CRIUs and their relays are there, and wait.
STOP_OF_ROUND = "source:round"
VICTIMS_OF_ROUND = [
    victim
    for victim in VICTIMS
    if victim not in ("pager", "guard", "restored tasks", "source runc", "target runc")
]
LINKS = ["to the source", "to the target", "both ways"]

# Where each CRIU, with its relay, its pager and its guard, and the supervisor are at each state.
# HELD: it waits for the record. It must be there, or the case is wrong. IN_THE_MIDDLE: it starts
# after the state has been recorded. The case waits for it, then for a random moment. LEAVING: the
# state releases it. It may or may not still be there. Not listed: it does not exist yet or no
# longer exists, so there is no case.
HELD, IN_THE_MIDDLE, LEAVING = "held", "in the middle", "leaving"
WHERE_CRIU_IS = {
    "source criu": {
        "source:dumping": IN_THE_MIDDLE,
        "source:frozen": HELD,
        "source:sealed": HELD,
        "source:committed": HELD,
        "target:ready": HELD,
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
        "target:running": LEAVING,
        "source:finished": LEAVING,
    },
    "supervisor": {
        "target:restoring": IN_THE_MIDDLE,
        "source:dumping": HELD,
        "source:frozen": HELD,
        "source:sealed": HELD,
        "source:committed": HELD,
        "target:ready": HELD,
        "target:running": LEAVING,
        "source:finished": LEAVING,
    },
    "page reader": {
        "source:dumping": IN_THE_MIDDLE,
        "source:frozen": LEAVING,
        "source:sealed": LEAVING,
        "source:committed": LEAVING,
        "target:restoring": LEAVING,
        "target:ready": LEAVING,
        "target:running": LEAVING,
    },
    "pager": {
        "source:sealed": HELD,
        "source:committed": HELD,
        "target:ready": HELD,
        "target:running": LEAVING,
        "source:finished": LEAVING,
    },
}
WHERE_CRIU_IS["guard"] = WHERE_CRIU_IS["pager"]
# The agent ends with its coordinator's connection.
WHERE_CRIU_IS["agent"] = {
    stop: LEAVING for stops in STOPS.values() for stop in stops if stop != "source:preparing"
}
WHERE_CRIU_IS["restored tasks"] = WHERE_CRIU_IS["target criu"]
for group in ("source group", "target group", "original"):
    WHERE_CRIU_IS[group] = {stop: LEAVING for stops in STOPS.values() for stop in stops}
for node in ("source", "target"):
    WHERE_CRIU_IS[f"{node} relay"] = WHERE_CRIU_IS[f"{node} criu"]
    # runc starts CRIU and ends after it.
    WHERE_CRIU_IS[f"{node} runc"] = WHERE_CRIU_IS[f"{node} criu"]


def where_is(victim, stop, mode=None):
    if stop == STOP_OF_ROUND:
        return HELD
    where = WHERE_CRIU_IS[victim].get(stop) if victim in WHERE_CRIU_IS else HELD
    # The hook does not hold the original of a copy, and the copy may run any moment.
    held = [f"{node} {what}" for node in ("source", "target") for what in ("criu", "relay")]
    released = mode == COPY and victim in held and where == HELD
    return LEAVING if released else where


def may_be_lost(stop, what, how, mode):
    """Returns whether docs/migration.md allows that the process is lost."""
    if stop == STOP_OF_ROUND:
        return what == "original"  # SIGTERM ends it
    if mode == COPY:
        return may_end_original_of_copy(what, how)
    if what == "original":
        return True  # SIGTERM ends it, unless it has moved: an end that its owner asked for
    may_run = stop in ("source:finished", "target:running", "target:restoring")
    if what == "restored tasks" and may_run:
        return True  # SIGKILL ends it where it already runs
    if what == "source group":
        # At the first three states CRIU may be in a dump (see below). In post-copy the page reader
        # of this group may still be needed.
        return stop in ("source:preparing", "source:dumping", "target:restoring") or (
            mode == POST_COPY and stop in ("source:committed", "target:running")
        )
    if what == "target group":
        return may_be_lost(stop, "target criu", "kill", mode) or may_be_lost(
            stop, "pager", "kill", mode
        )
    if what == "both daemons":
        return may_be_lost(stop, "target daemon", "kill", mode) or may_be_lost(
            stop, "source daemon", "kill", mode
        )
    if what == "source criu":  # CRIU's parasite is in the process: see Arena.play_plain_criu_kill
        return stop == "source:dumping" and how == "kill"
    decided = stop in (
        "source:committed",
        "target:running",
        "source:finished",
        "target:finished",
    )
    if mode == EAGER:
        return False
    if mode == POST_COPY and decided and stop not in ("source:finished", "target:finished"):
        # The memory may be on its way. A session ends with a daemon, or without contact for
        # --timeout.
        if what in ("source daemon", "target daemon", *LINKS):
            return how in ("kill", "stop", "cut")
        if what == "page reader":
            return how == "kill"
    if what == "target criu":
        # The pager ends with an error unless CRIU reports that all tasks are restored.
        return how == "kill" and stop in ("target:running", "source:finished")
    return decided and how == "kill" and what in ("target daemon", "pager")


def may_end_original_of_copy(what, how):
    """The original always goes on. CRIU's parasite is in it while it is dumped."""
    return what == "original" or (
        how in (KILL, SYSTEMD) and what in ("source criu", "source group")
    )


def missing_states():
    """Returns the states that only the matrix or only ownership_record.h has."""
    header = (REPOSITORY / "migration/records/ownership_record.h").read_text()
    body = header[header.index("enum class MigrationState {") :]
    states = {name.lower() for name in re.findall(r"^  k(\w+),", body[: body.index("};")], re.M)}
    return states ^ set(STOPS)


def all_cases():
    """(stop, what, how, mode) of every case.

    `how` is kill, stop (longer than the timeout), pause (shorter) or systemd for a victim, cut or
    blink for a link. `mode` is None where the case works in each.
    """
    for stops in STOPS.values():
        for stop in stops:
            for victim in VICTIMS:
                hows = HOWS_OF.get(victim, [KILL, STOP, PAUSE])
                for how in hows if where_is(victim, stop) else ():
                    yield from ((stop, victim, how, mode) for mode in MODES_OF.get(victim, [None]))
            for link in LINKS:
                for how in ("cut", "blink"):
                    yield stop, link, how, None
    for victim in VICTIMS_OF_ROUND:
        for how in HOWS_OF.get(victim, [KILL, STOP, PAUSE]):
            yield STOP_OF_ROUND, victim, how, ROUND
    for link in LINKS:
        for how in ("cut", "blink"):
            yield STOP_OF_ROUND, link, how, ROUND


def is_played_in(case, modes):
    """Returns whether a case is played in these modes. ROUND is a case of LAZY, because both are
    live moves. POST_COPY plays every case, because its pager is the same."""
    mode = LAZY if case[3] == ROUND else case[3]
    return mode is None or mode in modes or modes == [POST_COPY]


def with_mode(case, generator, modes):
    """Returns the case. If it works in each mode, chooses a random mode of `modes`."""
    if case[3] is None:
        return (*case[:3], generator.choice(modes))
    return (*case[:3], POST_COPY if modes == [POST_COPY] and case[3] != ROUND else case[3])


def choose(cases, count, seed, modes=tuple(MODES)):
    """Returns `count` cases in a seeded order. Every case comes once before a case comes twice."""
    generator = random.Random(seed)
    cases = [case for case in cases if is_played_in(case, modes)]
    chosen = []
    while len(chosen) < count:
        round_ = list(cases)
        generator.shuffle(round_)
        chosen += round_
    return [with_mode(case, generator, list(modes)) for case in chosen[:count]]
