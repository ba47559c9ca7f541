"""Real RDMA verbs between the two emulated machines of tests/vm, in one boot: the mover alone and
the pipeline through both mounts, next to perftest and iperf3.

`ib_read_bw` uses the chunk size as message size, and as many queue pairs and as deep a queue as
ppmr. CPU is the time in which the machines are not idle, because the kernel does most of the work
of a software device. Only ratios of one run are meaningful, and only on an idle host.
"""
import json
import os
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE

from lab.node import LabError, wait_until
from lab.ppmr import find_ppmr
from lab.programs import REPOSITORY


from .loads import GB, Load, iperf, read_words, write_words
from .plan import Item, Outcome
from .rounds import alternate
from .spread import size_text, spread
from .testbed import GIB, KIB, MIB

SECTION = "machines"
CHUNKS = (128 * KIB, MIB)
STREAMS = 4  # rxe allows 128 packets in flight per queue pair, too few to keep the link busy
TRANSPORTS = {"RDMA": "verbs", "TCP": "tcp"}
# The depth of the mover, see rdma_stream/verbs/verbs_window.h.
READS_MAX, WINDOW_BYTES = 16, 4 * MIB
DEVICE, GID_INDEX = "rxe0", "1"
USUAL_RATE = 80 * MIB  # speed on these machines, per second
SECONDS = 3  # length of one sample at the usual rate
PIPELINE_BYTES = 384 * MIB
TIMEOUT_EXPONENT = 18  # ib_read_bw -u: 4.096 us x 2^18 = 1 s, because emulated machines reply late


def find_mover():
    path = Path(os.environ.get("PPMR_MOVER") or REPOSITORY / "bazel-bin/bench/mover").resolve()
    if not path.exists():
        raise LabError(
            f"no mover at {path}: run bazel build //bench:mover, or set PPMR_MOVER to its path"
        )
    return path


def depth(chunk):
    return max(1, min(READS_MAX, WINDOW_BYTES // chunk))


def busy_seconds(node):
    """Returns the CPU seconds in which the machine was not idle."""
    words = [int(word) for word in node.read_text("/proc/stat").split("\n", 1)[0].split()[1:]]
    return (sum(words[:8]) - words[3] - words[4]) / os.sysconf("SC_CLK_TCK")


class Cost:
    """CPU time of both machines during a with block."""

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
    """The measured operations. Each returns GB/s and stores CPU seconds per GiB in `costs`."""

    def __init__(self, testbed, chunk, transport):
        self.testbed, self.lab, self.chunk, self.transport = (
            testbed,
            testbed.machines,
            chunk,
            transport,
        )
        self.source, self.target = self.lab.a, self.lab.b
        self.costs = {}

    def _record(self, way, rate, cost):
        self.costs.setdefault(way, []).append(cost)
        return rate / GB

    def perftest(self):
        """The target reads, as with ppmr. The number of reads is fixed: with a fixed duration
        perftest also works before and after the reported interval, which would falsify its cost."""
        for _ in range(3):
            rate, cost = self._perftest_once()
            if rate > 0:  # sometimes ib_read_bw reports 0
                return self._record("ib_read_bw", rate, cost)
        raise LabError("ib_read_bw reported a bandwidth of 0 three times in a row")

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
            TIMEOUT_EXPONENT,
            "--report_gbits",
        ]
        server = self.source.popen(options, stdout=DEVNULL, stderr=DEVNULL)
        try:
            self.source.await_listener(port, server)
            with Cost(self.lab) as cost:
                output = self.target.run([*options, self.source.address], timeout=90).stdout
            server.wait(timeout=30)
        finally:
            if server.poll() is None:
                self.source.signal_process(server, 9)
        # "#bytes #iterations BW peak BW average MsgRate"
        row = [
            line.split() for line in output.splitlines() if line.strip().startswith(str(self.chunk))
        ][-1]
        return float(row[3]) * GB / 8, cost.seconds / (int(row[1]) * self.chunk / GIB)

    def iperf(self):
        cost = Cost(self.lab)
        found = iperf(
            self.source,
            self.target,
            self.target.address,
            self.testbed.port(),
            STREAMS,
            SECONDS,
            during=cost,
        )
        return self._record("iperf3", found["rate"] * GB, cost.seconds / (found["bytes"] / GIB))

    def mover(self):
        """Moves bytes from the pool to registered memory, without mounts."""
        mover, address = find_mover(), f"{self.target.address}:{self.testbed.port()}"
        server = self.target.popen([mover, "target", address], stdout=PIPE, stderr=DEVNULL)
        try:
            self.target.await_listener(int(address.rsplit(":", 1)[1]), server)
            with Cost(self.lab) as cost:
                output = json.loads(
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
            if output["transport"] != self.transport:
                raise LabError(f"the mover used {output['transport']} instead of {self.transport}")
        finally:
            self.target.signal_process(server, 15)
            server.wait(timeout=30)
        return self._record("ppmr", output["bytes_per_s"], cost.seconds / (output["bytes"] / GIB))

    def pipeline(self):
        """A writer at the source mount and a reader at the target mount, concurrently: from the
        first write to the last read."""
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
            # The store must have touched and registered its memory before the clock starts.
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
            used = {peer["transport"] for peer in self._status(self.source, out)["peers"]}
            if used != {self.transport}:
                raise LabError(f"the pipeline used {used} instead of {self.transport}")
        finally:
            for load in (reader, writer):
                if load:
                    load.kill()
            self.source.run(["fusermount3", "-u", out], check=False)
            self.target.run(["fusermount3", "-u", into], check=False)
        return self._record("ppmr", PIPELINE_BYTES / elapsed, cost.seconds / (PIPELINE_BYTES / GIB))

    @staticmethod
    def _status(node, mountpoint):
        return json.loads(node.run([find_ppmr(), "status", mountpoint, "--json"]).stdout)


def measure(testbed, what, transport, chunk):
    streams = Streams(testbed, chunk, TRANSPORTS[transport])
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
