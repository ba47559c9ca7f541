"""Measures what each stage of a move costs in CPU seconds per GB. The model (`scale_model.py`)
predicts the rates of larger machines from these costs; measured moves on one core and on two check
it.

A process moves with `--stop-and-copy`, so that nothing slows the copying. All figures per GB are
the difference between a large and a small process, which have the fixed part of a move in common.
The cores are those that the daemons, CRIU and the processes may use (as with `taskset`); both nodes
share them.
"""
import contextlib
import json
import os

from lab.migrations import Migrations
from lab.node import LabError

from . import scale_model as model
from .costs import Keeper
from .host import available_memory_bytes
from .loads import GB, find_bench_program
from .plan import Item, Outcome
from .rounds import rotate
from .spread import spread
from .testbed import MIB
from .thread_costs import MEMORY, PAGE_READER, PAGER, STREAM, ThreadCosts

SECTION, SERIES = "scale", "copy and fill"
SMALL_MIB = 64
OPTIONS = ("--stop-and-copy",)
COSTS = "what each stage costs, CPU-s/GB"
PARTS = "of these, CPU-s/GB"
READ, ENCRYPT, DECRYPT = "read the process", "encrypt", "decrypt and verify"
MARGIN = 1.25  # the largest factor by which a prediction may be off


@contextlib.contextmanager
def on_cores(count):
    """Programs that start in this context may use only this many cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def core_counts():
    return [count for count in (1, 2) if count <= len(os.sched_getaffinity(0))]


def cores_text(count):
    return f"{count} core{'s' if count > 1 else ''}"


def thread_counts(node, *cores):
    """{cores: {"readers": ..., "streams": ..., "fillers": ...}}, as the product chooses them."""
    return json.loads(node.run([find_bench_program("data_threads"), *cores]).stdout)


def stage_seconds(costs):
    """Returns the CPU seconds of each stage of the model, and of parts of them."""
    read, encrypt = costs.seconds(PAGE_READER), costs.seconds("source", MEMORY)
    stages = {
        "read and encrypt": read + encrypt,
        "send": costs.seconds("source", STREAM),
        "control messages of the source": costs.other_seconds("source", STREAM, MEMORY),
        "receive and decrypt": costs.seconds("target", STREAM),
        "control messages of the target": costs.other_seconds("target", STREAM),
        "fill": costs.seconds(PAGER),
    }
    for name in ("read and encrypt", "send", "receive and decrypt", "fill"):
        if stages[name] <= 0:
            raise LabError(f"no thread was seen that does this: {name}")
    parts = {READ: read, ENCRYPT: encrypt, DECRYPT: costs.user_seconds("target", STREAM)}
    return stages, parts


def move(testbed, mounts, nodes, size_mib):
    """Moves a process and checks its memory. Returns {what: seconds}: of the phases, of the CPU in
    each stage and in its parts; and the bytes."""
    at, to = nodes
    keeper = Keeper(at, testbed.lab.home / testbed.label("keeper"), "random", size_mib * MIB)
    try:
        daemons = {"source": mounts.source.host_pid, "target": mounts.target.host_pid}
        with ThreadCosts(daemons, nodes) as costs:
            done = mounts.migrate(keeper.pid, timeout=300, options=OPTIONS)
        [tree] = done.ok().summary["trees"]
        keeper.check(to)
    finally:
        keeper.end()
    stages, parts = stage_seconds(costs)
    phases = {model.COPY: tree["seal_s"], model.FILL: tree["fill_s"]}
    return {"bytes": tree["bytes"], "phases": phases, "stages": stages, "parts": parts}


def per_gb(large, small, kind):
    """Returns {name: seconds per GB} of the difference of two moves; of the large one alone if
    there is no small one."""
    if small is None:
        return {name: seconds / (large["bytes"] / GB) for name, seconds in large[kind].items()}
    gigabytes = (large["bytes"] - small["bytes"]) / GB
    return {name: (large[kind][name] - small[kind][name]) / gigabytes for name in large[kind]}


def rates_of(large, small):
    """Returns {phase: GB/s}."""
    seconds = per_gb(large, small, "phases")
    if min(seconds.values()) <= 0:
        raise LabError("a small process took longer than a large one: the machine is too busy")
    return {phase: 1 / taken for phase, taken in seconds.items()}


def medians(samples):
    return {name: spread(found).median for name, found in samples.items()}


def measure(testbed, size_mib):
    if available_memory_bytes() < 3.5 * size_mib * MIB:
        raise LabError(f"{size_mib} MiB need more free memory")
    effort = testbed.effort
    nodes = testbed.nodes("veth")
    subtracts = size_mib > SMALL_MIB
    rates, costs, parts = {}, {}, {}
    with contextlib.ExitStack() as opened:
        mounts = {}
        for cores in core_counts():
            with on_cores(cores):
                mounts[cores] = opened.enter_context(
                    contextlib.closing(
                        Migrations(
                            *nodes,
                            testbed.private,
                            testbed.source_options,
                            [*testbed.target_options, "--memory-limit", f"{3 * size_mib}MiB"],
                            name=testbed.label("scale"),
                        )
                    )
                )
                mounts[cores].await_ready()
        for number in range(effort.warm_ups + effort.runs):
            for cores in rotate(core_counts(), number):
                with on_cores(cores):
                    small = move(testbed, mounts[cores], nodes, SMALL_MIB) if subtracts else None
                    large = move(testbed, mounts[cores], nodes, size_mib)
                if number < effort.warm_ups:
                    continue
                for phase, found in rates_of(large, small).items():
                    rates.setdefault(f"{phase}, {cores_text(cores)}", []).append(found)
                if cores != core_counts()[-1]:
                    continue
                for kind, into in (("stages", costs), ("parts", parts)):
                    for name, seconds in per_gb(large, small, kind).items():
                        into.setdefault(name, []).append(seconds)
    return Outcome(rates, also={COSTS: costs, PARTS: parts})


def plan(testbed):
    effort = testbed.effort
    size_mib = effort.bytes // MIB
    counts = (os.cpu_count(), *model.CORES)
    parameters = {"size_mib": size_mib, "cores": os.cpu_count()}

    def measured():
        parameters["threads"] = thread_counts(testbed.source, *counts)
        return measure(testbed, size_mib)

    yield Item(
        SECTION,
        SERIES,
        f"{size_mib} MiB",
        parameters,
        "GB/s",
        measured,
        4 + (effort.warm_ups + effort.runs) * len(core_counts()) * (3 + size_mib / 160),
    )


# ---- What the model makes of a row --------------------------------------------------------------


def costs_of(row):
    return medians(row["also"][COSTS])


def check(row):
    """Returns {(phase, cores): (predicted, measured, Limits)}. The prediction uses the costs of the
    moves on most cores, and not how long they took."""
    threads = row["parameters"]["threads"][str(row["parameters"]["cores"])]
    found = {}
    for name, samples in row["results"].items():
        phase, cores = name.split(", ")
        count = int(cores.split()[0])
        limits = model.bounds(costs_of(row), threads, count, phase, shared=True)
        found[phase, count] = limits[0].rate, spread(samples).median, limits
    return found


def worst(rows):
    """Returns by what factor the model is off at worst; None if it was not checked."""
    found = [row for row in rows.of(SECTION, SERIES) if row["results"]]
    if not found:
        return None
    return max(
        model.off_by(predicted, measured)
        for row in found
        for predicted, measured, _ in check(row).values()
    )


def predictions(row):
    """Yields (tree, cores, link or None, Limits) of two nodes that have so many cores each."""
    for tree in ("frozen", "running"):
        for cores in model.CORES:
            threads = dict(row["parameters"]["threads"][str(cores)])
            if tree == "running":
                threads["readers"] = 1
            for link in model.LINKS_GBIT:
                yield tree, cores, link, model.bounds(
                    costs_of(row), threads, cores, model.COPY, link
                )
    for cores in model.CORES:
        threads = row["parameters"]["threads"][str(cores)]
        yield "fill", cores, None, model.bounds(costs_of(row), threads, cores, model.FILL)


def check_table(row):
    """Returns (head, lines)."""
    lines = []
    for (phase, cores), (predicted, measured, limits) in check(row).items():
        lines.append(
            (
                f"{phase}, {cores_text(cores)}",
                predicted,
                measured,
                predicted / measured,
                limits[0].name,
            )
        )
    return ("both nodes on", "predicted, GB/s", "measured, GB/s", "ratio", "limited by"), lines


TREES = {
    "frozen": "copy, frozen tree",
    "running": "copy, rounds of a tree that runs",
    "fill": "fill",
}


def predictions_table(row):
    lines = []
    for tree, cores, link, limits in predictions(row):
        following = limits[1]
        lines.append(
            (
                TREES[tree],
                f"{cores}",
                f"{link} Gb/s" if link else "",
                limits[0].rate,
                limits[0].name,
                following.name,
                following.rate,
            )
        )
    head = ("phase", "cores of each node", "link", "GB/s", "limited by", "next", "which allows")
    return head, lines


def threads_table(row):
    lines = [
        (cores, *(f"{counts[kind]}" for kind in ("readers", "streams", "fillers")))
        for cores, counts in sorted(row["parameters"]["threads"].items(), key=lambda of: int(of[0]))
    ]
    return ("cores", "readers of a frozen tree", "streams", "fillers"), lines
