"""Whole moves between the two emulated machines of tests/vm: over RDMA, through a network file
system (the paper's *Shared*), and live.

Times are CLOCK_REALTIME of the machines. Their clocks are set to the host's before each move.
"""
import subprocess

from lab.migrations import Migrations
from lab.node import LabError
from lab.peers import PageServerMove, TarMove
from lab.ppmr import Mounts, PpmrMove
from lab.programs import SteadyWorker


from .moves import check_moved
from .plan import Item, Outcome
from .rounds import rotate
from .ways import SharedMove
from .testbed import MIB

SECTION = "machine moves"
SIZE_MIB = 128  # size of the process that moves by every way
WRITTEN_MIB = (512, 768)  # sizes of the process that moves live
WRITTEN_SHARE = 0.05  # rate at which the process writes its pages, per second
PAGES_PER_MIB = 256
RUNS_MAX = 3

# The server runs on the target with its files in memory, the fastest case for a network file
# system. Version 4 alone needs no port mapper.
SERVE = """
modprobe nfsd
mount -t nfsd nfsd /proc/fs/nfsd
mount -t tmpfs -o size=90% export "$1"
mkdir -p /var/lib/nfs/v4recovery /var/lib/nfs/sm
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
exportfs -i -o rw,no_root_squash,insecure,no_subtree_check,fsid=0 "*:$1"
rpc.mountd -N 3
rpc.nfsd -N 3 -G 10 2
"""


def serve_shared(lab):
    """Mounts one directory in the target's memory on both machines and returns it. Raises LabError
    if NFS is missing."""
    exported, shared = "/tmp/exported", "/tmp/shared"
    if (
        lab.b.run(["sh", "-c", "command -v rpc.nfsd exportfs mount.nfs4"], check=False).returncode
        != 0
    ):
        raise LabError(
            "no NFS server on this machine (Debian: nfs-kernel-server); its kernel part runs in the emulated machines"
        )
    lab.b.run(["mkdir", "-p", exported])
    lab.b.run(["sh", "-ec", SERVE, "serve", exported])
    for node in lab.nodes:
        node.run(["mkdir", "-p", shared])
        node.run(
            [
                "mount",
                "-t",
                "nfs4",
                "-o",
                "vers=4.2,rsize=1048576,wsize=1048576",
                f"{lab.b.address}:/",
                shared,
            ],
            timeout=60,
        )
    lab.a.run(
        ["sh", "-c", f"echo begun >{shared}/begun"], timeout=60
    )  # the server replies after its grace period
    return shared


class LabMove:
    """A way with its daemons, which run for one move only, because the machines are small."""

    def __init__(self, name, make, transport=None):
        self.name, self._make, self._transport = name, make, transport

    def move(self, testbed, lab):
        """Runs and verifies one move; returns its timeline."""
        for node in lab.nodes:
            node.agent.set_clock()
        label = testbed.label("move")
        if not self._transport:
            return self._timed(testbed, lab, self._make(lab.a, lab.b), label)
        options = ["--transport", self._transport]
        with Mounts(
            lab.a,
            lab.b,
            f"/tmp/{label}",
            ["--pool-size", "32MiB", *options],
            ["--pool-size", f"{SIZE_MIB + 64}MiB", *options],
        ) as mounts:
            return self._timed(testbed, lab, self._make(lab.a, lab.b, mounts), label)

    @staticmethod
    def _timed(testbed, lab, move, label):
        worker = SteadyWorker(lab.a, lab.home / label, SIZE_MIB, threads=2)
        worker.wait_for_lines(10)
        move.prepare(label)
        try:
            timeline = move.move(worker)
            move.finish()
            check_moved(worker)
            return timeline
        finally:
            worker.end()
            move.clean()


def measure_ways(testbed):
    lab = testbed.machines
    ways = [
        LabMove("ppmr over RDMA, lazy", lambda *nodes: PpmrMove(*nodes), "verbs"),
        LabMove("ppmr over RDMA, eager", lambda *nodes: PpmrMove(*nodes, lazily=False), "verbs"),
        LabMove("ppmr over TCP, eager", lambda *nodes: PpmrMove(*nodes, lazily=False), "tcp"),
        LabMove("tmpfs + tar", TarMove),
        LabMove("CRIU page server", PageServerMove),
    ]
    why_not = {}
    try:
        shared = serve_shared(lab)
        ways.append(LabMove("Shared (NFS)", lambda *nodes: SharedMove(*nodes, shared)))
    except (LabError, subprocess.TimeoutExpired) as error:
        why_not["Shared (NFS)"] = str(error).splitlines()[0]
    timelines = {way.name: [] for way in ways}
    for number in range(min(testbed.effort.move_runs, RUNS_MAX)):
        for way in rotate(ways, number):
            timelines[way.name].append(way.move(testbed, lab))
    return Outcome(
        {way: [one.whole_move for one in found] for way, found in timelines.items()},
        not_measured=why_not,
        also={
            "downtime": {way: [one.downtime for one in found] for way, found in timelines.items()}
        },
    )


def measure_live(testbed, size_mib):
    """Measures the downtime, from the freeze until the process runs."""
    lab = testbed.machines
    # The target keeps every round until the process runs. The memory for all rounds is touched
    # before the move.
    limit = size_mib * 3 + 256
    ways = {"live": [], "stop-and-copy": ["--stop-and-copy"]}
    downtimes, left = {way: [] for way in ways}, []
    with Migrations(
        lab.a,
        lab.b,
        f"/tmp/{testbed.label('live')}",
        ["--pool-size", "32MiB", "--transport", "verbs"],
        ["--memory-limit", f"{limit}MiB", "--pool-size", f"{2 * size_mib}MiB"],
        name=testbed.label("live"),
    ) as migrations:
        for _ in range(min(testbed.effort.move_runs, RUNS_MAX)):
            for way, options in ways.items():
                for node in lab.nodes:
                    node.agent.set_clock()
                worker = SteadyWorker(
                    lab.a,
                    lab.home / testbed.label("written"),
                    size_mib,
                    threads=2,
                    pages_per_s=int(size_mib * PAGES_PER_MIB * WRITTEN_SHARE),
                )
                worker.wait_for_lines(10)
                migrations.await_ready()
                done = migrations.migrate(worker.pid, timeout=600, options=options).ok()
                worker.node = lab.b
                worker.wait_for_lines(5, lab.b, timeout=60)
                check_moved(worker)
                worker.end()
                downtimes[way].append(done.summary["trees"][0]["downtime_s"])
                rounds = [
                    event["bytes"] / MIB
                    for event in done.events
                    if event.get("event") == "copied"
                ]
                left += rounds[-1:]
    return Outcome(downtimes, {"copied by the last round (MiB)": sorted(left)[len(left) // 2]})


def plan(testbed):
    if not testbed.effort.sweeps:
        return
    runs = min(testbed.effort.move_runs, RUNS_MAX)
    yield Item(
        SECTION,
        "ways",
        f"{SIZE_MIB} MiB",
        {"size_mib": SIZE_MIB},
        "s",
        lambda: measure_ways(testbed),
        40 + 6 * 25 * runs,
    )
    for size in WRITTEN_MIB:
        yield Item(
            SECTION,
            "downtime of a live move",
            f"{size} MiB, {100 * WRITTEN_SHARE:g}% of them written to in a second",
            {"size_mib": size},
            "s",
            lambda size=size: measure_live(testbed, size),
            size / 4 * runs,
        )
