"""A whole move of real processes, by every available way. A move is verified before its time
counts.

Times are CLOCK_REALTIME, the clock that a restored program shares with the observer. A *whole move*
ends with the first line that the program writes on the target; with several processes, with the
last of these lines. *Downtime* is the time from the last line on the source (of the first process
to stop) to that moment. A move is *complete* when it no longer needs the source.
"""
import sys

from lab.move import now
from lab.node import LabError, wait_until
from lab.ppmr import Mounts
from lab.programs import SteadyWorker, check_continuity, find_program, gap_between

from .loads import memory_facts
from .host import available_memory_bytes
from .migrate import can_migrate
from .pictures import SERIES_MAX, drawn_ways
from .plan import Item, Outcome
from .rounds import rotate
from .ways import LazyPagesMove, all_ways, room_in_pipes
from .testbed import MIB, flags

SECTION = "moves"
PROCESSES = (1, 2, 4, 8)
THREADS = 4
LINES_BEFORE = 20
LARGE_MIB, LARGE_RUNS = 1024, 3  # a larger move may take half a minute


def check_moved(worker):
    """Raises LabError if a line or a word of memory is wrong."""
    check_continuity(worker.lines())
    audit = worker.audit()
    if audit["wrong_words"] or audit["digest"] != audit["expected"]:
        raise LabError(f"{audit['wrong_words']} words of memory are wrong after the move")


class Member(SteadyWorker):
    """A steady worker started by a shell."""

    def __init__(self, node, directory):
        self.node, self.directory, self.threads = node, directory, THREADS
        self.pid = None

    def learn_pid(self):
        self.pid = self.lines()[-1]["pid"]


class Crowd:
    """Steady workers under one shell: a job of several processes in one tree."""

    def __init__(self, node, directory, count, mib_each):
        self.node = node
        self.workers = [Member(node, directory / f"worker{number}") for number in range(count)]
        for worker in self.workers:
            worker.directory.mkdir(parents=True)
        script = (
            'program=$1 size=$2; shift 2; for directory in "$@"; do "$program" "$directory" "$size" '
            + str(THREADS)
            + " & done; wait"
        )
        self.pid = node.spawn(
            [
                "sh",
                "-c",
                script,
                "crowd",
                find_program("steady_worker"),
                mib_each,
                *(worker.directory for worker in self.workers),
            ],
            log=directory / "log",
        )
        # The first touch of memory that the host has not backed can be as slow as 64 MiB per
        # second.
        wait_until(
            lambda: all((worker.directory / "ready").exists() for worker in self.workers)
            or not node.alive(self.pid),
            60 + count * mib_each / 64,
            f"{count} workers to be ready",
        )
        if not node.alive(self.pid):
            raise LabError(
                f"the workers ended at once; their output: {(directory / 'log').read_text().strip()}"
            )
        for worker in self.workers:
            worker.wait_for_lines(LINES_BEFORE)
            worker.learn_pid()

    def moved_to(self, node):
        self.node = node
        for worker in self.workers:
            worker.node = node

    def check(self):
        for worker in self.workers:
            check_moved(worker)

    def end(self):
        for worker in self.workers:
            if worker.pid:
                worker.end()
        self.node.signal(self.pid, 9)


def move_crowd(move, crowd):
    """Moves the crowd and waits until each worker has written a few lines on the target. Returns
    the timeline."""
    timeline = move.move_tree(crowd.pid)
    crowd.moved_to(move.target)
    gaps = []
    for worker in crowd.workers:
        worker.wait_for_lines(3, move.target, timeout=60, check=move.check)
        gaps.append(gap_between(worker.lines(), move.source, move.target))
    timeline.frozen = min(last["real_ns"] for last, _ in gaps) / 1e9
    timeline.running = max(first["real_ns"] for _, first in gaps) / 1e9
    move.finish()
    if "complete" not in timeline.extra:
        timeline.extra["complete"] = (
            now() if move.lazily or move.name == LazyPagesMove.name else timeline.running
        )
    timeline.extra["complete"] = max(timeline.extra["complete"], timeline.running)
    return timeline


def spans_of(timeline, streams):
    """The phases of one move since its dump began. With a stream, the transfer overlaps the
    dump."""

    def since(moment):
        return round(moment - timeline.dump_began, 4)

    spans = [["dump", 0.0, since(timeline.dump_done)]]
    spans.append(
        ["transfer", 0.0 if streams else since(timeline.dump_done), since(timeline.arrived)]
    )
    spans.append(
        ["restore", since(min(timeline.arrived, timeline.running)), since(timeline.running)]
    )
    if timeline.extra["complete"] > timeline.running:
        spans.append(
            ["pages still to come", since(timeline.running), since(timeline.extra["complete"])]
        )
    spans.append(["downtime", since(timeline.frozen), since(timeline.running)])
    return spans


def whole_move(testbed, way, count, mib_each):
    """Runs and verifies one move; returns its timeline."""
    label = testbed.label("move")
    crowd = None
    try:
        crowd = Crowd(testbed.source, testbed.lab.home / label, count, mib_each)
        way.move.prepare(label)
        try:
            testbed.await_fresh_memory()
            timeline = move_crowd(way.move, crowd)
            crowd.check()
        finally:
            crowd.end()
            crowd = None
            way.move.clean()
        return timeline
    finally:
        if crowd:
            crowd.end()


def measure(testbed, count, mib_each):
    effort = testbed.effort
    runs = effort.move_runs if count * mib_each <= LARGE_MIB else min(effort.move_runs, LARGE_RUNS)
    total = count * mib_each * MIB
    # The memory is needed four times: for the process, its images at the source and at the target,
    # and the restored process.
    if available_memory_bytes() < 4.5 * total:
        return Outcome(
            not_measured={
                "all ways": f"{total / MIB:.0f} MiB of processes need {4.5 * total / (1 << 30):.1f} GiB of free memory with images in tmpfs on both nodes of one machine"
            }
        )
    testbed.nodes("veth")
    defaults = {"--pool-size": max(256 * MIB, total + 64 * MIB)}
    migrating = can_migrate(testbed.source)
    if migrating:
        defaults |= {
            "--allow-root-restart": None,
            "--state-dir": testbed.target.scratch(testbed.label("state")),
        }
    with Mounts(
        testbed.source,
        testbed.target,
        testbed.private,
        testbed.source_options,
        flags(defaults, testbed.target_options),
        name=testbed.label("moves"),
    ) as mounts, room_in_pipes():
        ways, why_not = all_ways(testbed, mounts, migrating)
        if effort.only_drawn:
            drawn = drawn_ways([way.name for way in ways])
            ways = [way for way in ways if way.name in drawn]
        timelines = {way.name: [] for way in ways}
        for number in range(effort.warm_ups + runs):
            for way in rotate(ways, number):
                if way.name in why_not:
                    continue
                try:
                    timeline = whole_move(testbed, way, count, mib_each)
                except LabError as error:
                    # If another way does not work here, the report lists it as not measured. A
                    # failure of ppmr fails the row.
                    if way.name.startswith("ppmr"):
                        raise
                    why_not[way.name] = str(error).splitlines()[0][:300]
                    print(
                        f"\nbench: {way.name} does not work here: {error}",
                        file=sys.stderr,
                        flush=True,
                    )
                    continue
                if number >= effort.warm_ups:
                    timelines[way.name].append(timeline)
        memory = memory_facts(mounts.source, mounts.target)
    timelines = {way: found for way, found in timelines.items() if found}
    spans = {
        way: spans_of(
            sorted(found, key=lambda one: one.whole_move)[len(found) // 2],
            way.startswith(("ppmr", "RDMA")),
        )
        for way, found in timelines.items()
    }
    return Outcome(
        {way: [one.whole_move for one in found] for way, found in timelines.items()},
        memory,
        why_not,
        spans,
        {
            "downtime": {way: [one.downtime for one in found] for way, found in timelines.items()},
            "complete": {
                way: [one.extra["complete"] - one.dump_began for one in found]
                for way, found in timelines.items()
            },
        },
    )


def plan(testbed):
    effort = testbed.effort

    def item(series, name, parameters):
        mib = parameters["count"] * parameters["mib_each"]
        rounds = effort.warm_ups + (
            effort.move_runs if mib <= LARGE_MIB else min(effort.move_runs, LARGE_RUNS)
        )
        return Item(
            SECTION,
            series,
            name,
            parameters,
            "s",
            lambda: measure(testbed, **parameters),
            rounds * (SERIES_MAX if effort.only_drawn else 8) * (1.5 + mib / 300),
        )

    for mib in effort.move_mib:
        yield item("size", f"{mib} MiB", {"count": 1, "mib_each": mib})
    for count in (2, 8) if effort.only_drawn else PROCESSES[1:] if effort.sweeps else []:
        yield item("processes", str(count), {"count": count, "mib_each": effort.crowd_mib // count})
