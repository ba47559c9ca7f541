"""Measures how long a protected process stands still for an epoch (`ppmr protect`), compared with a
checkpoint as people take it today: `criu dump --leave-running` into tmpfs.

The pause is the longest time without a sign of life between two epochs (`shape_trees.py`), or
around a dump: it includes everything that the program waits for, also the first writes to pages
that are tracked.
"""
from lab.criu import find_criu
from lab.migrations import Running
from lab.move import now
from lab.node import LabError, wait_until
from lab.ppmr import find_ppmr

from . import epoch_costs, loss_costs
from .plan import Item, Outcome
from .shape_trees import Shape, Tree, filled, python
from .shapes import mounts_for
from .spread import spread
from .verdict import Target

SECTION = "epochs"
EVERY_S = 3
PPMR, CRIU = "ppmr protect", "criu dump --leave-running, tmpfs"
SENT = "sent for an epoch, MB"

# Writes 20,000 pages per second, in 64 MiB.
HOT = """
pages = anonymous(16384)
def write():
    turn = 0
    while True:
        for step in range(20): pages[(turn * 20 + step) % 16384 * 4096] = turn % 251
        turn += 1
        time.sleep(0.001)
threading.Thread(target=write, daemon=True).start()
"""


def longest_gap(beats, begin, end):
    """The longest time between two beats of which the later one is in [begin, end]."""
    times = sorted(beat.time for beat in beats)
    gaps = [later - earlier for earlier, later in zip(times, times[1:]) if begin <= later <= end]
    if not gaps:
        raise LabError("the tree gave no sign of life")
    return max(gaps)


def protect(testbed, mounts, tree, count):
    """Returns the pauses of `count` epochs after the first one, and how many MB these epochs sent.
    """
    state = testbed.source.scratch(testbed.label("state"))
    words = ["protect", "--pid", tree.pid, "--mount", mounts.out, "--every", EVERY_S, "--json"]
    words += ["--state-dir", state, "--name", testbed.label("epochs")]
    running = Running(testbed.source, [find_ppmr(), *words])

    def epochs():
        if not running.running():
            raise LabError(f"ppmr protect has ended: {running.wait(1).output}")
        return [event for event in running.events() if event["event"] == "epoch"]

    try:
        wait_until(lambda: len(epochs()) > count, 60 + (count + 1) * 4 * EVERY_S, "the epochs")
        found = epochs()[: count + 1]
    finally:
        running.kill()
    beats = tree.beats()
    ends = [event["time_ns"] / 1e9 for event in found]
    pauses = [longest_gap(beats, begin, end) for begin, end in zip(ends, ends[1:])]
    return pauses, [event["sent_bytes"] / 1e6 for event in found[1:]]


def dump(testbed, tree):
    """Returns the pause of one dump."""
    images = testbed.source.scratch(testbed.label("images"), tmpfs=True)
    options = ["--leave-running", "--tcp-close", "--shell-job", "-v0"]
    began = now()
    testbed.source.run(
        [find_criu(testbed.source), "dump", "-t", tree.pid, "-D", images, *options], timeout=300
    )
    tree.await_beats(5, after=now())
    pause = longest_gap(tree.beats(), began, now())
    testbed.source.drop_scratch(images)
    return pause


def hot_name(mib):
    return f"{mib} MiB, 64 MiB of them hot"


def _pause(name):
    def value(rows):
        samples = (rows.get(f"{SECTION}/pause/{name}") or {}).get("results", {}).get(PPMR)
        return spread(samples).median if samples else None

    return value


TARGETS = tuple(
    Target(f"pause of an epoch of {name}", wanted, _pause(name), at_least=False, unit="s")
    for name, wanted in (("1 GiB", 0.15), (hot_name(1024), 0.25), ("4 GiB", 0.25))
)


def measure(testbed, shape):
    count = testbed.effort.move_runs
    with mounts_for(testbed, shape.mib) as mounts:
        mounts.await_ready()
        tree = Tree(testbed, shape)
        try:
            dump(testbed, tree)  # warms up
            dumps = [dump(testbed, tree) for _ in range((count + 1) // 2)]
            pauses, sent = protect(testbed, mounts, tree, count)
            dumps += [dump(testbed, tree) for _ in range(count // 2)]
            tree.check()
        finally:
            tree.end(testbed.source, testbed.target)
            tree.remove()
    return Outcome({PPMR: pauses, CRIU: dumps}, {SENT: spread(sent).median})


def shapes(effort):
    sizes = effort.shape_mib[:3]
    yield from (
        Shape(f"{mib >> 10} GiB" if mib >= 1024 else f"{mib} MiB", python(filled(mib)), mib)
        for mib in sizes
    )
    large = effort.busy_mib
    yield Shape(hot_name(large), python(HOT + filled(large)), large + 64)


def plan(testbed):
    for shape in shapes(testbed.effort):
        yield Item(
            SECTION,
            "pause",
            shape.name,
            {"shape": shape.name, "mib": shape.mib, "every_s": EVERY_S},
            "s",
            lambda shape=shape: measure(testbed, shape),
            10 + (testbed.effort.move_runs + 1) * (EVERY_S + shape.mib / 500),
        )
    yield from epoch_costs.plan(testbed, SECTION)
    yield from loss_costs.plan(testbed, SECTION)
