#!/usr/bin/python3
"""Hosts of protected jobs die without warning, at random moments.

    tests/job_losses.py --runs 50 --seed 1

Each run starts LAMMPS on three hosts and a spare with `ppmr job run --protect 5s`, and takes one of
the hosts that are not the job's home off the network, and kills all on it, at a random moment after
the first epoch: between two epochs, or in one. The values that LAMMPS prints must be those of an
undisturbed run, each once. Prints the seed first, and a line for each run: the host, when it died,
how long the job stood still, and how much work was lost.
"""

import argparse
import pathlib
import random
import re
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from lab import lammps  # noqa: E402
from lab.job_hosts import AS_ROOT, JobHosts  # noqa: E402
from lab.node import Lab, wait_until  # noqa: E402

HOSTS = 4
EVERY_S = 5
WORDS = ["--spares", "1", "--slots", "1"]
COMMAND = ["--", "mpirun", "-n", "3", "lmp", "-in", "in.melt", "-log", "none"]


def values(job):
    return [line for line in job.output() if re.match(r" +\d+ +-?\d+\.\d+ ", line)]


def finish(job):
    if job.wait(600) != 0:
        raise SystemExit(f"the job failed: {job.error_text()}")
    return values(job)


def protection(hosts):
    for job in hosts.status():
        return job["protection"]
    return None


def lose(hosts, name):
    hosts.links[name].set_up(False)
    hosts.nodes[name].run(["sh", "-c", "kill -KILL -1"], check=False)


def one_run(chance, steps, expected):
    """Returns (host, seconds from the loss until all nodes ran again, seconds of work lost)."""
    with Lab() as lab, JobHosts(lab, HOSTS, agent_options=["--fence", "/bin/true"]) as hosts:
        (hosts.lab.home / "in.melt").write_text(lammps.melt(steps=steps))
        job = hosts.run([*WORDS, "--protect", f"{EVERY_S}s", *COMMAND], environment=AS_ROOT)
        job.await_lines(1)
        wait_until(lambda: protection(hosts)["agreed"] >= 1, 120, "the first epoch", interval=0.1)
        time.sleep(chance.uniform(0, 2 * EVERY_S))
        name = chance.choice(hosts.names[1:-1])
        agreed_ns = protection(hosts)["agreed_ns"]
        lost_at = time.monotonic()
        work_s = time.time() - agreed_ns / 1e9
        lose(hosts, name)
        wait_until(
            lambda: (protection(hosts) or {"rollbacks": 1})["rollbacks"] >= 1,
            180,
            "the rollback",
            interval=0.1,
        )
        still_s = time.monotonic() - lost_at
        if finish(job) != expected:
            raise SystemExit(f"{name}: the result differs: {job.output()} {job.error_text()}")
        return name, still_s, work_s


def undisturbed(steps):
    with Lab() as lab, JobHosts(lab, HOSTS) as hosts:
        (hosts.lab.home / "in.melt").write_text(lammps.melt(steps=steps))
        return finish(hosts.run([*WORDS, *COMMAND], environment=AS_ROOT))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--steps", type=int, default=3000, help="of LAMMPS")
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    chance = random.Random(options.seed)
    expected = undisturbed(options.steps)
    pauses = []
    for number in range(1, options.runs + 1):
        name, still_s, work_s = one_run(chance, options.steps, expected)
        pauses.append(still_s)
        print(
            f"{number}: {name} died; all nodes ran again after {still_s:.1f} s, "
            f"{work_s:.1f} s of work were done again; same result",
            flush=True,
        )
    print(
        f"{options.runs} losses, {options.runs} same results; until all nodes ran again: median "
        f"{statistics.median(pauses):.1f} s, longest {max(pauses):.1f} s"
    )


if __name__ == "__main__":
    main()
