"""The environment of a run (machine, kernel, versions, commit, build mode), and the CPU time of the
machine and of processes."""
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab import criu
from lab.node import LabError
from lab.ppmr import find_ppmr
from lab.programs import REPOSITORY

TICK = os.sysconf("SC_CLK_TCK")


def _output_of(*command):
    try:
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            check=True,
            timeout=20,
        )
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _field(path, name):
    return next(
        (
            line.split(":", 1)[1].strip()
            for line in Path(path).read_text().splitlines()
            if line.startswith(name)
        ),
        "unknown",
    )


def build_mode(binary):
    return next(
        (part.rsplit("-", 1)[1] for part in binary.parts if part.startswith("k8-")), "unknown"
    )


def environment():
    memory = int(_field("/proc/meminfo", "MemTotal").split()[0]) // (1 << 20)
    changed = _output_of(
        "git", "status", "--porcelain", "-uno", "--", ".", ":!bench", ":!README.md"
    )
    ppmr = find_ppmr()
    try:
        criu_version = _output_of(criu.find_criu(), "--version").split("\n")[0].split()[-1]
    except LabError:
        criu_version = "none"
    return {
        "host": f"{platform.node()}: {os.cpu_count()} x {_field('/proc/cpuinfo', 'model name')}, {memory} GiB",
        "kernel": re.match(
            r"[\d.]+(-\d+-\w+)?", platform.release()
        ).group(),  # for example 6.12.5 or 6.1.0-35-amd64; without a host's suffix
        "commit": _output_of("git", "rev-parse", "--short", "HEAD") + ("+" if changed else ""),
        "build": build_mode(ppmr),
        "criu": criu_version,
        "libfuse": _output_of("dpkg-query", "-W", "-f", "${Version}", "libfuse3-3"),
        "iperf3": _output_of("dpkg-query", "-W", "-f", "${Version}", "iperf3"),
    }


def load_average():
    return os.getloadavg()[0]


def total_memory_bytes():
    return int(_field("/proc/meminfo", "MemTotal").split()[0]) * 1024


def available_memory_bytes():
    return int(_field("/proc/meminfo", "MemAvailable").split()[0]) * 1024


@dataclass
class MachineTime:
    """CPU seconds of the whole machine."""

    busy: float
    softirq: float
    idle: float

    def __sub__(self, other):
        return MachineTime(
            self.busy - other.busy, self.softirq - other.softirq, self.idle - other.idle
        )


def machine_time():
    user, nice, system, idle, iowait, irq, softirq, steal = (
        int(word) / TICK for word in Path("/proc/stat").read_text().split()[1:9]
    )
    return MachineTime(user + nice + system + irq + softirq, irq + softirq, idle + iowait + steal)


@dataclass
class ProcessCost:
    """CPU seconds that a process has used, and how often its threads have slept."""

    user: float = 0.0
    system: float = 0.0
    sleeps: int = 0

    @property
    def cpu(self):
        return self.user + self.system

    def __sub__(self, other):
        return ProcessCost(
            self.user - other.user, self.system - other.system, self.sleeps - other.sleeps
        )

    def __add__(self, other):
        return ProcessCost(
            self.user + other.user, self.system + other.system, self.sleeps + other.sleeps
        )


def process_cost(pid):
    """Returns the CPU time of all threads, also of those that have ended, and the sleeps of the
    threads that still run."""
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    sleeps = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            sleeps += int(_field(task / "status", "voluntary_ctxt_switches"))
        except (OSError, ValueError):
            continue  # the thread has ended
    return ProcessCost(int(words[11]) / TICK, int(words[12]) / TICK, sleeps)
