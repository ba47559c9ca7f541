#!/usr/bin/python3
"""How the cost of a job grows with its nodes: its start, an evacuation, and the agents at rest.
Fits a line to each figure.

    bench/job_growth.py [--nodes 2,4,8,16] [--processes 2,50,200] [--idle 30] [--json FILE]
        as root, after `bazel build //:ppmr`

Each job is an `mpirun` with one rank in each node, that sleeps; three more hosts are spares. All
hosts are namespaces of this machine, so times are those of its processors, while messages, bytes,
CPU seconds and memory are those of a cluster. Requests between agents are counted by rules of
iptables on every host, with all headers. Two more tables show what moving the first node costs with
many processes. The launcher of MPICH keeps one, `ppmr job rsh`, for each other node.
`bazel run -c opt //bench:job_benchmark` measures the home alone, with up to 10,000 nodes.
"""
import argparse
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lab.job_hosts import JobHosts  # noqa: E402
from lab.node import HOST, Lab, LabError, wait_until  # noqa: E402
from measure import machine  # noqa: E402
from measure.job_traffic import TrafficCounters  # noqa: E402
from measure.spread import figure, spread  # noqa: E402

MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
HOME = "h1"
# The objects that the first node may have in large numbers. Each writes a line.
PROCESSES = {
    "ppmr job rsh": "/run/ppmr/rsh h2 'echo up; exec sleep 600' &",
    "sleep": "{ echo up; exec sleep 600; } &",
}
SPARES = 3  # each takes the last node once
SETTLE_SECONDS = 3  # before the start, and before the agents are at rest


def cpu_seconds(pid):
    """CPU seconds of the process and of its children that have ended, such as runc."""
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, words[11:15])) / machine.TICK


class Agents:
    def __init__(self, hosts):
        self.pids = {
            name: hosts.nodes[name].host_pid(process) for name, (process, _) in hosts.agents.items()
        }

    def cpu(self):
        return {name: cpu_seconds(pid) for name, pid in self.pids.items()}

    def memory_mib(self, name):
        return HOST.memory_kib(self.pids[name])["VmRSS"] / 1024


def launchers_of(hosts):
    """Returns the pids of the processes in the first node that hold a connection to a command
    in another node."""
    parents, launchers = {}, []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # the process has ended
        parents[int(entry.name)] = int(stat[1])
        if words[1:3] == [b"job", b"rsh"]:
            launchers.append(int(entry.name))

    def is_below(pid, ancestor):
        while pid in parents and pid != ancestor:
            pid = parents[pid]
        return pid == ancestor

    return [pid for pid in launchers if is_below(pid, hosts.nodes[HOME].init_pid)]


def evacuate(hosts, counters, host, agents):
    before, cpu_before, began = counters.read(), agents.cpu(), time.monotonic()
    [move] = hosts.evacuate(host)
    took = time.monotonic() - began
    if not move["ok"]:
        raise LabError(f"host {host} was not evacuated: {move['error']}")
    traffic, cpu = counters.read() - before, agents.cpu()
    return {
        "time, s": took,
        "downtime, s": move["downtime_s"],
        "requests": traffic.requests,
        "bytes": traffic.bytes,
        "connections to ppmr target": traffic.target_connections,
        "ARP announcements": traffic.announcements,
        "CPU of the home, s": cpu[HOME] - cpu_before[HOME],
    }


def measure(count, idle_seconds):
    """{figure: value} of a job with `count` nodes."""
    with ExitStack() as stack:
        lab = stack.enter_context(Lab())
        hosts = stack.enter_context(JobHosts(lab, count + SPARES))
        counters = TrafficCounters(hosts)
        stack.callback(counters.close)
        agents = Agents(hosts)
        found = {}

        # Each agent asks every ten seconds to which hosts its nodes belong. Avoid that moment.
        time.sleep(SETTLE_SECONDS)
        before, cpu_before, began = counters.read(), agents.cpu(), time.monotonic()
        words = ["--spares", str(SPARES), "--slots", "1", "--", "mpirun", "-n", str(count)]
        job = hosts.run([*words, "sh", "-c", "hostname; exec sleep 600"], environment=MPI)
        job.await_lines(count, 170)
        found["start: time, s"] = time.monotonic() - began
        at_start, cpu_at_start = counters.read() - before, agents.cpu()
        found["start: requests"] = at_start.requests
        found["start: bytes"] = at_start.bytes
        found["start: ARP announcements"] = at_start.announcements
        found["start: ARP questions"] = at_start.questions
        found["start: CPU of the home, s"] = cpu_at_start[HOME] - cpu_before[HOME]
        found["start: CPU of another agent, s"] = mean(
            cpu_at_start[name] - cpu_before[name] for name in hosts.names[1:count]
        )

        time.sleep(SETTLE_SECONDS)
        before, cpu_before, began = counters.read(), agents.cpu(), time.monotonic()
        time.sleep(idle_seconds)
        took = time.monotonic() - began
        at_rest, cpu_after = counters.read() - before, agents.cpu()
        found["at rest: requests per s"] = at_rest.requests / took
        found["at rest: bytes per s"] = at_rest.bytes / took
        found["at rest: CPU of the home, ms per s"] = (
            1000 * (cpu_after[HOME] - cpu_before[HOME]) / took
        )
        found["at rest: CPU of another agent, ms per s"] = mean(
            1000 * (cpu_after[name] - cpu_before[name]) / took for name in hosts.names[1:count]
        )
        found["memory of the home, MiB"] = agents.memory_mib(HOME)
        found["memory of another agent, MiB"] = agents.memory_mib(hosts.names[1])
        found["launchers in node 1"] = len(launchers_of(hosts))

        samples = [
            evacuate(hosts, counters, host, agents)
            for host in hosts.names[count - 1 : count - 1 + SPARES]
        ]
        for name in samples[0]:
            found[f"evacuation: {name}"] = spread([sample[name] for sample in samples]).median

        began = time.monotonic()
        job.signal(signal.SIGTERM)
        job.wait()
        wait_until(lambda: not hosts.status(), 60, "the job to end")
        found["end: time, s"] = time.monotonic() - began
        hosts.await_clean(60)
        return found


def measure_processes(count, start):
    """{figure: value} of moves of the first node, in which the shell has run `start` so many
    times."""
    with Lab() as lab, JobHosts(lab, 2 + SPARES) as hosts:
        counters = TrafficCounters(hosts)
        try:
            script = f"i=0; while [ $i -lt {count} ]; do {start} i=$((i+1)); done; wait"
            job = hosts.run(["--spares", str(SPARES), "--", "sh", "-c", script])
            job.await_lines(count, 120)
            places = [HOME, *hosts.names[2 : 1 + SPARES]]
            moves = [evacuate(hosts, counters, host, Agents(hosts)) for host in places]
            job.signal(signal.SIGTERM)
            job.wait()
        finally:
            counters.close()
        return {
            "move of node 1: time, s": spread(move["time, s"] for move in moves).median,
            "move of node 1: downtime, s": spread(move["downtime, s"] for move in moves).median,
        }


def line_through(points):
    """(at zero, per node) of the straight line with the least squares."""
    mean_x, mean_y = mean(x for x, _ in points), mean(y for _, y in points)
    square = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / square if square else 0.0
    return mean_y - slope * mean_x, slope


def model(figures):
    """{figure: (at zero, per node, largest deviation of a measured value from the line)}"""
    fitted = {}
    for name in next(iter(figures.values())):
        points = [(count, found[name]) for count, found in figures.items()]
        base, slope = line_through(points)
        off = max(abs(y - base - slope * x) for x, y in points)
        fitted[name] = (base, slope, off)
    return fitted


def print_table(figures, head):
    fitted = model(figures)
    print(f"\n| {head} | {' | '.join(map(str, figures))} | line through these | off by at most |")
    print("| --- " * (len(figures) + 3) + "|")
    for name, (base, slope, off) in fitted.items():
        values = " | ".join(figure(found[name]) for found in figures.values())
        sign = "-" if slope < 0 else "+"
        line = f"{figure(base)} {sign} {figure(abs(slope))} n"
        print(f"| {name} | {values} | {line} | {figure(off)} |")
    return fitted


def numbers(text):
    return [int(word) for word in text.split(",") if word]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=numbers, default="2,4,8,16", metavar="N,N,...")
    parser.add_argument("--processes", type=numbers, default="2,50,200", metavar="N,N,...")
    parser.add_argument("--idle", type=float, default=30, metavar="SECONDS")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--ppmr", metavar="PATH", help="the ppmr binary")
    arguments = parser.parse_args()
    if arguments.ppmr:
        os.environ["PPMR"] = str(Path(arguments.ppmr).resolve())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # cleans up, like Ctrl-C
    try:
        about = machine.environment()
        for key, value in about.items():
            print(f"{key:<10}{value}")
        figures = {}
        for count in arguments.nodes:
            figures[count] = measure(count, arguments.idle)
            print(f"{count} nodes measured", file=sys.stderr, flush=True)
        tables = {"nodes": figures}
        for name, start in PROCESSES.items():
            tables[f"processes `{name}` in node 1"] = {
                count: measure_processes(count, start) for count in arguments.processes
            }
    except LabError as error:
        sys.exit(f"job_growth: {error}")
    lines = {head: print_table(found, head) for head, found in tables.items() if found}
    if arguments.json:
        text = json.dumps({"environment": about, "figures": tables, "lines": lines}, indent=1)
        Path(arguments.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
