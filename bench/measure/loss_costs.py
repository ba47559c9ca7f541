"""What the death of a host costs a job: with epochs in the memory of partners (`ppmr job run
--protect`), beside checkpoints on a shared file system (`ppmr job suspend` and `resume`), which
reads and writes 200 MB/s for all hosts together.

A ring of ranks, each with memory that does not compress, passes a token. The first two bars are how
long the job stands still for a checkpoint; the others how long it stands still after a host has
died. What the job computed since its last checkpoint is lost in both ways, so it is not counted.
Nor is the time until somebody notices that a job without epochs has lost a host.

The file system is ext4 on a loop device in a directory that all hosts share. A control group limits
the device, and nothing of it is in the page cache when the job resumes.
"""
import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from lab import slow_disk
from lab.job_hosts import AS_ROOT, JobHosts
from lab.node import HOST, Lab, wait_until
from lab.ppmr import make_key

from .job_programs import RING
from .jobs import MISSING, gaps_of, has_mpi
from .plan import Item, Outcome
from .spread import spread

SERIES = "loss of a host"
NODES, SPARES = 4, 4
EVERY_S = 20
RATE = 200_000_000
TIMES_MEMORY = 3  # the size of the file system: that of the job's memory, so many times
PAUSE, WRITTEN = "checkpoint: an epoch at a partner", "checkpoint: a shared file system"
BACK, READ = "after a loss: from partners", "after a loss: from the file system"


class SharedDisk:
    """A file system of RATE that all hosts of the lab see."""

    def __init__(self, stack, lab, size_bytes):
        self.path = lab.home / "shared"
        self.path.mkdir()
        image = stack.enter_context(tempfile.NamedTemporaryFile(prefix="ppmr-bench-disk-"))
        image.truncate(size_bytes)
        HOST.run(["mkfs.ext4", "-q", "-F", image.name])
        HOST.run(["mount", "-o", "loop", image.name, self.path])
        stack.callback(HOST.run, ["umount", "-l", self.path])

    def limited(self):
        return slow_disk.limit_of_all(slow_disk.number_of(self.path), RATE, ("write", "read"))

    def drop_cached(self):
        HOST.run(["sync"])
        Path("/proc/sys/vm/drop_caches").write_text("1")

    def mb_per_s(self):
        """Returns the rate of a plain write, in the same run."""
        size_mb = RATE // 1_000_000
        began = time.monotonic()
        words = ["dd", "if=/dev/zero", f"of={self.path}/plain", "bs=1M", f"count={size_mb}"]
        HOST.run([*words, "conv=fsync", "status=none"])
        return size_mb * 1.048576 / (time.monotonic() - began)


def start_ring(hosts, mib, options=()):
    words = ["--spares", SPARES, "--slots", 1, *options, "--"]
    words += ["mpirun", "-n", NODES, *RING(hosts.lab.home, mib)]
    job = hosts.run([str(word) for word in words], environment=AS_ROOT)
    job.await_lines(5)
    return job


def end(job):
    job.signal(signal.SIGTERM)
    job.wait()
    job.close()


def protection(hosts):
    [job] = hosts.status()
    return job["protection"]


def lose_host(stack, mib):
    """Returns (seconds of the pause for an epoch, seconds from the loss of a host until all nodes
    run again, bytes of the epoch)."""
    lab = stack.enter_context(Lab())
    fence = ["--fence", "/bin/true"]
    hosts = stack.enter_context(JobHosts(lab, NODES + SPARES, agent_options=fence))
    job = start_ring(hosts, mib, ["--protect", f"{EVERY_S}s"])
    # The first epoch sends all memory; the second one is as all later ones.
    wait_until(lambda: protection(hosts)["agreed"] >= 2, 180, "the second epoch", interval=0.2)
    epoch = protection(hosts)
    lost = hosts.names[NODES - 1]
    lost_at = time.monotonic()
    hosts.lose(lost)

    # Not by its output: what it writes again after the rollback is not printed twice.
    def runs_again():
        now = protection(hosts)
        return now["rollbacks"] >= 1 and not now["rolling_back"]

    wait_until(runs_again, 180, "the rollback", interval=0.1)
    back_s = time.monotonic() - lost_at
    end(job)
    return epoch["pause_ms"] / 1000, back_s, epoch["bytes"]


def resume_from_disk(stack, mib):
    """Returns (seconds that the job stands still to be written, seconds until it goes on when it is
    resumed, bytes written, MB/s of a plain write)."""
    lab = stack.enter_context(Lab())
    disk = SharedDisk(stack, lab, TIMES_MEMORY * NODES * mib << 20)
    key = make_key(lab.home / "keep-key", lab.node("keys"))[-1]
    hosts = stack.enter_context(
        JobHosts(lab, NODES + SPARES, agent_options=["--keep-key", key])
    )
    job = start_ring(hosts, mib)
    with disk.limited():
        plain = disk.mb_per_s()
        directory = disk.path / "suspended"
        began = time.monotonic()
        hosts.command("h1", "suspend", "--keep-dir", directory, timeout=600)
        wrote_s = time.monotonic() - began
        job.wait()
        job.close()
        size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        disk.drop_cached()
        began = time.time()
        resumed = hosts.resume(directory, hosts.names[NODES:], "--spares", "0")
        wait_until(
            lambda: any(at > began for _, at in gaps_of(resumed)), 600, "the ring to go on"
        )
        read_s = time.time() - began
        end(resumed)
    return wrote_s, read_s, size, plain


def measure(testbed):
    if not has_mpi("mpirun", "mkfs.ext4"):
        return Outcome(not_measured={"all ways": MISSING})
    mib = testbed.effort.loss_mib
    results = {PAUSE: [], WRITTEN: [], BACK: [], READ: []}
    facts = {}
    for _ in range(testbed.effort.job_rounds):
        with ExitStack() as stack:
            try:
                wrote_s, read_s, size, plain = resume_from_disk(stack, mib)
            except slow_disk.NoLimit as why:
                return Outcome(not_measured={"all ways": str(why)})
        with ExitStack() as stack:
            pause_s, back_s, bytes_of_epoch = lose_host(stack, mib)
        for way, seconds in ((PAUSE, pause_s), (WRITTEN, wrote_s), (BACK, back_s), (READ, read_s)):
            results[way].append(seconds)
        facts["memory of the job in an epoch, MB"] = bytes_of_epoch / 1e6
        facts["written to the file system, MB"] = size / 1e6
        facts["dd to the file system, MB/s"] = plain
    for what, of, beside in (("checkpoint", WRITTEN, PAUSE), ("after a loss", READ, BACK)):
        ratio = spread(results[of]).median / spread(results[beside]).median
        facts[f"{what}: file system, times ppmr"] = ratio
    return Outcome(results, facts)


def plan(testbed, section):
    effort = testbed.effort
    yield Item(
        section,
        SERIES,
        f"{NODES} hosts with {effort.loss_mib} MiB each",
        {"mib": effort.loss_mib, "hosts": NODES, "file system, MB/s": RATE // 1_000_000},
        "s",
        lambda: measure(testbed),
        30 + effort.job_rounds * (100 + effort.loss_mib * NODES * 3 / 200),
    )
