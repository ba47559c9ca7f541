#!/usr/bin/python3
"""Kills programs of jobs at random moments while hosts are evacuated, and checks what remains.

    tests/job_kill_matrix.py --runs 200 --seed 1        as root, after `bazel build //:ppmr`
    tests/job_kill_matrix.py --runs 200 --slurm         jobs of Slurm, whose programs are killed,
                                                        too

Each run is a job that counts on three hosts with two spares: every node prints to a file of its
own, and the command prints the same numbers to its output. One or two hosts are evacuated while one
program is killed: an agent, a `ppmr target`, `ppmr source` or `ppmr migrate`, the launcher, its
command, or a link is cut for a while; under Slurm also slurmd, slurmctld, slurmstepd, srun, or the
holder of a host. Then:

- Every number is in every file and in the output once and in order, and the exit code is that of
  the command; or a node was lost because the ppmr target was killed before it had all of its
  memory; or the job ended with a message, and every file and the output hold a beginning of the
  numbers, each once.
- No container, namespace, port, bundle, mount or record is left.

Prints a table of outcomes. Exit code 0: nothing to object to.
"""

import argparse
import collections
import contextlib
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lab.job_hosts import JobHosts  # noqa: E402
from lab.node import Lab, LabError  # noqa: E402
from lab.slurm import SlurmCluster  # noqa: E402

COUNT = 120
EVACUATION_S_MAX = 90
NODES = ("h1", "h2", "h3")
VICTIMS = (
    "nothing",
    "agent of the home",
    "agent of the host",
    "agent of the spare",
    "ppmr target",
    "ppmr source",
    "ppmr migrate",
    "launcher",
    "command",
    "link",
)
VICTIMS_OF_SLURM = ("slurmd", "slurmctld", "slurmstepd", "srun", "ppmr job hold")
LOOP = f'i=0; while [ $i -lt {COUNT} ]; do echo $i >>"$0"; echo $i; i=$((i+1)); sleep 0.05; done'


def command_line(directory):
    """A job that counts in all nodes. Only the numbers of the first node go to the output."""
    others = " ".join(
        f"/run/ppmr/rsh {name} 'cd {directory}; sh -c \"$LOOP\" {name}' >/dev/null &"
        for name in NODES[1:]
    )
    # The line passes through a second shell on the other node.
    others = others.replace('"$LOOP"', "'\\''" + LOOP + "'\\''")
    return f"{others} sh -c '{LOOP}' h1; wait; exit 7"


def kill(hosts, slurm, job, victim, host, rng):
    """Returns a function and its arguments that start the program again, or nothing if none must
    start.
    """
    spare = rng.choice(("h4", "h5"))
    agents = {"agent of the home": "h1", "agent of the host": host, "agent of the spare": spare}
    if victim in agents:
        hosts.kill_agent(agents[victim])
        return [hosts.start_agent, agents[victim]]
    if victim == "launcher":
        job.signal(signal.SIGKILL)
    elif victim == "command":
        for node in hosts.nodes.values():  # on the host where it is now
            node.run(["pkill", "-KILL", "-f", "^sh -c /run/ppmr/rsh"], check=False)
    elif victim in ("slurmd", "slurmctld"):
        at = host if victim == "slurmd" else "h1"
        slurm.kill(victim, at)
        return [slurm.restart, victim, at]
    elif victim in ("slurmstepd", "srun"):
        name = r"slurmstepd: \[[0-9]+\.0\]" if victim == "slurmstepd" else "^srun "
        at = host if victim == "slurmstepd" else "h1"
        hosts.nodes[at].run(["pkill", "-KILL", "-f", name], check=False)
    elif victim == "link":
        link = hosts.links[rng.choice((host, spare))]
        link.set_up(False)
        time.sleep(rng.uniform(0.2, 3))
        link.set_up(True)
    elif victim != "nothing":
        at = spare if victim == "ppmr target" else host
        hosts.nodes[at].run(
            ["pkill", "-KILL", "-f", f"{hosts.ppmr.name} {victim[5:]} "], check=False
        )
    return []


def is_beginning(numbers, whole):
    expected = [str(number) for number in range(COUNT)]
    return numbers == expected if whole else numbers == expected[: len(numbers)]


def one_run(hosts, slurm, rng, number, only=None):
    directory = hosts.lab.home / f"run{number}"
    directory.mkdir()
    victim = only or rng.choice(VICTIMS + (VICTIMS_OF_SLURM if slurm else ()))
    hosts_to_leave = rng.sample(NODES, rng.choice((1, 1, 2)))
    words = ["--spares", "2", "--slots", "1", "--", "sh", "-c", command_line(directory)]
    hosts.return_all()
    job = (slurm or hosts).run(words, directory=directory)
    job.await_lines(5)
    evacuations = [
        hosts.nodes["h1"].popen([hosts.ppmr, "job", "evacuate", host], stdout=-3, stderr=-3)
        for host in hosts_to_leave
    ]
    time.sleep(rng.uniform(0, 2.5))
    restart = kill(hosts, slurm, job, victim, hosts_to_leave[0], rng)
    time.sleep(rng.uniform(0, 1))
    if restart:
        start, *arguments = restart
        start(*arguments)
    objections = []
    try:
        code = job.wait(120)
    except LabError as late:
        code = None
        objections.append(str(late))
    for evacuation in evacuations:
        try:
            evacuation.wait(EVACUATION_S_MAX)
        except subprocess.TimeoutExpired:
            objections.append(f"an evacuation did not end within {EVACUATION_S_MAX} s")
    files = {
        name: (directory / name).read_text().split() if (directory / name).exists() else []
        for name in NODES
    }
    lost_connection = "peer closed the connection" in job.error_text()
    if code == 7 and victim == "ppmr target" and lost_connection:
        # The window of a lazy restore (docs/jobs.md). The command goes on when one of its nodes is
        # gone.
        outcome = "a node was lost with the memory that it still missed"
    elif code == 7:
        outcome = "complete"
    elif victim == "launcher" and code == -signal.SIGKILL:
        outcome = "ended with its launcher"
    elif victim == "command" and code == 128 + signal.SIGKILL:
        outcome = "ended with its command"
    elif code == 1 and "ppmr job run: " in job.error_text():
        reason = job.error_text().partition("ppmr job run: ")[2].splitlines()[0]
        outcome = "lost: " + re.sub(r"\d+ | h\d", "", reason)[:70]
    else:
        outcome = "wrong"
        objections.append(f"exit code {code}: {job.error_text()}")
    whole = outcome == "complete"
    for name, numbers in {**files, "the output": job.output()}.items():
        if not is_beginning(numbers, whole):
            objections.append(f"{name} has {len(numbers)} numbers: ...{numbers[-5:]}")
    if objections:
        objections.append(f"the job's errors: {job.error_text()[-1000:]}")
    try:
        hosts.await_clean(60)
        if slurm:
            slurm.await_idle()
    except LabError as late:
        objections.append(f"left: {hosts.leftovers()} {late}")
    return victim, outcome, objections


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--only", choices=VICTIMS + VICTIMS_OF_SLURM, help="kill only this")
    parser.add_argument("--slurm", action="store_true", help="the jobs are jobs of Slurm")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    table, bad, number = collections.Counter(), 0, 0
    while number < args.runs:
        # Uses new hosts from time to time, and after an objection.
        with contextlib.ExitStack() as stack:
            lab = stack.enter_context(Lab())
            options = {"agent_options": ["--slurm"], "control_groups": True} if args.slurm else {}
            hosts = stack.enter_context(JobHosts(lab, 5, **options))
            slurm = stack.enter_context(SlurmCluster(hosts)) if args.slurm else None
            for _ in range(20):
                if number >= args.runs:
                    break
                rng = random.Random(args.seed * 1_000_003 + number)
                victim, outcome, objections = one_run(hosts, slurm, rng, number, args.only)
                table[victim, outcome] += 1
                number += 1
                print(f"{number:4} {victim:20} {outcome}", flush=True)
                for objection in objections:
                    print(f"     OBJECTION: {objection}", flush=True)
                if objections:
                    bad += 1
                    for name in hosts.names:
                        print(f"     --- {name}\n{hosts.agent_log(name)[-1500:]}", flush=True)
                    for log in sorted((lab.home / "slurm").glob("*.log")) if slurm else []:
                        text = log.read_text(errors="replace")
                        print(f"     --- {log.name}\n{text[-1500:]}", flush=True)
                    break
    print("\n| killed | outcome | runs |\n| --- | --- | --- |")
    for (victim, outcome), count in sorted(table.items()):
        print(f"| {victim} | {outcome} | {count} |")
    print(f"\n{number} runs, {bad} to object to")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
