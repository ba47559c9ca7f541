"""Hosts with `ppmr job agent`, joined by bridges to one switch, and jobs on them.

    with JobHosts(lab, 4) as hosts:
        job = hosts.run(["--spares", "1", "--", "mpirun", "..."])   # on host "h1"
        hosts.evacuate("h2")
        job.wait()
"""
import json
import os
import signal
import subprocess
import tempfile
import threading
import time

from .node import LabError, wait_until
from .pace import patience
from .ppmr import find_ppmr, make_key
from .protection import lose

BRIDGE = "jobs"
SOCKET = "/run/ppmr-job.sock"
# The environment of Open MPI's mpirun.
AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Ranks that wait yield the CPU, because there are more ranks than CPUs.
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def count_until(end):
    """A program for the shell: prints 0, 1, 2 ... until the file `end` exists."""
    return f"i=0; until [ -e {end} ]; do echo $i; i=$((i+1)); sleep 0.05; done"


class JobHosts:
    def __init__(self, lab, count, environment=None, agent_options=(), control_groups=False):
        self.lab = lab
        self.environment = {**os.environ, **(environment or {})}
        self.ppmr = find_ppmr(environment)
        self.agent_options = agent_options
        self.names = [f"h{number}" for number in range(1, count + 1)]
        self.nodes = {name: lab.node(name, control_groups) for name in self.names}
        self.agents, self.jobs = {}, []
        self._join()
        self._key = make_key(lab.home / "job-key", self.nodes["h1"])
        for name in self.names:
            self.start_agent(name, wait=False)
        for name in self.names:
            self.await_agent(name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _join(self):
        hosts_file = self.lab.home / "hosts"
        hosts_file.write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"10.78.0.{i} {name}\n" for i, name in enumerate(self.names, start=1))
        )
        self.switch = self.lab.node("switch")
        self._make_bridge(self.switch, 99)
        self.links = {}
        for number, (name, node) in enumerate(self.nodes.items(), start=1):
            self._make_bridge(node, number)
            self.links[name] = self.lab.join(node, self.switch)
            (_, here, _), (_, there, _) = self.links[name].ends
            node.run(["ip", "link", "set", here, "master", BRIDGE])
            self.switch.run(["ip", "link", "set", there, "master", BRIDGE])
            node.run(["ip", "address", "add", f"10.78.0.{number}/24", "dev", BRIDGE])
            node.run(["mount", "--bind", hosts_file, "/etc/hosts"])

    @staticmethod
    def _make_bridge(node, number):
        # If a bridge had the address of one of its ports, its address would change when ports come
        # and go.
        address = f"02:00:00:00:00:{number:02x}"
        node.run(["ip", "link", "add", BRIDGE, "address", address, "type", "bridge"])
        node.run(["ip", "link", "set", BRIDGE, "up"])

    def state_directory(self, name):
        return self.nodes[name].private / "job-state"

    def start_agent(self, name, wait=True):
        log = tempfile.NamedTemporaryFile(prefix=f"ppmr-agent-{name}-")
        command = [
            *(self.ppmr, "job", "agent", "--host", name, "--bridge", BRIDGE, *self._key),
            *("--share", self.lab.home, "--state-dir", self.state_directory(name)),
            *("--target-option=--pool-size=16MiB", "-f", *self.agent_options),
        ]
        process = self.nodes[name].popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=self.environment
        )
        self.agents[name] = (process, log)
        if wait:
            self.await_agent(name)

    def agent_log(self, name):
        _, log = self.agents[name]
        with open(log.name, errors="replace") as file:
            return file.read()

    def await_agent(self, name):
        process, _ = self.agents[name]
        wait_until(
            lambda: process.poll() is not None
            or f"agent of host {name} ready" in self.agent_log(name),
            30,
            f"the agent of {name}",
        )
        if process.poll() is not None:
            raise LabError(f"the agent of {name} ended: {self.agent_log(name)}")

    def kill_agent(self, name):
        process, _ = self.agents[name]
        self.nodes[name].signal_process(process, signal.SIGKILL)
        process.wait()

    def lose(self, name):
        """Takes a host off the network, and ends everything on it at once."""
        self.links[name].set_up(False)
        lose(self.nodes[name])

    def run(self, words, host="h1", directory=None, **options):
        """Starts `ppmr job run` on a host: with "--hosts" and all hosts, then `words`."""
        job = RunningJob(self, host, words, directory or self.lab.home, **options)
        self.jobs.append(job)
        return job

    def resume(self, directory, hosts, *words, **options):
        """Starts `ppmr job resume` on the first of the hosts."""
        words = [directory, "--hosts", ",".join(hosts), *words]
        job = RunningJob(self, hosts[0], words, self.lab.home, verb="resume", **options)
        self.jobs.append(job)
        return job

    def command(self, host, *words, timeout=120, check=True):
        return self.nodes[host].run([self.ppmr, "job", *words], timeout=timeout, check=check)

    def evacuate(self, host, *options, at="h1", check=True):
        done = self.command(at, "evacuate", host, "--json", *options, check=check)
        return json.loads(done.stdout.splitlines()[-1])["moves"] if done.stdout else done

    def return_all(self):
        """Makes all hosts that earlier jobs have left hosts for jobs again."""
        for name in self.names:
            self.command(name, "return", name)

    def status(self, at="h1"):
        return json.loads(self.command(at, "status", "--json").stdout)["jobs"]

    def start_count(self, words=("--spares", "1", "--slots", "1")):
        """Starts a job that prints numbers until its end_count()."""
        end = self.lab.home / f"end-{time.time_ns()}"
        job = self.run([*words, "--", "sh", "-c", f"{count_until(end)}; exit 7"])
        job.end_file = end
        return job

    def containers(self, name):
        done = self.nodes[name].run(["runc", "list", "-q"], check=False)
        return [line for line in done.stdout.split() if line.startswith("ppmr-")]

    def leftovers(self):
        """Returns the containers, bundles, namespaces and ports that jobs left on the hosts."""
        script = "runc list -q; ls /run/ppmr-job/nodes /run/ppmr-job/records /run/ppmr-job/jobs /run/ppmr-job/out | grep -v :; ls /run/netns 2>/dev/null; ip -o link | grep -o 'pj[0-9a-f]*@'"
        found = {}
        for name, node in self.nodes.items():
            words = node.run(["sh", "-c", script], check=False).stdout.split()
            if words:
                found[name] = words
        return found

    def await_clean(self, timeout=40):
        wait_until(lambda: not self.leftovers(), timeout, "the hosts to be clean", interval=0.2)

    def close(self):
        for job in self.jobs:
            job.close()
        for name, node in self.nodes.items():
            for container in self.containers(name):
                node.run(["runc", "delete", "--force", container], check=False)
            # Ends the target: otherwise the end of the node would wait for the target's mount.
            node.run(["umount", "-l", "/run/ppmr-job/in"], check=False)
        for name, (process, log) in self.agents.items():
            if process.poll() is None:
                self.kill_agent(name)
            log.close()


class RunningCommand:
    """A command in the background. Its output is collected line by line."""

    def __init__(self, process):
        self.process = process
        self.lines, self.errors = [], []
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors)),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.append((time.monotonic(), line.rstrip("\n")))

    def output(self):
        return [line for _, line in self.lines]

    def error_text(self):
        return "\n".join(line for _, line in self.errors)

    def await_lines(self, count, timeout=60):
        wait_until(
            lambda: len(self.lines) >= count or self.process.poll() is not None,
            timeout,
            f"{count} lines of the job",
        )
        if len(self.lines) < count:
            raise LabError(f"the job ended early: {self.output()} {self.error_text()}")

    def wait(self, timeout=120):
        """Returns the exit code."""
        try:
            code = self.process.wait(patience(timeout))
        except subprocess.TimeoutExpired:
            raise LabError(
                f"the job did not end: {self.output()[-5:]} {self.error_text()}"
            ) from None
        for reader in self._readers:
            reader.join()
        return code

    def longest_silence(self):
        """Returns the longest time between two lines of output, in seconds."""
        times = [at for at, _ in self.lines]
        return max(later - earlier for earlier, later in zip(times, times[1:]))

    def close(self):
        self.process.wait()
        for reader in self._readers:
            reader.join()


class RunningJob(RunningCommand):
    """`ppmr job run`, or `ppmr job resume`."""

    def __init__(
        self,
        hosts,
        host,
        words,
        directory,
        environment=None,
        stdin=subprocess.DEVNULL,
        verb="run",
    ):
        self.hosts, self.host = hosts, host
        self.end_file = None  # of JobHosts.start_count()
        if "--hosts" not in words:
            words = ["--hosts", ",".join(hosts.names), *words]
        super().__init__(
            hosts.nodes[host].popen(
                ["env", f"--chdir={directory}", hosts.ppmr, "job", verb, *words],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**hosts.environment, **(environment or {})},
            )
        )

    def end_count(self, before=(), timeout=120):
        """Ends a job that still counts. It must have printed each number once. `before`: the lines
        that it printed before it was suspended."""
        self.await_lines(len(self.lines) + 10)
        self.end_file.touch()
        code = self.wait(timeout)
        lines = [*before, *self.output()]
        if code != 7 or lines != [str(number) for number in range(len(lines))]:
            raise LabError(f"the job ended with {code}, and printed {lines} {self.error_text()}")

    def signal(self, number):
        self.hosts.nodes[self.host].signal_process(self.process, number)

    def close(self):
        if self.process.poll() is None:
            try:
                self.signal(signal.SIGKILL)
            except LabError:
                pass
        super().close()
