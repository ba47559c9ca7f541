#!/usr/bin/python3
"""Kills programs at random moments while a job is being suspended.

    tests/job_suspensions.py --runs 40 --seed 1

Each run starts a job on two hosts that counts on the second one, in its output and in a file. `ppmr
job suspend` begins, and at a random moment one of the job agents, the launcher, or the command
itself is killed; the agents start again. Then exactly one of these must be true: the job is
suspended, and goes on with `ppmr job resume` on other hosts; or it goes on where it is; or it has
ended with its launcher. Every number must be in the output and in the file once; only in the file
twice, and only if the job was rolled back. Prints the seed first, and a line for each run.
"""

import argparse
import collections
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from lab.job_hosts import JobHosts  # noqa: E402
from lab.node import Lab  # noqa: E402
from lab.ppmr import make_key  # noqa: E402

COUNT = 400
VICTIMS = ["agent of h1", "agent of h2", "launcher", "ppmr job suspend", "nobody"]
SUSPENDED, OF_THE_COMMAND = 75, 7


def start(hosts):
    body = (
        f"i=0; while [ $i -lt {COUNT} ]; do echo $i; echo $i >>lines; i=$((i+1)); sleep 0.05; done"
    )
    (hosts.lab.home / "count.sh").write_text(f"cd {hosts.lab.home}\n{body}\n")
    command = f"/run/ppmr/rsh h2 sh {hosts.lab.home}/count.sh; exit {OF_THE_COMMAND}"
    return hosts.run(["--hosts", "h1,h2", "--slots", "1", "--", "sh", "-c", command])


def kill(hosts, victim, job, suspension):
    if victim.startswith("agent"):
        hosts.kill_agent(victim[-2:])
    elif victim == "launcher":
        job.signal(9)
    elif victim == "ppmr job suspend" and suspension.poll() is None:
        hosts.nodes["h1"].signal_process(suspension, 9)


def check(is_right, what, job, resumed):
    if is_right:
        return
    texts = [each.error_text() + str(each.output()[-3:]) for each in (job, resumed) if each]
    raise SystemExit(f"{what}: {texts}")


def one_run(lab, hosts, chance, victim):
    """Returns (seconds from the beginning of the suspension to the kill, what became of the
    job)."""
    directory = lab.home / "suspended"
    job = start(hosts)
    job.await_lines(5)
    suspension = hosts.nodes["h1"].popen([hosts.ppmr, "job", "suspend", "--keep-dir", directory], stdout=-3, stderr=-3)
    moment_s = chance.uniform(0, 4)
    time.sleep(moment_s)
    kill(hosts, victim, job, suspension)
    if victim.startswith("agent"):
        time.sleep(chance.uniform(0, 3))
        hosts.start_agent(victim[-2:])
    code = job.wait(300)
    suspension.wait()
    hosts.await_clean(timeout=90)
    is_suspended = (directory / "job.kept").exists()
    resumed = None
    if is_suspended:
        resumed = hosts.resume(directory, ["h3", "h4"])
        check(resumed.wait(300) == OF_THE_COMMAND, "the resumed job failed", job, resumed)
        hosts.await_clean()
    outcome = "suspended" if is_suspended else "went on" if code == OF_THE_COMMAND else "ended"
    check(outcome != "ended" or victim == "launcher", "the job is lost", job, resumed)
    check(
        not is_suspended or code == SUSPENDED or victim == "launcher", "it ran twice", job, resumed
    )
    numbers = [*map(str, range(COUNT))]
    output = job.output() + (resumed.output() if resumed else [])
    written = (lab.home / "lines").read_text().split()
    if outcome != "ended" and (victim != "launcher" or not is_suspended):
        check(output == numbers, f"the output has {len(output)} lines", job, resumed)
    if outcome != "ended":
        check(sorted(set(written), key=int) == numbers, "numbers are missing", job, resumed)
        again = sum(count - 1 for count in collections.Counter(written).values())
        outcome += f", {again} numbers written twice" if again else ""
    return moment_s, outcome


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    chance = random.Random(options.seed)
    outcomes = collections.Counter()
    for number in range(1, options.runs + 1):
        victim = chance.choice(VICTIMS)
        with Lab() as lab:
            [_, key] = make_key(lab.home / "keep-key", lab.node("keys"))
            with JobHosts(lab, 4, agent_options=["--keep-key", key]) as hosts:
                moment_s, outcome = one_run(lab, hosts, chance, victim)
        outcomes[outcome.split(",")[0]] += 1
        print(f"{number}: {victim} killed after {moment_s:.1f} s: {outcome}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))


if __name__ == "__main__":
    main()
