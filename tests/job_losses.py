#!/usr/bin/python3
"""Hosts of protected jobs die without warning, at random moments.

    tests/job_losses.py --runs 50 --seed 1 --program lu
    tests/job_losses.py --runs 50 --seed 1 --twice

Each run starts a program on four hosts and two spares with `ppmr job run --protect 5s`. At a random
moment after the first epoch, between two epochs or in one, it cuts off one of the hosts that are
not the job's home, and kills everything on this host. With --twice, a second host dies at a random
moment while the job is rolled back; it is no neighbour of the first in the ring of partners. The
values that the program prints must be those of an undisturbed run, each once. Prints the seed
first, and a line for each run: the hosts, how long the job stood still, and how much work was lost.
Fails if, in a run with one loss, both together are more than one epoch and ten seconds.
"""

import argparse
import pathlib
import random
import re
import shutil
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from lab import lammps  # noqa: E402
from lab.job_hosts import AS_ROOT, JobHosts  # noqa: E402
from lab.node import Lab, wait_until  # noqa: E402

NODES, SPARES = 4, 2
EVERY_S = 5
ROLLBACK_S = 2.0  # about as long as a rollback takes
LOST_S_MAX = EVERY_S + 10.0
WORDS = ["--spares", str(SPARES), "--slots", "1"]
KERNELS = pathlib.Path(__file__).resolve().parent / "workloads/mpi_kernels.py"
CALIBRATION_LINES = 100


class Program:
    """What the hosts run, with so many lines of output."""

    def __init__(self, name, lines):
        self.name, self.lines = name, lines

    def start(self, hosts, words=()):
        command = self._command(hosts.lab.home)
        return hosts.run(
            [*WORDS, *words, "--", "mpirun", "-n", str(NODES), *command], environment=AS_ROOT
        )

    def _command(self, directory):
        if self.name == "lammps":
            (directory / "in.melt").write_text(lammps.melt(steps=10 * self.lines))
            return ["lmp", "-in", "in.melt", "-log", "none"]
        shutil.copy(KERNELS, directory)
        return ["/usr/bin/python3", directory / KERNELS.name, self.name, self.lines]

    def finish(self, job):
        """Returns the lines with values."""
        if job.wait(600) != 0:
            raise SystemExit(f"the job failed: {job.error_text()}")
        is_value = r" +\d+ +-?\d+\.\d+ " if self.name == "lammps" else "step "
        return [line for line in job.output() if re.match(is_value, line)]


def protection(hosts):
    for job in hosts.status():
        return job["protection"]
    return None


def lose_another(chance, hosts, name):
    """Waits until the rollback begins, and loses another host that is no neighbour of the first.
    Two neighbours must not both be lost: a host has its own epoch and that of the node before it,
    and only the next host has a copy."""
    wait_until(
        lambda: (protection(hosts) or {"rolling_back": "ended"})["rolling_back"],
        60,
        "the rollback to begin",
        interval=0.02,
    )
    index = hosts.names.index(name)
    others = hosts.names[1 : NODES + SPARES]
    another = chance.choice([each for each in others if abs(hosts.names.index(each) - index) > 1])
    time.sleep(chance.uniform(0, ROLLBACK_S))
    hosts.lose(another)
    return another


def one_run(chance, program, expected, twice):
    """Returns (hosts, seconds from the loss until all nodes ran again, seconds of work lost)."""
    fence = ["--fence", "/bin/true"]
    with Lab() as lab, JobHosts(lab, NODES + SPARES, agent_options=fence) as hosts:
        job = program.start(hosts, ["--protect", f"{EVERY_S}s"])
        job.await_lines(1)
        wait_until(lambda: protection(hosts)["agreed"] >= 1, 120, "the first epoch", interval=0.1)
        time.sleep(chance.uniform(0, 2 * EVERY_S))
        name = chance.choice(hosts.names[1:NODES])
        if protection(hosts) is None:
            raise SystemExit("the job ended before its host was to die: use more --seconds")
        agreed_ns = protection(hosts)["agreed_ns"]
        lost_at = time.monotonic()
        work_s = time.time() - agreed_ns / 1e9
        hosts.lose(name)
        lost = [name, lose_another(chance, hosts, name)] if twice else [name]
        all_run = {"rollbacks": 1, "rolling_back": ""}  # the job has ended

        def runs_again():
            now = protection(hosts) or all_run
            return now["rollbacks"] >= 1 and not now["rolling_back"]

        wait_until(runs_again, 180, "the rollback", interval=0.25)
        still_s = time.monotonic() - lost_at
        if program.finish(job) != expected:
            raise SystemExit(f"{lost}: the result differs: {job.output()} {job.error_text()}")
        return " and ".join(lost), still_s, work_s


def undisturbed(program):
    """Returns (lines with values, seconds from the first line to the end)."""
    with Lab() as lab, JobHosts(lab, NODES + SPARES) as hosts:
        job = program.start(hosts)
        job.await_lines(1)
        began = time.monotonic()
        found = program.finish(job)
        return found, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--program", choices=["lammps", "cg", "ft", "lu"], default="lammps")
    parser.add_argument(
        "--seconds", type=float, default=30, help="how long the program runs without a loss"
    )
    parser.add_argument("--twice", action="store_true", help="a second host dies meanwhile")
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    chance = random.Random(options.seed)
    _, took_s = undisturbed(Program(options.program, CALIBRATION_LINES))
    lines = max(CALIBRATION_LINES, round(CALIBRATION_LINES * options.seconds / took_s))
    program = Program(options.program, lines)
    expected, took_s = undisturbed(program)
    print(f"{options.program} prints {lines} lines in {took_s:.1f} s", flush=True)
    stood_still, lost = [], []
    for number in range(1, options.runs + 1):
        name, still_s, work_s = one_run(chance, program, expected, options.twice)
        stood_still.append(still_s)
        lost.append(still_s + work_s)
        print(
            f"{number}: {name} died; all nodes ran again after {still_s:.1f} s, "
            f"{work_s:.1f} s of work were done again; same result",
            flush=True,
        )
    print(
        f"{options.runs} losses, {options.runs} same results; until all nodes ran again: median "
        f"{statistics.median(stood_still):.1f} s, longest {max(stood_still):.1f} s; with the work "
        f"done again: longest {max(lost):.1f} s"
    )
    if not options.twice and max(lost) > LOST_S_MAX:
        raise SystemExit(f"a loss cost more than one epoch and 10 s ({LOST_S_MAX:.0f} s)")


if __name__ == "__main__":
    main()
