"""Run time of MPI programs in job nodes, undisturbed and with evacuations, beside plain mpirun; and
the stall of a ring of ranks in a move.

LAMMPS and three kernels (tests/workloads/mpi_kernels.py) run with four ranks on two hosts. Each
host is a set of namespaces with a bridge; veth pairs join the bridges to a switch. Plain mpirun
runs in two network namespaces on the same bridges, with the same settings, and starts its daemons
with a stub that works like ssh. The ways alternate. Each run in job nodes is compared with the
plain run of its round, which is a minute before or after it, because the machine's speed drifts.
All lines of a program must equal those of the first plain run.

The stall: while two ranks pass a token, the hosts are evacuated one after the other. The gap is the
longest time that a rank waited for the token. It is compared with the downtime that ppmr reports
for the move. Each job moves as often as it has spares, and then the next one starts.
"""
import shutil
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from lab.job_hosts import AS_ROOT, JobHosts
from lab.node import Lab, LabError, wait_until

from .job_programs import PROGRAMS, RING
from .loads import iperf
from .plain_mpi import PlainMpi
from .plan import Item, Outcome
from .rounds import rotate
from .spread import spread

SECTION = "jobs"
NODES, SPARES, RANKS_PER_NODE = 2, 4, 2
ENVIRONMENT = {**AS_ROOT, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
PLAIN = "plain mpirun"
MOVES_IN = (3, 60)  # a target is about this many moves in a run of this many seconds
CALIBRATION_LINES = 12
START_SECONDS = 60  # the longest time until the first line, and after a run
IPERF_PORT, IPERF_SECONDS = 5201, 3
LENGTHENED = 2  # how often jobs that were too short get twice the lines
MISSING = "mpirun or lmp is missing: third_party/install installs openmpi-bin and lammps"


class JobTooShort(LabError):
    """A job ended well, but before its move."""


@dataclass
class Run:
    seconds: float  # of the whole command
    between_lines: float  # from the first step to the last one
    lines: list
    longest_pause: float  # between two steps
    downtimes: list = field(default_factory=list)
    seen: object = None  # by `near_end`


def way_of(moves):
    return f"job nodes, {moves} move{'' if moves == 1 else 's'}"


class Bench:
    def __init__(self, stack, ranks_per_node=RANKS_PER_NODE):
        self._ranks_per_node = ranks_per_node
        lab = stack.enter_context(Lab())
        self.hosts = stack.enter_context(JobHosts(lab, NODES + SPARES))
        self.plain = PlainMpi(self.hosts, self.hosts.names[:NODES], ranks_per_node)
        stack.callback(self.plain.close)

    def network_gb_per_s(self):
        source, target = self.plain.nodes
        return iperf(source, target, target.address, IPERF_PORT, 1, IPERF_SECONDS)["rate"]

    def job(self, words, ranks_per_node, options=()):
        self.hosts.return_all()  # those that earlier jobs have left
        options = ["--spares", SPARES, "--slots", ranks_per_node, *options, "--"]
        return self.hosts.run([str(word) for word in [*options, *words]], environment=ENVIRONMENT)

    def run(self, program, lines, moves=None, patience=900, options=(), near_end=None):
        """`moves`: None for plain mpirun. `options`: of `ppmr job run`. `near_end`: is called with
        the hosts when nine of ten lines are there."""
        words = program.words(self.hosts.lab.home, lines)
        words = ["mpirun", "-n", NODES * self._ranks_per_node, *words]
        began = time.monotonic()
        if moves is None:
            job = self.plain.run(words, ENVIRONMENT)
        else:
            job = self.job(words, self._ranks_per_node, options)
        try:
            downtimes = [
                self._move_at(job, program, lines * number // (moves + 1), host, patience)
                for number, host in enumerate(self._hosts_to_leave(moves or 0), start=1)
            ]
            seen = None
            if near_end:
                self._await_line(job, program, lines * 9 // 10, patience)
                seen = near_end(self.hosts)
            if job.wait(patience) != 0:
                raise LabError(f"{program.name} failed: {job.error_text()[-2000:]}")
            took = time.monotonic() - began
        finally:
            if moves is None and job.process.poll() is None:
                job.process.kill()
            job.close()
        steps = [(at, line) for at, line in job.lines if program.is_step(line)]
        if moves is not None:
            self._await_end()
        times = [at for at, _ in steps]
        pause = max(later - earlier for earlier, later in zip(times, times[1:]))
        return Run(took, times[-1] - times[0], [line for _, line in steps], pause, downtimes, seen)

    def _hosts_to_leave(self, moves):
        """The last node leaves first, then the one with mpirun, and so on; each goes to the next
        spare."""
        places = list(self.hosts.names[:NODES])
        for number in range(moves):
            node = NODES - 1 - number % NODES
            yield places[node]
            places[node] = self.hosts.names[NODES + number]

    @staticmethod
    def _await_line(job, program, line, patience):
        def there():
            return (
                sum(program.is_step(text) for text in job.output()) >= line
                or job.process.poll() is not None
            )

        wait_until(there, patience, f"line {line} of {program.name}", interval=0.02)

    def _move_at(self, job, program, line, host, patience):
        self._await_line(job, program, line, patience)
        if job.process.poll() is not None:
            kind = JobTooShort if job.process.returncode == 0 else LabError
            raise kind(f"{program.name} ended before its move: {job.error_text()[-2000:]}")
        return self._move(host)["downtime_s"]

    def _move(self, host):
        [move] = self.hosts.evacuate(host, check=False)
        if not move["ok"]:
            kind = JobTooShort if "the job has ended" in move["error"] else LabError
            raise kind(f"host {host} was not evacuated: {move['error']}")
        return move

    def _await_end(self):
        wait_until(
            lambda: not any(map(self.hosts.containers, self.hosts.names)),
            START_SECONDS,
            "the job nodes to end",
            interval=0.1,
        )

    def lines_for(self, program, seconds):
        """How many lines the program writes in that time."""
        calibrated = self.run(program, CALIBRATION_LINES)
        pace = calibrated.between_lines / (CALIBRATION_LINES - 1)
        return max(CALIBRATION_LINES, round(seconds / pace))

    def run_times(self, program, effort):
        """{way: [Run, ...]}. A job that ended before its moves, because the machine was slower when
        its length was calibrated, is too short: all runs begin again with twice the lines."""
        lines = self.lines_for(program, effort.job_seconds)
        for _ in range(LENGTHENED):
            try:
                return self._run_times(program, effort, lines)
            except JobTooShort:
                lines *= 2
        return self._run_times(program, effort, lines)

    def _run_times(self, program, effort, lines):
        ways = {PLAIN: None, **{way_of(moves): moves for moves in effort.job_moves}}
        runs, expected = {way: [] for way in ways}, None
        for number in range(effort.job_rounds):
            for way in rotate(list(ways), number):
                run = self.run(program, lines, ways[way])
                expected = expected or run.lines
                if run.lines != expected or len(expected) < lines:
                    raise LabError(f"{program.name}, {way}: its results are not those of {PLAIN}")
                runs[way].append(run)
        return runs

    def stalls(self, count):
        """[(gap, downtime), ...] in seconds, and the longest gap without a move."""
        found, quiet = [], []
        while len(found) < count:
            words = ["mpirun", "-n", NODES, *RING(self.hosts.lab.home, 0)]
            job = self.job(words, 1)
            try:
                job.await_lines(20)
                quiet += [gap for gap, _ in gaps_of(job)]
                for host in self._hosts_to_leave(min(SPARES, count - len(found))):
                    began = time.time()
                    downtime = self._move(host)["downtime_s"]
                    ended = time.time()
                    wait_until(lambda: gaps_of(job)[-1][1] > ended + 0.3, 60, "the ring to go on")
                    gap = max(gap for gap, end in gaps_of(job) if end >= began)
                    found.append((gap, downtime))
                job.signal(signal.SIGTERM)
                job.wait()
            finally:
                job.close()
            self._await_end()
        return found, max(quiet)


def gaps_of(job):
    """[(seconds, time of day at the end), ...]"""
    lines = [line.split() for line in job.output() if line.startswith("gap ")]
    return [(float(seconds), float(end)) for _, seconds, end in lines]


def beside_plain(runs):
    """{way: [seconds more than plain mpirun in the same round, ...]} of {way: [Run, ...]}, and the
    ratios."""
    plain = [run.seconds for run in runs[PLAIN]]
    pairs = {
        way: [(run.seconds, of_round) for run, of_round in zip(found, plain, strict=True)]
        for way, found in runs.items()
        if way != PLAIN
    }
    more = {way: [took - of_round for took, of_round in found] for way, found in pairs.items()}
    ratios = {way: [took / of_round for took, of_round in found] for way, found in pairs.items()}
    return more, ratios


def has_mpi(*commands):
    return all(map(shutil.which, commands))


def measure_run_time(testbed, name):
    if not has_mpi("mpirun", *(["lmp"] if name == "lammps" else [])):
        return Outcome(not_measured={"all ways": MISSING})
    with ExitStack() as stack:
        bench = Bench(stack)
        facts = {"iperf3 between the plain namespaces, GB/s": bench.network_gb_per_s()}
        runs = bench.run_times(PROGRAMS[name], testbed.effort)
    more, ratios = beside_plain(runs)
    for way, found in ratios.items():
        facts[f"{way}: times {PLAIN} of the same round, median"] = spread(found).median
    also = {
        f"more than {PLAIN} of the same round, s more": more,
        "between the first line and the last": {
            way: [run.between_lines for run in found] for way, found in runs.items()
        },
        "longest pause between two lines": {
            way: [run.longest_pause for run in found] for way, found in runs.items()
        },
        "downtime": {
            way: [seconds for run in found for seconds in run.downtimes]
            for way, found in runs.items()
            if any(run.downtimes for run in found)
        },
    }
    results = {way: [run.seconds for run in found] for way, found in runs.items()}
    return Outcome(results, facts, also={what: found for what, found in also.items() if found})


def measure_stall(testbed, moves):
    if not has_mpi("mpirun"):
        return Outcome(not_measured={"all ways": MISSING})
    with ExitStack() as stack:
        found, quiet = Bench(stack).stalls(moves)
    more = sorted(gap - downtime for gap, downtime in found)
    return Outcome(
        {"gap": [gap for gap, _ in found], "downtime": [downtime for _, downtime in found]},
        {
            "longest gap without a move, s": quiet,
            "gap - downtime, 90% up to, s": more[int(0.9 * (len(more) - 1))],
        },
        also={"gap - downtime": {"gap": more}},
    )


def plan(testbed):
    effort = testbed.effort
    for name in effort.job_programs:
        runs = effort.job_rounds * (1 + len(effort.job_moves))
        yield Item(
            SECTION,
            "run time",
            PROGRAMS[name].name,
            {"seconds": effort.job_seconds, "ranks": NODES * RANKS_PER_NODE},
            "s",
            lambda name=name: measure_run_time(testbed, name),
            20 + runs * (3 + 1.2 * effort.job_seconds),
        )
    yield Item(
        SECTION,
        "stall",
        f"a ring of {NODES} ranks, {effort.job_stalls} moves",
        {"moves": effort.job_stalls},
        "s",
        lambda: measure_stall(testbed, effort.job_stalls),
        15 + 5 * effort.job_stalls,
    )
