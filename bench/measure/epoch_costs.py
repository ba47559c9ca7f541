"""Measures what epochs cost a program that runs for a minute: its run time with an epoch each 60,
30 and 10 seconds, compared with its run time without epochs.

LAMMPS and LU run as jobs on two hosts (`ppmr job run --protect`), whose nodes all stand still for
an epoch; redis answers `redis-benchmark` while `ppmr protect` captures it. The ways alternate, and
each run is compared with the one without epochs of its round. The partner is on the same machine
here, so its work takes time from the program, too.

One rank runs per node. If there are more ranks than CPUs, a rank waits until the ranks that it
needs get a CPU. Four ranks on two CPUs ran four times slower for seconds after each disturbance,
and then as fast as before.
"""
import shutil
import time
from contextlib import ExitStack

from lab.migrations import Running
from lab.node import LabError, wait_until
from lab.ppmr import find_ppmr

from .job_programs import PROGRAMS
from .jobs import MISSING, Bench, has_mpi
from .plan import Item, Outcome
from .rounds import rotate
from .shapes import mounts_for
from .spread import spread
from .verdict import Target

SERIES = "run time"
NONE = "no epochs"
RANKS_PER_NODE = 1
REDIS_MIB, REDIS_PORT, VALUE_BYTES = 256, 6391, 1000
CALIBRATION_REQUESTS = 50_000
TARGET_EVERY_S, MORE = 30, 1.03


def way_of(every_s):
    return f"an epoch each {every_s} s"


def ways(effort):
    return {NONE: None, **{way_of(every): every for every in effort.epochs_every_s}}


def outcome(runs, epochs):
    """`runs`: {way: [seconds, ...]}. `epochs`: {way: [number, ...]}."""
    facts = {}
    for way, found in runs.items():
        if way == NONE:
            continue
        ratios = [took / without for took, without in zip(found, runs[NONE], strict=True)]
        facts[f"{way}: times {NONE} of the same round, median"] = spread(ratios).median
        facts[f"{way}: epochs in a run, median"] = spread(epochs[way]).median
    return Outcome(runs, facts)


def rounds(effort, run):
    """`run`: seconds between epochs, or None -> (seconds, epochs)."""
    runs = {way: [] for way in ways(effort)}
    epochs = {way: [] for way in runs}
    for number in range(effort.job_rounds):
        for way in rotate(list(runs), number):
            seconds, count = run(ways(effort)[way])
            runs[way].append(seconds)
            epochs[way].append(count)
    return outcome(runs, epochs)


def epochs_agreed(hosts):
    for job in hosts.status():
        return (job.get("protection") or {}).get("agreed", 0)
    return 0


def measure_job(testbed, name):
    if not has_mpi("mpirun", *(["lmp"] if name == "lammps" else [])):
        return Outcome(not_measured={"all ways": MISSING})
    program = PROGRAMS[name]
    with ExitStack() as stack:
        bench = Bench(stack, RANKS_PER_NODE)
        lines = bench.lines_for(program, testbed.effort.job_seconds)

        def run(every):
            options = ["--protect", f"{every}s"] if every else []
            done = bench.run(program, lines, moves=0, options=options, near_end=epochs_agreed)
            return done.seconds, done.seen

        return rounds(testbed.effort, run)


class Redis:
    """redis with values for all its keys, and clients that write and read them."""

    def __init__(self, testbed):
        self._at = testbed.source
        self.directory = testbed.lab.home / testbed.label("redis")
        self.directory.mkdir()
        words = f"--port {REDIS_PORT} --appendonly no --dir {self.directory}".split()
        words += ["--save", ""]
        self.pid = self._at.spawn(["redis-server", *words], log=self.directory / "log")
        self._at.await_listener(REDIS_PORT)
        self.keys = REDIS_MIB * (1 << 20) // VALUE_BYTES
        self.seconds_for(self.keys, "set")

    def seconds_for(self, requests, tests="set,get"):
        words = f"redis-benchmark -p {REDIS_PORT} -q -c 4 -d {VALUE_BYTES} -r {self.keys}".split()
        began = time.monotonic()
        self._at.run([*words, "-t", tests, "-n", requests], timeout=900)
        return time.monotonic() - began

    def end(self):
        self._at.run(["redis-cli", "-p", REDIS_PORT, "shutdown", "nosave"], check=False)


def measure_redis(testbed):
    if not all(map(shutil.which, ("redis-server", "redis-benchmark"))):
        return Outcome(not_measured={"all ways": "third_party/install installs redis"})
    with mounts_for(testbed, 2 * REDIS_MIB) as mounts:
        mounts.await_ready()
        redis = Redis(testbed)
        try:
            pace = redis.seconds_for(CALIBRATION_REQUESTS) / CALIBRATION_REQUESTS
            requests = max(CALIBRATION_REQUESTS, round(testbed.effort.job_seconds / pace))

            def run(every):
                if not every:
                    return redis.seconds_for(requests), 0
                return protected(testbed, mounts, redis, requests, every)

            return rounds(testbed.effort, run)
        finally:
            redis.end()


def protected(testbed, mounts, redis, requests, every):
    state = testbed.source.scratch(testbed.label("state"))
    words = ["protect", "--pid", redis.pid, "--mount", mounts.out, "--every", every, "--json"]
    words += ["--state-dir", state, "--name", testbed.label("epochs")]
    # The connections of the clients stay at the source.
    running = Running(testbed.source, [find_ppmr(), *words])
    try:

        def epochs():
            if not running.running():
                raise LabError(f"ppmr protect has ended: {running.wait(1).output}")
            return [event for event in running.events() if event["event"] == "epoch"]

        wait_until(epochs, 120, "the first epoch, which sends all memory")
        first = len(epochs())
        seconds = redis.seconds_for(requests)
        return seconds, len(epochs()) - first
    finally:
        running.kill()


def plan(testbed, section):
    effort = testbed.effort
    runs = effort.job_rounds * len(ways(effort))
    measures = {
        **{
            PROGRAMS[name].name: lambda name=name: measure_job(testbed, name)
            for name in effort.epoch_programs
        },
        f"redis-benchmark, {REDIS_MIB} MiB": lambda: measure_redis(testbed),
    }
    for name, measure in measures.items():
        yield Item(
            section,
            SERIES,
            name,
            {"seconds": effort.job_seconds, "every_s": effort.epochs_every_s},
            "s",
            measure,
            20 + runs * (3 + 1.2 * effort.job_seconds),
        )


def _costs(rows):
    """Returns the run time with epochs divided by that without, for the program that pays most."""
    what = f"{way_of(TARGET_EVERY_S)}: times {NONE} of the same round, median"
    found = [row["facts"][what] for row in rows.of("epochs", SERIES) if what in row["facts"]]
    return max(found, default=None)


TARGETS = (
    Target(
        f"run time with an epoch each {TARGET_EVERY_S} s, of that without: the worst program",
        MORE,
        _costs,
        at_least=False,
    ),
)
