#!/usr/bin/python3
"""Run time of MPI programs in job nodes, undisturbed and with evacuations, beside plain mpirun; and
the stall of a ring of ranks in a move.

    bench/jobs.py             about ten minutes        as root, after `bazel build //:ppmr`
    bench/jobs.py --quick     under two minutes: shows that everything works
    bench/jobs.py --full      runs of 60 s, three rounds: about an hour, on an idle machine

LAMMPS and three kernels (tests/workloads/mpi_kernels.py) run with four ranks on two hosts. Each
host is a set of namespaces with a bridge; veth pairs join the bridges to a switch. Plain mpirun
runs in two network namespaces on the same bridges, with the same settings, and starts its daemons
with a stub that works like ssh. The ways alternate. All lines of a program must equal those of the
first plain run.

The stall: while two ranks pass a token, the hosts are evacuated one after the other. The gap is the
longest time that a rank waited for the token. It is compared with the downtime that ppmr reports
for the move. A host that a job has left cannot take a node of the same job again, so each job moves
as often as it has spares, and then the next one starts.
"""
import argparse
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lab.job_hosts import JobHosts  # noqa: E402
from lab.node import Lab, LabError, wait_until  # noqa: E402
from measure import machine  # noqa: E402
from measure.job_programs import PROGRAMS, RING  # noqa: E402
from measure.loads import iperf  # noqa: E402
from measure.plain_mpi import PlainMpi  # noqa: E402
from measure.rounds import rotate  # noqa: E402
from measure.spread import spread  # noqa: E402

NODES, SPARES, RANKS_PER_NODE = 2, 4, 2
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # There are more ranks than processors. So ranks that wait must yield the processor to others.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
PLAIN = "plain mpirun"
CALIBRATION_LINES = 12
START_SECONDS = 60  # the longest time until the first line, and after a run
IPERF_PORT, IPERF_SECONDS = 5201, 3
# Targets
UNDISTURBED_MORE, MOVES_MORE, MOVES_IN, STALL_MORE_S = 0.01, 0.05, (3, 60), 0.3


@dataclass(frozen=True)
class Effort:
    seconds: float  # seconds of a plain run
    rounds: int
    moves: tuple  # numbers of evacuations in a run
    stalls: int


EFFORTS = {
    "quick": Effort(4, 1, (0, 1), 4),
    "default": Effort(15, 1, (0, 1, 3), 50),
    "full": Effort(60, 3, (0, 1, 3), 50),
}


@dataclass
class Run:
    seconds: float  # seconds of the whole command
    between_lines: float  # from the first step to the last one
    lines: list
    longest_pause: float  # between two steps
    downtimes: list = field(default_factory=list)


def way_of(moves):
    return f"job nodes, {moves} move{'' if moves == 1 else 's'}"


class Bench:
    def __init__(self, stack):
        lab = stack.enter_context(Lab())
        self.hosts = stack.enter_context(JobHosts(lab, NODES + SPARES))
        self.plain = PlainMpi(self.hosts, self.hosts.names[:NODES], RANKS_PER_NODE)
        stack.callback(self.plain.close)

    def network_gb_per_s(self):
        source, target = self.plain.nodes
        return iperf(source, target, target.address, IPERF_PORT, 1, IPERF_SECONDS)["rate"]

    def job(self, words, ranks_per_node):
        options = ["--spares", SPARES, "--slots", ranks_per_node, "--"]
        return self.hosts.run([str(word) for word in [*options, *words]], environment=ENVIRONMENT)

    def run(self, program, lines, moves=None, patience=900):
        """Runs the program once. `moves`: None for plain mpirun."""
        words = program.words(self.hosts.lab.home, lines)
        words = ["mpirun", "-n", NODES * RANKS_PER_NODE, *words]
        began = time.monotonic()
        if moves is None:
            job = self.plain.run(words, ENVIRONMENT)
        else:
            job = self.job(words, RANKS_PER_NODE)
        try:
            downtimes = [
                self._move_at(job, program, lines * number // (moves + 1), host, patience)
                for number, host in enumerate(self._hosts_to_leave(moves or 0), start=1)
            ]
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
        return Run(took, times[-1] - times[0], [line for _, line in steps], pause, downtimes)

    def _hosts_to_leave(self, moves):
        """The last node leaves first, then the one with mpirun, and so on; each goes to the next
        spare."""
        places = list(self.hosts.names[:NODES])
        for number in range(moves):
            node = NODES - 1 - number % NODES
            yield places[node]
            places[node] = self.hosts.names[NODES + number]

    def _move_at(self, job, program, line, host, patience):
        def there():
            return (
                sum(program.is_step(text) for text in job.output()) >= line
                or job.process.poll() is not None
            )

        wait_until(there, patience, f"line {line} of {program.name}", interval=0.02)
        if job.process.poll() is not None:
            raise LabError(f"{program.name} ended before its move: {job.error_text()[-2000:]}")
        return self._move(host)["downtime_s"]

    def _move(self, host):
        [move] = self.hosts.evacuate(host, check=False)
        if not move["ok"]:
            raise LabError(f"host {host} was not evacuated: {move['error']}")
        return move

    def _await_end(self):
        wait_until(
            lambda: not any(map(self.hosts.containers, self.hosts.names)),
            START_SECONDS,
            "the job nodes to end",
            interval=0.1,
        )

    def lines_for(self, program, seconds):
        """Returns how many lines the program writes in that time."""
        calibrated = self.run(program, CALIBRATION_LINES)
        pace = calibrated.between_lines / (CALIBRATION_LINES - 1)
        return max(CALIBRATION_LINES, round(seconds / pace))

    def run_times(self, program, effort):
        """{way: [Run, ...]}"""
        lines = self.lines_for(program, effort.seconds)
        ways = {PLAIN: None, **{way_of(moves): moves for moves in effort.moves}}
        runs, expected = {way: [] for way in ways}, None
        for number in range(effort.rounds):
            for way in rotate(list(ways), number):
                run = self.run(program, lines, ways[way])
                expected = expected or run.lines
                if run.lines != expected or len(expected) < lines:
                    raise LabError(f"{program.name}, {way}: its results are not those of {PLAIN}")
                runs[way].append(run)
                say(f"{program.name}, {way}: {run.seconds:.2f} s")
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
                    say(f"move {len(found)}: gap {gap:.3f} s, downtime {downtime:.3f} s")
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


def say(text):
    print(text, file=sys.stderr, flush=True)


def verdict(value, wanted):
    return "reached" if value <= wanted else "missed"


def report_run_times(name, runs):
    """Prints the table, and returns its figures."""
    figures = {}
    plain = spread([run.seconds for run in runs[PLAIN]])
    for way, of_way in runs.items():
        whole = spread([run.seconds for run in of_way])
        inner = spread([run.between_lines for run in of_way])
        downtimes = [downtime for run in of_way for downtime in run.downtimes]
        figures[way] = {
            "seconds": [run.seconds for run in of_way],
            "between_lines_s": [run.between_lines for run in of_way],
            "downtimes_s": downtimes,
            "longest_pauses_s": [run.longest_pause for run in of_way],
            "more_than_plain": whole.median / plain.median - 1,
        }
        down = f"{spread(downtimes).median:.2f}" if downtimes else ""
        pause = spread(figures[way]["longest_pauses_s"]).median
        print(
            f"| {name} | {way} | {whole.median:.2f} ({whole.low:.2f} to {whole.high:.2f}) "
            f"| {100 * figures[way]['more_than_plain']:+.1f}% | {inner.median:.2f} | {pause:.2f} "
            f"| {down} |"
        )
    return figures


def report_targets(name, figures):
    more = figures[way_of(0)]["more_than_plain"]
    print(
        f"{name}: 0 moves, at most {UNDISTURBED_MORE:+.0%} wanted: {more:+.1%}: "
        f"{verdict(more, UNDISTURBED_MORE)}"
    )
    moves, seconds = MOVES_IN
    if way_of(moves) not in figures:
        return
    plain, moved = (spread(figures[way]["seconds"]).median for way in (PLAIN, way_of(moves)))
    more = (moved - plain) / seconds
    print(
        f"{name}: {moves} moves in {seconds} s, at most {MOVES_MORE:+.0%} wanted: "
        f"{moved - plain:+.2f} s in a run of {plain:.0f} s, {more:+.1%} of {seconds} s: "
        f"{verdict(more, MOVES_MORE)}"
    )


def report_stalls(stalls, quiet):
    more = sorted(gap - downtime for gap, downtime in stalls)
    print(
        f"\n{len(more)} moves under a ring of {NODES} ranks. Longest gap without a move: {quiet:.3f} s"
    )
    for title, values in (
        ("gap", [gap for gap, _ in stalls]),
        ("downtime", [downtime for _, downtime in stalls]),
        ("gap - downtime", more),
    ):
        found, high = spread(values), sorted(values)[int(0.9 * (len(values) - 1))]
        print(
            f"{title:<15} median {found.median:.3f} s, 90% up to {high:.3f} s, "
            f"{found.low:.3f} to {found.high:.3f} s"
        )
    tenths = [int(value * 10 // 1) for value in more]
    for tenth in range(min(tenths), max(tenths) + 1):
        number = tenths.count(tenth)
        if number:
            print(f"  {tenth / 10:5.1f} to {(tenth + 1) / 10:4.1f} s  {number:3}  {'#' * number}")
    late = sum(value > STALL_MORE_S for value in more)
    print(
        f"stall, at most the downtime + {STALL_MORE_S} s wanted: {len(more) - late} of {len(more)} "
        f"moves: {verdict(late, 0)}"
    )


def measure(arguments, effort):
    about = machine.environment()
    figures = {"environment": about, "effort": vars(effort), "run_times": {}}
    with ExitStack() as stack:
        bench = Bench(stack)
        about["network"] = f"{bench.network_gb_per_s():.2f} GB/s by iperf3 between plain namespaces"
        about["load"] = f"{machine.load_average():.1f} (1 minute) at the start"
        about["runs"] = f"{effort.rounds} of about {effort.seconds:g} s"
        for key, value in about.items():
            print(f"{key:<10}{value}")
        runs = {
            PROGRAMS[name].name: bench.run_times(PROGRAMS[name], effort)
            for name in arguments.only or PROGRAMS
            if name in PROGRAMS
        }
        if runs:
            print(
                "\n| program | way | whole command, s | against plain | steps, s | longest pause, s | downtime, s |"
            )
            print("| --- " * 7 + "|")
        for name, of_program in runs.items():
            figures["run_times"][name] = report_run_times(name, of_program)
        print()
        if runs and (effort.seconds < MOVES_IN[1] or effort.rounds < 3):
            print(
                "Few or short runs: the differences below are mostly those of the start and chance."
            )
        for name, of_program in figures["run_times"].items():
            report_targets(name, of_program)
        if not arguments.only or "stall" in arguments.only:
            stalls, quiet = bench.stalls(effort.stalls)
            figures["stalls"] = {
                "gap_and_downtime_s": stalls,
                "longest_gap_without_a_move_s": quiet,
            }
            report_stalls(stalls, quiet)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    for name in ("quick", "full"):
        size.add_argument(
            f"--{name}", dest="effort", action="store_const", const=name, default="default"
        )
    parser.add_argument("--seconds", type=float, metavar="S", help="length of a plain run")
    parser.add_argument("--rounds", type=int, metavar="N", help="runs of each way")
    parser.add_argument("--stalls", type=int, metavar="N", help="moves under the ring")
    parser.add_argument(
        "--only", action="append", choices=[*PROGRAMS, "stall"], help="a part; repeatable"
    )
    parser.add_argument("--ppmr", metavar="PATH", help="the ppmr binary")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    arguments = parser.parse_args()
    if arguments.ppmr:
        os.environ["PPMR"] = str(Path(arguments.ppmr).resolve())
    chosen = {name: getattr(arguments, name) for name in ("seconds", "rounds", "stalls")}
    effort = EFFORTS[arguments.effort]
    effort = Effort(**{**vars(effort), **{name: v for name, v in chosen.items() if v}})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # cleans up, like Ctrl-C
    try:
        measure(arguments, effort)
    except LabError as error:
        sys.exit(f"jobs: {error}")


if __name__ == "__main__":
    main()
