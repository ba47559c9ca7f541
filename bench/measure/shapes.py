"""How long trees of many shapes stand still when they move: `ppmr migrate` in its three modes,
beside CRIU with usual means.

*Downtime* is the time between the tree's last sign of life before its move and its first one after
it (`shape_trees.py`), so it includes the page faults that the program waits for. Of plain CRIU it
includes dump and restore, not the wait for the pids between them. *All memory in place* counts from
the same sign of life.
"""
import sys

from lab.node import LabError, wait_until
from lab.ppmr import Mounts, find_ppmr
from lab.move import now

from . import postgres_moves, redis_moves, touches
from .plan import Item, Outcome
from .rounds import rotate
from .shape_trees import Tree, await_free, filled, python, shapes
from .shape_ways import DEFAULT, LAZY_PAGES, MODES, POST_COPY, move_tree, ways_of, what_failed
from .spread import spread
from .testbed import flags
from .ways import room_in_pipes

SECTION = "shapes"
LARGE_MIB, LARGE_RUNS = 1024, 3  # a round of a larger tree may take a minute
EVACUATED_MIB = 8
EVACUATED_BEAT_S = 1.0  # the beats of so many processes would keep both cores busy
EVACUATED_FIRST_PID = 20000  # so many restores at once need thousands of pids

IN_PLACE = "all memory in place"
SENT = "received by the target, MB"
PSS, PSS_BEFORE = "PSS of the tree, MiB", "before its moves"


def mounts_for(testbed, mib):
    """Returns mounts with the product's defaults, except for the limit of the store. Its default,
    half of the free memory, would differ between rows. The rounds of a live move need more room
    than the memory."""
    testbed.nodes("veth")
    defaults = {
        "--allow-root-restart": None,
        "--state-dir": testbed.target.scratch(testbed.label("state")),
        "--memory-limit": f"{max(2048, 3 * mib + 1024)}MiB",
    }
    return Mounts(
        testbed.source,
        testbed.target,
        testbed.private,
        testbed.source_options,
        flags(defaults, testbed.target_options),
        name=testbed.label("shapes"),
    )


def runs_of(effort, mib):
    return effort.move_runs if mib <= LARGE_MIB else min(effort.move_runs, LARGE_RUNS)


class Moves:
    """The moves of one row: a tree made by `make()` for each, in every way or in those of `only`,
    in turn. `after(name of the way, tree)` is called for each move that counts."""

    def __init__(self, testbed, make, mib, only=(), after=lambda way, tree: None):
        self._testbed, self._make, self._mib = testbed, make, mib
        self._only, self._after = only, after
        self.not_measured, self.moved = {}, {}

    def run(self, runs):
        effort = self._testbed.effort
        with mounts_for(self._testbed, self._mib) as self._mounts, room_in_pipes():
            ways = [
                way
                for way in ways_of(self._testbed, self._mounts)
                if not self._only or way.name in self._only
            ]
            self.moved = {way.name: [] for way in ways}
            for number in range(effort.shape_warm_ups + runs):
                for way in rotate(ways, number):
                    if way.name in self.not_measured:
                        continue
                    self._move(way, counts=number >= effort.shape_warm_ups)
        for name in self.not_measured:
            self.moved.pop(name, None)
        return self

    def _move(self, way, counts):
        # The memory may be missing because the target keeps free memory for its next source.
        if way.lacks_memory(self._mib):
            self._mounts.renew()
        if lacks := way.lacks_memory(self._mib):
            self.not_measured[way.name] = lacks
            return
        tree = self._make()
        try:
            moved = move_tree(self._testbed, way, tree)
            if counts:
                self.moved[way.name].append(moved)
                self._after(way.name, tree)
        except LabError as error:
            # If another way cannot move this shape, the report lists it with the reason. A failure
            # of ppmr fails the row.
            if way.is_ppmr:
                raise
            self.not_measured[way.name] = what_failed(error)
            print(f"\nbench: {way.name} does not manage this: {error}", file=sys.stderr, flush=True)
        finally:
            tree.end(self._testbed.source, self._testbed.target)
            tree.remove()

    def samples(self, value):
        return {name: [value(one) for one in found] for name, found in self.moved.items()}


def phases(moved):
    """Measures the phases of moves in the default mode, as `ppmr migrate` reports them."""
    return {
        f"{DEFAULT}: {what}, s": spread([one.summary[field] for one in moved]).median
        for what, field in (("dump", "dump_s"), ("seal", "seal_s"), ("restart", "restart_s"))
        if moved
    }


def ways_for(shape):
    return (DEFAULT, POST_COPY, LAZY_PAGES) if shape.writes else ()


def measure(testbed, shape):
    if missing := shape.missing(testbed.source):
        return Outcome(not_measured={"all ways": missing})
    moves = Moves(testbed, lambda: Tree(testbed, shape), shape.most_mib, ways_for(shape))
    moves.run(runs_of(testbed.effort, shape.mib))
    return Outcome(
        moves.samples(lambda one: one.downtime),
        phases(moves.moved.get(DEFAULT)),
        not_measured=moves.not_measured,
        also={
            IN_PLACE: moves.samples(lambda one: one.complete),
            SENT: moves.samples(lambda one: one.sent_mb),
            PSS: {
                **moves.samples(lambda one: one.pss_after_mib),
                PSS_BEFORE: [one.pss_before_mib for found in moves.moved.values() for one in found],
            },
        },
    )


def evacuate(testbed, count):
    """Measures the seconds that `ppmr evacuate` needs for many processes."""
    taken = []
    with mounts_for(testbed, count * EVACUATED_MIB) as mounts, room_in_pipes():
        mounts.await_ready()
        for number in range(testbed.effort.shape_warm_ups + testbed.effort.move_runs):
            home = testbed.lab.home / testbed.label("evacuated")
            home.mkdir()
            beats = [home / f"beats{number}" for number in range(count)]
            pids = [
                testbed.source.spawn(
                    [*python(filled(EVACUATED_MIB), EVACUATED_BEAT_S), path],
                    first_pid=EVACUATED_FIRST_PID,
                )
                for path in beats
            ]
            try:
                wait_until(
                    lambda: all(path.exists() and path.stat().st_size for path in beats),
                    60 + count,
                    f"{count} processes to run",
                )
                testbed.target.keep_helpers_low()
                began = now()
                state = testbed.source.scratch(testbed.label("state"))
                testbed.source.run(
                    [
                        *(find_ppmr(), "evacuate", "--mount", mounts.out, "--state-dir", state),
                        *("--match", str(home), "--json"),
                    ],
                    timeout=300,
                )
                if number >= testbed.effort.shape_warm_ups:
                    taken.append(now() - began)
                left = [pid for pid in pids if not testbed.target.alive(pid)]
                if left:
                    raise LabError(f"{len(left)} of {count} processes did not move")
            finally:
                for node in (testbed.source, testbed.target):
                    node.run(["kill", "-KILL", *pids], check=False)
                    for pid in pids:
                        await_free(node, pid)
    return Outcome({"ppmr evacuate": taken})


def plan(testbed):
    effort = testbed.effort
    ways = len(MODES) + 4

    def item(series, name, mib, parameters, call, seconds):
        rounds = effort.shape_warm_ups + runs_of(effort, mib)
        return Item(SECTION, series, name, parameters, "s", call, 4 + rounds * seconds)

    for shape in shapes(effort):
        yield item(
            "downtime",
            shape.name,
            shape.mib,
            {"shape": shape.name, "mib": shape.mib},
            lambda shape=shape: measure(testbed, shape),
            (len(ways_for(shape)) or ways) * (1.5 + shape.mib / 400),
        )
    count = effort.evacuated
    yield item(
        "evacuation",
        f"{count} processes of {EVACUATED_MIB} MiB",
        count * EVACUATED_MIB,
        {"count": count, "mib_each": EVACUATED_MIB},
        lambda: evacuate(testbed, count),
        count / 2,
    )
    yield from touches.plan(testbed, SECTION, Moves)
    yield from redis_moves.plan(testbed, SECTION, Moves)
    yield from postgres_moves.plan(testbed, SECTION, Moves)
