"""How the cost of a job grows with its nodes: its start, an evacuation, and the agents at rest.

Each job is an `mpirun` with one sleeping rank in each node; three more hosts are spares. All hosts
are namespaces of this machine, so the times are those of its processors. Messages, bytes, CPU
seconds and memory are those of a cluster. Rules of iptables on every host count the requests
between agents, and their bytes with all headers. Two more series show what moving the first node
costs if it has many processes. The launcher of MPICH keeps one such process, `ppmr job rsh`, for
each other node. `bazel run -c opt //bench:job_benchmark` measures the home alone, with up to 10,000
nodes.
"""
import shutil
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import mean

from lab.job_hosts import AS_ROOT, JobHosts
from lab.node import HOST, Lab, LabError, wait_until

from .host import TICK
from .job_traffic import TrafficCounters
from .plan import Item, Outcome
from .spread import spread

SECTION = "job growth"
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
    return sum(map(int, words[11:15])) / TICK


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
    """Measures a job with `count` nodes."""
    if not all(map(shutil.which, ("mpirun", "iptables"))):
        return Outcome(not_measured={"all": "mpirun or iptables is missing"})
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
        job = hosts.run([*words, "sh", "-c", "hostname; exec sleep 600"], environment=AS_ROOT)
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
        times = {
            "start": [found["start: time, s"]],
            "evacuation": [sample["time, s"] for sample in samples],
            "end": [found["end: time, s"]],
        }
        return Outcome(times, found)


def measure_processes(count, start):
    """Measures moves of the first node, in which the shell has run `start` `count` times."""
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
        times = {
            "move of node 1": [move["time, s"] for move in moves],
            "downtime": [move["downtime, s"] for move in moves],
        }
        facts = {f"{what}, s": spread(samples).median for what, samples in times.items()}
        return Outcome(times, facts)


def plan(testbed):
    effort = testbed.effort
    for count in effort.job_nodes:
        yield Item(
            SECTION,
            "nodes",
            str(count),
            {"n": count},
            "s",
            lambda count=count: measure(count, effort.job_rest_s),
            30 + effort.job_rest_s + 3 * count,
        )
    for name, start in PROCESSES.items():
        for count in effort.job_processes:
            yield Item(
                SECTION,
                f"processes {name} in node 1",
                str(count),
                {"n": count},
                "s",
                lambda count=count, start=start: measure_processes(count, start),
                30 + 0.2 * count,
            )
