"""Shared by all measurements: the effort, and the two nodes, created on first use."""
import itertools
from dataclasses import dataclass
from pathlib import Path

from lab.node import Lab, LabError
from vm.virtual_lab import VirtualLab

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10

MACHINE_MEMORY_MIB = 4096

CONGESTION_CONTROL = "cubic"
ALLOWED_CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")

LINKS = {"loopback": None, "veth": None, "10 Gb/s": "10gbit", "1 Gb/s": "1gbit"}
OTHER_LINKS = {"2.5 Gb/s": "2500mbit"}  # of one chapter, not of the sweeps
BYTES_PER_SECOND = {"10 Gb/s": 1.25e9, "1 Gb/s": 0.125e9}


@dataclass(frozen=True)
class Effort:
    """How thorough a run is. The plan omits rows; it never estimates them."""

    name: str
    runs: int  # counted rounds
    grid_runs: int = 3  # counted rounds of the rows in which chunk and pool size vary
    warm_ups: int = 1  # rounds that are not counted
    bytes: int = GIB  # written in one sample, on an unlimited link
    limited_seconds: float = 2.0  # length of a sample on a limited link
    iperf_seconds: int = 3
    sweep: int = 3  # values of each sweep: 1 the first, 2 both ends, 3 all
    move_mib: tuple = (64, 256, 1024, 4096)  # sizes of the process that moves
    move_runs: int = 5
    dump_mib: int = 1024  # size of the process that is dumped
    crowd_mib: int = 1024  # total memory of 2, 4, 8 processes
    shape_mib: tuple = (64, 1024, 4096, 8192)  # memory of the trees of one process
    busy_mib: int = 1024  # memory of the program that touches random pages, and of redis
    evacuated: int = 60  # processes that leave with one command
    watched_s: tuple = (1.5, 8.0)  # how long redis is watched before and after its move
    application_runs: int = 3
    application_steps: int = 400
    job_programs: tuple = ("lammps", "ep", "cg", "ft")
    job_seconds: float = 60  # of an MPI program without job nodes
    job_rounds: int = 3
    job_moves: tuple = (0, 1, 3)  # evacuations within one run of it
    epoch_programs: tuple = ("lammps", "lu")
    epochs_every_s: tuple = (60, 30, 10)
    loss_mib: int = 512  # of each rank
    job_stalls: int = 50  # evacuations under a ring of ranks
    job_nodes: tuple = (2, 4, 8, 16, 32)  # of the jobs that grow
    job_processes: tuple = (2, 50, 200)  # in the node that moves
    job_rest_s: float = 30  # how long agents are watched at rest
    only_drawn: bool = False  # only the rows and ways that a picture shows

    @property
    def sweeps(self):
        return self.sweep > 2

    @property
    def shape_warm_ups(self):
        return self.warm_ups if self.sweeps and not self.only_drawn else 0

    def thin(self, values):
        values = list(values)
        return values if self.sweeps else list(dict.fromkeys([values[0], values[-1]]))[: self.sweep]


EFFORTS = {
    "full": Effort("full", runs=5),
    "pictures": Effort(
        "pictures",
        runs=3,
        grid_runs=2,
        move_mib=(64, 256, 1024),
        move_runs=3,
        shape_mib=(1024,),
        application_steps=200,
        job_programs=("lammps", "cg"),
        job_seconds=12,
        only_drawn=True,
    ),
    "quick": Effort(
        "quick",
        runs=2,
        bytes=256 * MIB,
        limited_seconds=0.5,
        iperf_seconds=1,
        sweep=2,
        move_mib=(256,),
        move_runs=1,
        dump_mib=256,
        crowd_mib=256,
        shape_mib=(64,),
        busy_mib=64,
        evacuated=6,
        watched_s=(0.5, 1.0),
        application_runs=1,
        job_programs=("cg",),
        job_seconds=10,
        job_rounds=1,
        job_moves=(0, 1),
        epoch_programs=("cg",),
        epochs_every_s=(10,),
        loss_mib=64,
        job_stalls=4,
        job_nodes=(2,),
        job_processes=(2,),
        job_rest_s=5,
    ),
    "tiny": Effort(
        "tiny",
        runs=1,
        warm_ups=0,
        bytes=8 * MIB,
        limited_seconds=0.1,
        iperf_seconds=1,
        sweep=1,
        move_mib=(16,),
        move_runs=1,
        dump_mib=16,
        crowd_mib=64,
        shape_mib=(16,),
        busy_mib=16,
        evacuated=2,
        watched_s=(0.4, 0.7),
        application_runs=0,
        job_programs=("cg",),
        job_seconds=16,
        job_rounds=1,
        job_moves=(1,),
        epoch_programs=("cg",),
        epochs_every_s=(5,),
        loss_mib=16,
        job_stalls=1,
        job_nodes=(2,),
        job_processes=(2,),
        job_rest_s=1,
    ),
}


def flags(defaults, given):
    """Command line words: the defaults {flag: value or None} that `given` does not contain, then
    `given` ("--flag", "--flag=value")."""
    names = {word.split("=", 1)[0] for word in given}
    words = []
    for flag, value in defaults.items():
        if flag not in names:
            words += [flag] if value is None else [flag, value]
    return [*words, *given]


class Testbed:
    def __init__(
        self,
        effort,
        source_options=(),
        target_options=(),
        shared_directory=None,
        disk_directory=None,
        fresh_memory=None,
        rate=None,
    ):
        self.effort = effort
        self.source_options, self.target_options = list(source_options), list(target_options)
        self.shared_directory = shared_directory  # a network file system that both nodes see
        self.disk_directory = disk_directory  # a directory on a disk file system
        self.rate = rate  # limit of the veth link, None: unlimited
        # FreshMemory: each move runs on memory that the host has not backed.
        self.fresh_memory = fresh_memory
        self._lab = self._machines = self._allowed_before = None
        self._labels = itertools.count(1)
        self._ports = itertools.count(20000)

    @property
    def lab(self):
        if self._lab is None:
            self._lab = Lab()
            try:
                self._source, self._target, self._link = self._lab.pair()
                self._allow_congestion_control()
                # ppmr selects this algorithm for near peers. iperf3 and the other ways must use the
                # same algorithm.
                for node in (self._source, self._target):
                    node.run(
                        ["sysctl", "-qw", f"net.ipv4.tcp_congestion_control={CONGESTION_CONTROL}"]
                    )
            except (OSError, LabError):
                self.close()
                raise
            self._limit = None
        return self._lab

    @property
    def machines(self):
        """Two emulated machines with RDMA devices. Raises vm.image.CannotRun if this computer
        cannot run them."""
        if self._machines is None:
            self._machines = VirtualLab(memory_mib=MACHINE_MEMORY_MIB, backed=True)
        return self._machines

    @property
    def source(self):
        return self.lab and self._source

    @property
    def target(self):
        return self.lab and self._target

    @property
    def link(self):
        return self.lab and self._link

    @property
    def private(self):
        return self.lab.directory / "private"

    def nodes(self, link):
        """(source, target), joined by a link of that kind."""
        self.lab
        if link == "loopback":
            return self._target, self._target
        rate = (LINKS | OTHER_LINKS)[link] or self.rate
        if rate != self._limit:
            self._link.limit(rate)
            self._limit = rate
        return self._source, self._target

    def await_fresh_memory(self):
        if self.fresh_memory and not self.fresh_memory.renew():
            raise LabError(
                "--fresh-memory does not work here: the host does not reclaim freed memory"
            )

    def label(self, what="run"):
        return f"{what}{next(self._labels)}"

    def port(self):
        return next(self._ports)

    def bytes_for(self, link):
        """Returns the bytes of one sample over a link, in whole MiB."""
        if link not in BYTES_PER_SECOND:
            return self.effort.bytes
        wanted = BYTES_PER_SECOND[link] * self.effort.limited_seconds
        return int(max(4 * MIB, min(self.effort.bytes, wanted)) // MIB * MIB)

    def _allow_congestion_control(self):
        """A network namespace may use only the algorithms that this machine allows. close()
        restores the setting."""
        allowed = ALLOWED_CONGESTION_CONTROL.read_text()
        if CONGESTION_CONTROL not in allowed.split():
            self._allowed_before = allowed
            ALLOWED_CONGESTION_CONTROL.write_text(f"{allowed.strip()} {CONGESTION_CONTROL}")

    def close(self):
        if self._lab is not None:
            self._lab.close()
            self._lab = None
        if self._allowed_before is not None:
            ALLOWED_CONGESTION_CONTROL.write_text(self._allowed_before)
            self._allowed_before = None
        if self._machines is not None:
            self._machines.close()
            self._machines = None
