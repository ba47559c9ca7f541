"""Several processes over a limited link: one `ppmr migrate` for all, against one command per
process and against the link.

One command moves them with `--independent`, so that each is frozen only for its own dump and
restore. The time is that from the first freeze until the last process runs, from the lines that the
programs write: the last one at the source, the first one at the target. In each round iperf3
measures the link; "link" is the time that it needs for the bytes of the moves.
"""
import contextlib
import statistics

from lab.migrations import Migrations
from lab.node import LabError
from lab.programs import SteadyWorker, check_continuity, gap_between

from .loads import iperf
from .plan import Item, Outcome
from .rounds import rotate

SECTION = "pipelined moves"
LINK = "2.5 Gb/s"
PROCESSES, AT_ONCE = 8, 2
TOGETHER, ONE_BY_ONE, ALONE = "ppmr, one command", "ppmr, a command each", "link"
IPERF_SECONDS = 3


def together(migrations, workers):
    pids = [worker.pid for worker in workers]
    options = ["--independent", "--jobs", AT_ONCE]
    return migrations.migrate(*pids, timeout=300, options=options).ok().summary["trees"]


def one_by_one(migrations, workers):
    return [
        migrations.migrate(worker.pid, timeout=300).ok().summary["trees"][0] for worker in workers
    ]


def move(testbed, nodes, move_all, size_mib):
    """Returns the seconds from the first freeze until the last process runs, the mean seconds for
    which a process was frozen, and the bytes."""
    source, target = nodes
    directory = testbed.lab.home / testbed.label("group")
    workers = []
    try:
        for number in range(PROCESSES):
            place = directory / str(number)
            workers.append(SteadyWorker(source, place, size_mib, threads=1, seed=number + 1))
        for worker in workers:
            worker.wait_for_lines(10)
        trees = move_all(workers)
        last, first = [], []
        for worker in workers:
            worker.node = target
            worker.wait_for_lines(3, target)
            lines = worker.lines()
            left, right = gap_between(lines, source, target)
            check_continuity(lines)
            last.append(left["real_ns"] / 1e9)
            first.append(right["real_ns"] / 1e9)
            if worker.audit()["wrong_words"]:
                raise LabError("words of memory are wrong after the move")
        frozen = statistics.mean(end - begin for begin, end in zip(last, first))
        return max(first) - min(last), frozen, sum(tree["bytes"] for tree in trees)
    finally:
        for worker in workers:
            worker.node = target
            worker.end()
            source.signal(worker.pid, 9)


def measure(testbed, size_mib):
    nodes = source, target = testbed.nodes(LINK)
    effort = testbed.effort
    results = {TOGETHER: [], ONE_BY_ONE: [], ALONE: []}
    frozen = {TOGETHER: [], ONE_BY_ONE: []}
    migrations = Migrations(
        source,
        target,
        testbed.private,
        testbed.source_options,
        testbed.target_options,
        name=testbed.label("pipelined"),
    )
    with contextlib.closing(migrations):
        migrations.await_ready()
        ways = [(TOGETHER, together), (ONE_BY_ONE, one_by_one)]
        for number in range(effort.warm_ups + effort.move_runs):
            rate = iperf(source, target, target.address, testbed.port(), 1, IPERF_SECONDS)["rate"]
            for name, way in rotate(ways, number):
                whole, still, moved = move(
                    testbed, nodes, lambda workers: way(migrations, workers), size_mib
                )
                if number < effort.warm_ups:
                    continue
                results[name].append(whole)
                frozen[name].append(still)
                if name == TOGETHER:
                    results[ALONE].append(moved / 1e9 / rate)
    return Outcome(results, also={"frozen, mean of the processes": frozen})


def plan(testbed):
    effort = testbed.effort
    size_mib = max(1, effort.crowd_mib // PROCESSES)
    yield Item(
        SECTION,
        "processes",
        f"{PROCESSES} x {size_mib} MiB, {LINK}",
        {"size_mib": size_mib},
        "s",
        lambda: measure(testbed, size_mib),
        20 + (effort.warm_ups + effort.move_runs) * (10 + 2 * PROCESSES * (1 + size_mib / 200)),
    )
