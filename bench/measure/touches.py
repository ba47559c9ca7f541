"""A program that touches its memory in random order as soon as it runs on the other node
(`bench/touch_pages.cc`): how long the first pass over all pages takes, and how long the program
waits for single pages."""
import struct

from lab.node import LabError, wait_until

from .loads import find_bench_program
from .plan import Item, Outcome
from .shape_trees import Shape, Tree
from .shape_ways import DEFAULT, EAGER, LAZY_PAGES, POST_COPY

SERIES = "first pass"
FIRST_PASS = "shapes/first pass/1 GiB in random order"
LATENCY_P50, LATENCY_P99, LATENCY_MAX = "touch: p50, µs", "touch: p99, µs", "touch: longest, µs"
WAYS = (DEFAULT, POST_COPY, EAGER, LAZY_PAGES)
CURVE_POINTS_PER_DECADE = 20


class TouchingTree(Tree):
    """A tree whose program touches its memory. Its first beats on the target precede the pass."""

    def __init__(self, testbed, shape):
        super().__init__(testbed, shape)
        self.seconds, self.latencies_ns = None, []

    def await_beats(self, count, after=0.0, timeout=30):
        super().await_beats(1 if after else count, after, timeout)  # the pass follows one beat

    def check(self):
        done = self._beats.with_suffix(".pass")
        wait_until(done.exists, 180, "the first pass over all pages")
        seconds, wrong = done.read_text().split()
        if wrong != "0":
            raise LabError(f"{wrong} pages are wrong after the move")
        self.seconds = float(seconds)
        packed = self._beats.with_suffix(".latencies").read_bytes()
        self.latencies_ns = sorted(struct.unpack(f"={len(packed) // 4}I", packed))


def quantile(ordered, share):
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def slower_than(ordered):
    """Returns points (ms, share of the touches that took at least as long). `ns` is sorted.
    There are more points for the few slow touches than for the many fast ones."""
    count, points, left = len(ordered), [], 1.0
    while left * count >= 1:
        points.append([quantile(ordered, 1 - left) / 1e6, left])
        left /= 10 ** (1 / CURVE_POINTS_PER_DECADE)
    return [*points, [ordered[-1] / 1e6, 1 / count]]


def measure(testbed, moves, mib):
    touched = {}

    def moved(way, tree):
        touched.setdefault(way, []).append((tree.seconds, tree.latencies_ns))

    shape = Shape(f"{mib} MiB, touched", [find_bench_program("touch_pages"), mib], mib)
    made = moves(testbed, lambda: TouchingTree(testbed, shape), mib, only=WAYS, after=moved)
    made.run(testbed.effort.move_runs)
    touched = {way: touched[way] for way in made.moved}

    def of_touches(share):
        return {
            way: [quantile(ordered, share) / 1e3 for _, ordered in found]
            for way, found in touched.items()
        }

    return Outcome(
        {way: [seconds for seconds, _ in found] for way, found in touched.items()},
        not_measured=made.not_measured,
        also={
            LATENCY_P50: of_touches(0.5),
            LATENCY_P99: of_touches(0.99),
            LATENCY_MAX: of_touches(1),
            "downtime": made.samples(lambda one: one.downtime),
        },
        curves={
            way: slower_than(sorted(ns for _, ordered in found for ns in ordered))
            for way, found in touched.items()
        },
    )


def plan(testbed, section, moves):
    effort = testbed.effort
    mib = effort.busy_mib
    name = FIRST_PASS.rsplit("/", 1)[1] if mib == 1024 else f"{mib} MiB in random order"
    yield Item(
        section,
        SERIES,
        name,
        {"mib": mib},
        "s",
        lambda: measure(testbed, moves, mib),
        # CRIU's lazy pages take two minutes for 1 GiB.
        4 + (effort.shape_warm_ups + effort.move_runs) * (len(WAYS) * (2 + mib / 300) + mib / 10),
    )
