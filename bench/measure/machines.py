"""RDMA for real, between the two emulated machines of tests/vm in one boot: the movers alone and the pipeline through both mounts, beside perftest and iperf3.

`ib_read_bw` has the chunk size as message size, as many queue pairs and as deep a queue. CPU is that of both machines whole (seconds not idle), as most of
the work of a software device is the kernel's. The machines are emulated: only ratios of one run mean anything, and only on a host that does nothing else.
"""
import json
import os
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE

from lab.node import LabError, wait_until
from lab.ppmr import find_ppmr
from lab.programs import REPOSITORY
from vm.image import CannotRun

from .loads import Load, read_words, write_words
from .plan import Item, Outcome
from .rounds import alternate
from .spread import size_text, spread
from .testbed import GIB, KIB, MIB

SECTION = "machines"
CHUNKS = (128 * KIB, MIB)
STREAMS = (
    4  # rxe has 128 packets under way for a queue pair, so it takes some to keep the link busy
)
TRANSPORTS = {"RDMA": "verbs", "TCP": "tcp"}
READS_MAX, WINDOW_BYTES = 16, 4 * MIB  # of the mover: rdma_stream/verbs/verbs_window.h
DEVICE, GID_INDEX = "rxe0", "1"
USUAL_RATE = 80 * MIB  # a second, of these machines
SECONDS = 3  # of one sample, at the usual rate
PIPELINE_BYTES = 384 * MIB
ANSWERS_LATE = 18  # ib_read_bw's time-out, as an exponent: emulated machines take their time


def find_mover():
    path = Path(os.environ.get("PPMR_MOVER") or REPOSITORY / "bazel-bin/bench/mover").resolve()
    if not path.exists():
        raise LabError(
            f"no mover at {path}: bazel build //bench:mover, or say where it is in PPMR_MOVER"
        )
    return path


def depth(chunk):
    return max(1, min(READS_MAX, WINDOW_BYTES // chunk))


def busy_seconds(node):
    """CPU seconds the machine has spent on anything."""
    words = [int(word) for word in node.read_text("/proc/stat").split("\n", 1)[0].split()[1:]]
    return (sum(words[:8]) - words[3] - words[4]) / os.sysconf("SC_CLK_TCK")


class Cost:
    """CPU time of both machines while it is open."""

    def __init__(self, lab):
        self.nodes = lab.nodes

    def __enter__(self):
        self.before = [busy_seconds(node) for node in self.nodes]
        return self

    def __exit__(self, *_):
        self.seconds = sum(
            busy_seconds(node) - before for node, before in zip(self.nodes, self.before)
        )


class Streams:
    """What is timed; each returns GB/s, and remembers CPU seconds per GiB."""

    def __init__(self, testbed, chunk, transport):
        self.testbed, self.lab, self.chunk, self.transport = (
            testbed,
            testbed.machines,
            chunk,
            transport,
        )
        self.source, self.target = self.lab.a, self.lab.b
        self.costs = {}

    def _noted(self, way, rate, cost):
        self.costs.setdefault(way, []).append(cost)
        return rate / 1e9

    def perftest(self):
        """The target reads, as with ppmr. So many reads, not so long: perftest would work before and after what it reports, and its cost could not be told."""
        for _ in range(3):
            rate, cost = self._perftest_once()
            if rate > 0:  # now and then it reports none
                return self._noted("ib_read_bw", rate, cost)
        raise LabError("ib_read_bw reports a bandwidth of 0, three times in a row")

    def _perftest_once(self):
        port = self.testbed.port()
        count = max(4 * depth(self.chunk), SECONDS * USUAL_RATE // self.chunk // STREAMS)
        options = [
            "ib_read_bw",
            "-d",
            DEVICE,
            "-x",
            GID_INDEX,
            "-F",
            "-s",
            self.chunk,
            "-q",
            STREAMS,
            "-t",
            depth(self.chunk),
            "-n",
            count,
            "-p",
            port,
            "-u",
            ANSWERS_LATE,
            "--report_gbits",
        ]
        server = self.source.popen(options, stdout=DEVNULL, stderr=DEVNULL)
        try:
            self.source.await_listener(port, server)
            with Cost(self.lab) as cost:
                said = self.target.run([*options, self.source.address], timeout=90).stdout
            server.wait(timeout=30)
        finally:
            if server.poll() is None:
                self.source.signal_process(server, 9)
        # "#bytes #iterations BW peak BW average MsgRate"
        row = [
            line.split() for line in said.splitlines() if line.strip().startswith(str(self.chunk))
        ][-1]
        return float(row[3]) * 1e9 / 8, cost.seconds / (int(row[1]) * self.chunk / GIB)

    def iperf(self):
        port = self.testbed.port()
        server = self.target.popen(
            ["iperf3", "-s", "-1", "-p", port], stdout=DEVNULL, stderr=DEVNULL
        )
        try:
            self.target.await_listener(port, server)
            with Cost(self.lab) as cost:
                said = json.loads(
                    self.source.run(
                        [
                            "iperf3",
                            "-c",
                            self.target.address,
                            "-p",
                            port,
                            "-P",
                            STREAMS,
                            "-t",
                            SECONDS,
                            "-J",
                        ],
                        timeout=90,
                    ).stdout
                )
            server.wait(timeout=30)
        finally:
            if server.poll() is None:
                self.target.signal_process(server, 9)
        received = said["end"]["sum_received"]
        return self._noted(
            "iperf3", received["bits_per_second"] / 8, cost.seconds / (received["bytes"] / GIB)
        )

    def mover(self):
        """Pool to registered memory, no mounts."""
        mover, address = find_mover(), f"{self.target.address}:{self.testbed.port()}"
        server = self.target.popen([mover, "target", address], stdout=PIPE, stderr=DEVNULL)
        try:
            self.target.await_listener(int(address.rsplit(":", 1)[1]), server)
            with Cost(self.lab) as cost:
                said = json.loads(
                    self.source.run(
                        [
                            mover,
                            "source",
                            address,
                            "--chunk-size",
                            self.chunk,
                            "--streams",
                            STREAMS,
                            "--transport",
                            self.transport,
                            "--seconds",
                            SECONDS,
                        ],
                        timeout=90,
                    ).stdout.splitlines()[-1]
                )
            if said["transport"] != self.transport:
                raise LabError(f"the mover took {said['transport']} instead of {self.transport}")
        finally:
            self.target.signal_process(server, 15)
            server.wait(timeout=30)
        return self._noted("ppmr", said["bytes_per_s"], cost.seconds / (said["bytes"] / GIB))

    def pipeline(self):
        """A writer at the source mount and a reader at the target mount, at the same time: from the first write to the last read."""
        ppmr, address = find_ppmr(), f"{self.target.address}:{self.testbed.port()}"
        out, into = f"/tmp/{self.testbed.label('out')}", f"/tmp/{self.testbed.label('in')}"
        self.source.run(["mkdir", out])
        self.target.run(["mkdir", into])
        both = ["--insecure", "--transport", self.transport]
        self.target.run(
            [
                ppmr,
                "target",
                into,
                "--listen",
                address,
                *both,
                "--memory-limit",
                "768MiB",
                "--pool-size",
                "448MiB",
            ]
        )
        reader = writer = None
        try:
            # The store's memory is touched and registered before the clock runs.
            wait_until(
                lambda: self._status(self.target, into)["store"]["ready_bytes"] >= PIPELINE_BYTES,
                60,
                "the target's memory",
            )
            self.source.run(
                [
                    ppmr,
                    "source",
                    out,
                    "--target",
                    address,
                    *both,
                    "--chunk-size",
                    self.chunk,
                    "--streams",
                    STREAMS,
                ]
            )
            self.source.run(["mkdir", f"{out}/d"])
            wait_until(lambda: self.target.exists(f"{into}/d"), 30, "the directory at the target")
            reader = Load(self.target, read_words(f"{into}/d", 1, PIPELINE_BYTES, MIB, MIB))
            with Cost(self.lab) as cost:
                writer = Load(self.source, write_words(f"{out}/d", 1, PIPELINE_BYTES, MIB))
                began = time.monotonic()
                reader.result()
                elapsed = time.monotonic() - began
                writer.result()
            took = {peer["transport"] for peer in self._status(self.source, out)["peers"]}
            if took != {self.transport}:
                raise LabError(f"the pipeline took {took} instead of {self.transport}")
        finally:
            for load in (reader, writer):
                if load:
                    load.kill()
            self.source.run(["fusermount3", "-u", out], check=False)
            self.target.run(["fusermount3", "-u", into], check=False)
        return self._noted("ppmr", PIPELINE_BYTES / elapsed, cost.seconds / (PIPELINE_BYTES / GIB))

    @staticmethod
    def _status(node, mountpoint):
        return json.loads(node.run([find_ppmr(), "status", mountpoint, "--json"]).stdout)


def measure(testbed, what, transport, chunk):
    try:
        streams = Streams(testbed, chunk, TRANSPORTS[transport])
    except CannotRun as error:
        return Outcome(not_measured={"the emulated machines": str(error)})
    ceiling = {"RDMA": ("ib_read_bw", streams.perftest), "TCP": ("iperf3", streams.iperf)}[
        transport
    ]
    ways = {"ppmr": getattr(streams, what), ceiling[0]: ceiling[1]}
    samples = alternate(ways, testbed.effort.runs, warm_ups=0)
    return Outcome(
        samples,
        {
            f"{way}, CPU-s/GiB of both machines": spread(costs).median
            for way, costs in streams.costs.items()
        },
    )


def plan(testbed):
    if not testbed.effort.sweeps:
        return  # booting alone takes half a minute
    for what, seconds in (("mover", 20), ("pipeline", 30)):
        for transport in TRANSPORTS:
            for chunk in CHUNKS:
                parameters = {"what": what, "transport": transport, "chunk": chunk}
                yield Item(
                    SECTION,
                    what,
                    f"{transport}, {size_text(chunk)}",
                    parameters,
                    "GB/s",
                    lambda parameters=parameters: measure(testbed, **parameters),
                    seconds * testbed.effort.runs,
                )
