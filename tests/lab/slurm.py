"""Real Slurm on the hosts of a JobHosts: munged and slurmd on each, slurmctld on the first.

    with JobHosts(lab, 4, control_groups=True) as hosts, SlurmCluster(hosts) as slurm:
        job = slurm.submit("ppmr job run --spares 1 -- mpirun ./simulation", nodes=4)
        slurm.await_end(job)

Programs that Slurm starts find the configuration through SLURM_CONF. The daemons keep their state
in directories that are private to their host.
"""
import os
import re
import shlex
import signal
import subprocess

from .node import LabError, wait_until
from .programs import REPOSITORY

CONTROL_PORT = 6817
# The health check as an administrator would adapt it: each host has a drain file, and this
# machine's sensors do not count.
HEALTH_CHECK = """#!/bin/sh
# slurmd gives it no environment but SLURMD_NODENAME.
export SLURM_CONF={directory}/slurm.conf
export PPMR_DRAIN_FILE={directory}/drain-$SLURMD_NODENAME
export PPMR_EDAC=/none PPMR_THERMAL=/none PPMR_SHRINK=1
exec {program}
"""
# Slurm's names of the states in which a job has ended.
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"}


class BatchJob:
    """`ppmr job run` in a batch script; the interface of RunningJob."""

    def __init__(self, slurm, words, directory):
        self.slurm, self.directory = slurm, directory
        command = shlex.join([str(slurm.hosts.ppmr), "job", "run", *words])
        options = [f"--output={directory}/output", f"--error={directory}/errors", "--no-requeue"]
        script = f"cd {directory}\nexec {command}"
        self.number = slurm.submit(script, len(slurm.hosts.names), options=options)

    def _read(self, name):
        path = self.directory / name
        return path.read_text(errors="replace") if path.exists() else ""

    def output(self):
        return self._read("output").splitlines()

    def error_text(self):
        return self._read("errors")

    def await_lines(self, count, timeout=60):
        wait_until(
            lambda: len(self.output()) >= count or self.slurm.has_ended(self.number),
            timeout,
            f"{count} lines of the job",
        )
        if len(self.output()) < count:
            raise LabError(f"the job ended early: {self.output()} {self.error_text()}")

    def signal(self, number):
        """Sends the signal to the launcher."""
        node = self.slurm.hosts.nodes["h1"]
        node.run(["pkill", f"-{int(number)}", "-f", f"{self.slurm.hosts.ppmr.name} job run"])

    def wait(self, timeout=120):
        """Returns the exit code of the batch script, negative after a signal."""
        self.slurm.await_end(self.number, timeout)
        code, number = self.slurm.job(self.number)["ExitCode"].split(":")
        return int(code) or -int(number)


class SlurmCluster:
    def __init__(self, hosts, health_check_interval=1, settings=()):
        """settings: more lines for slurm.conf."""
        self.hosts = hosts
        self.directory = hosts.lab.home / "slurm"
        self.directory.mkdir()
        self.configuration = self.directory / "slurm.conf"
        self.health_check = self.directory / "health-check"
        self.health_check.write_text(
            HEALTH_CHECK.format(
                directory=self.directory, program=REPOSITORY / "jobs/slurm/health_check"
            )
        )
        self.health_check.chmod(0o755)
        lines = [*self._settings(health_check_interval), *settings, ""]
        self.configuration.write_text("\n".join(lines))
        (self.directory / "cgroup.conf").write_text("CgroupAutomount=no\n")
        key = self.directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.environment = {**hosts.environment, "SLURM_CONF": str(self.configuration)}
        self.logs, self.daemons = {}, {}
        for name in hosts.names:
            self._start_munge(name, key)
        self._start("slurmctld", hosts.names[0], ["slurmctld", "-D", "-i"])
        for name in hosts.names:
            self._start("slurmd", name, ["slurmd", "-D"])
        wait_until(
            lambda: set(self.node_states().values()) == {"idle"},
            60,
            "Slurm's nodes to be idle",
            0.2,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _settings(self, health_check_interval):
        names = self.hosts.names
        nodes = [
            f"NodeName={name} NodeAddr=10.78.0.{number} CPUs=16 RealMemory=1000"
            for number, name in enumerate(names, start=1)
        ]
        return [
            "ClusterName=lab",
            f"SlurmctldHost={names[0]}",
            f"SlurmctldPort={CONTROL_PORT}",
            "SlurmUser=root",
            "AuthType=auth/munge",
            "CryptoType=crypto/munge",
            "MpiDefault=none",
            "StateSaveLocation=/run/slurm/state",
            "SlurmdSpoolDir=/run/slurm/spool",
            "SlurmctldPidFile=/run/slurm/slurmctld.pid",
            "SlurmdPidFile=/run/slurm/slurmd.pid",
            "ProctrackType=proctrack/cgroup",
            "TaskPlugin=task/cgroup",
            "JobAcctGatherType=jobacct_gather/cgroup",
            "JobAcctGatherFrequency=task=1",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SlurmdParameters=config_overrides",  # the hosts claim more CPUs than this machine has
            "KillWait=2",
            "SlurmctldTimeout=30",
            "SlurmdTimeout=30",
            f"HealthCheckProgram={self.health_check}",
            f"HealthCheckInterval={health_check_interval}",
            "HealthCheckNodeState=ANY",
            *nodes,
            f"PartitionName=all Nodes={','.join(names)} Default=YES State=UP MaxTime=INFINITE",
        ]

    def _start_munge(self, name, key):
        self.hosts.nodes[name].run(["mkdir", "-m", "0755", "/run/munge"])
        # --force: the key is in a directory that other users may write.
        self._start("munged", name, ["munged", "--foreground", "--force", f"--key-file={key}"])
        wait_until(
            lambda: self.hosts.nodes[name].run(["munge", "-n"], check=False).returncode == 0,
            20,
            f"munged on {name}",
        )

    def _start(self, what, name, command):
        node = self.hosts.nodes[name]
        node.run(["mkdir", "-p", "/run/slurm"])
        log = open(self.directory / f"{what}-{name}.log", "ab")
        self.logs[what, name] = log
        self.daemons[what, name] = node.popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=self.environment
        )

    def log(self, what, name):
        return (self.directory / f"{what}-{name}.log").read_text(errors="replace")

    def command(self, *words, host="h1", check=True):
        node = self.hosts.nodes[host]
        return node.run(words, env=self.environment, check=check).stdout.strip()

    def node_states(self):
        text = self.command("sinfo", "--noheader", "-N", "-o", "%N %T", check=False)
        return dict(line.split() for line in text.splitlines())

    def report_failing(self, host):
        """From now on the health check reports that the host is about to fail."""
        (self.directory / f"drain-{host}").touch()

    def submit(self, script, nodes, tasks_per_node=2, options=(), directory=None):
        """Returns the number of the batch job. `script`: its commands; `directory`: where they
        run."""
        path = self.directory / "batch.sh"
        path.write_text("#!/bin/sh\n" + script + "\n")
        words = [
            "sbatch",
            "--parsable",
            "--no-kill",
            f"--nodes={nodes}",
            "--chdir",
            directory or self.hosts.lab.home,
        ]
        words += [f"--ntasks-per-node={tasks_per_node}", *options, path]
        return self.command(*words)

    def job(self, job):
        """Returns Slurm's record of a job: name to value."""
        text = self.command("scontrol", "show", "job", job, check=False)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def output(self, job):
        path = self.hosts.lab.home / f"slurm-{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def await_end(self, job, timeout=120):
        """Returns Slurm's state of the job, such as COMPLETED."""
        wait_until(lambda: self.has_ended(job), timeout, f"the end of job {job}", 0.2)
        return self.job(job)["JobState"]

    def has_ended(self, job):
        return self.job(job).get("JobState") in ENDED  # unknown while slurmctld does not answer

    def run(self, words, directory, **_):
        """Runs `ppmr job run` in an allocation of all hosts, like JobHosts.run. The job has no
        input.
        """
        return BatchJob(self, words, directory)

    def restart(self, what, host):
        command = {"slurmd": ["slurmd", "-D"], "slurmctld": ["slurmctld", "-D", "-i"]}[what]
        self._start(what, host, command)

    def await_idle(self, timeout=60):
        """Waits until all hosts can run jobs again, also hosts that Slurm has marked as down."""

        def idle():
            states = self.node_states()
            for host, state in states.items():
                if state.startswith(("down", "drain")):
                    self.command(
                        "scontrol", "update", f"NodeName={host}", "State=resume", check=False
                    )
            return set(states.values()) == {"idle"}

        wait_until(idle, timeout, "all hosts to be idle", 0.3)

    def kill(self, what, host):
        """Kills a daemon. slurmctld gets SIGTERM, so that it can save its state: after SIGKILL it
        would forget the jobs of the last seconds, and start them again."""
        process = self.daemons[what, host]
        number = signal.SIGTERM if what == "slurmctld" else signal.SIGKILL
        self.hosts.nodes[host].signal_process(process, number)
        process.wait()

    def close(self):
        for (what, name), process in self.daemons.items():
            if process.poll() is None:
                try:
                    self.hosts.nodes[name].signal_process(process, signal.SIGKILL)
                except LabError:
                    pass
            process.wait()
            self.logs[what, name].close()
