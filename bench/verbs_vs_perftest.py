#!/usr/bin/python3
"""Bandwidth and CPU cost of ppmr over RDMA, beside perftest's, between the two machines of tests/vm in one boot.

    bench/verbs_vs_perftest.py [--seconds 3] [--runs 3] [--json FILE]

Rows: ib_read_bw with the chunk size as message size, as many queue pairs and as deep a queue; the mover (pool -> registered memory, no mounts);
the pipeline (cp into the source mount, read at the target mount); the same over TCP beside iperf3. The sides alternate; medians. CPU is that of
the whole machine, as most of the work of a software device is the kernel's: seconds not idle, of both machines together, per GiB.
Emulated machines: only the ratios of one run mean anything.
"""
import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lab.node import LabError, wait_until  # noqa: E402
from lab.ppmr import find_ppmr  # noqa: E402
from lab.programs import REPOSITORY  # noqa: E402
from vm.virtual_lab import VirtualLab  # noqa: E402

GIB = 1 << 30
MIB = 1 << 20
READS_MAX, WINDOW_BYTES = 16, 4 * MIB  # of the mover: rdma_stream/verbs_window.h
DEVICE, GID_INDEX = "rxe0", "1"
USUAL_RATE = 80 * MIB  # a second, of these machines


def find_mover():
    path = Path(os.environ.get("PPMR_MOVER") or REPOSITORY / "bazel-bin/bench/mover").resolve()
    if not path.exists():
        raise LabError(f"no mover at {path}: bazel build //bench:mover, or say where it is in PPMR_MOVER")
    return path


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
        self.seconds = sum(busy_seconds(node) - before for node, before in zip(self.nodes, self.before))


def depth(chunk):
    return max(1, min(READS_MAX, WINDOW_BYTES // chunk))


class Bench:
    def __init__(self, lab, seconds):
        self.lab, self.source, self.target, self.seconds = lab, lab.a, lab.b, seconds
        self.port = 20000

    def next_port(self):
        self.port += 1
        return self.port

    def iterations(self, chunk, streams):
        """Of each queue pair. (A duration would have perftest work before and after what it reports, and its cost could not be told.)"""
        return max(4 * depth(chunk), self.seconds * USUAL_RATE // chunk // streams)

    def perftest(self, chunk, streams):
        """The target reads, as with ppmr."""
        port = self.next_port()
        options = ["ib_read_bw", "-d", DEVICE, "-x", GID_INDEX, "-F", "-s", chunk, "-q", streams, "-t", depth(chunk), "-n", self.iterations(chunk, streams), "-p", port, "-u", 18, "--report_gbits"]  # -u: emulated machines answer late
        server = self.source.popen(options, stdout=-3, stderr=-3)
        try:
            self.await_listener(self.source, port)
            with Cost(self.lab) as cost:
                said = self.target.run([*options, self.source.address], timeout=60 + self.seconds * 3).stdout
            server.wait(timeout=30)
        finally:
            if server.poll() is None:
                self.source.signal_process(server, 9)
        # "#bytes #iterations BW peak BW average MsgRate"
        row = [line.split() for line in said.splitlines() if line.strip().startswith(str(chunk))][-1]
        rate = float(row[3]) * 1e9 / 8
        return rate, cost.seconds / (int(row[1]) * chunk / GIB)

    def mover(self, chunk, streams, transport):
        mover, port = find_mover(), self.next_port()
        address = f"{self.target.address}:{port}"
        server = self.target.popen([mover, "target", address], stdout=-1, stderr=-3)
        try:
            self.await_listener(self.target, port)
            with Cost(self.lab) as cost:
                said = json.loads(self.source.run([mover, "source", address, "--chunk-size", chunk, "--streams", streams, "--transport", transport,
                                                   "--seconds", self.seconds], timeout=60 + self.seconds * 3).stdout.splitlines()[-1])
            if said["transport"] != transport:
                raise LabError(f"the mover took {said['transport']} instead of {transport}")
        finally:
            self.target.signal_process(server, 15)
            server.wait(timeout=30)
        return said["bytes_per_s"], cost.seconds / (said["bytes"] / GIB)

    def pipeline(self, chunk, streams, transport, size=384 * MIB):
        """dd into the source mount, dd out of the target mount, at the same time."""
        ppmr, port = find_ppmr(), self.next_port()
        address = f"{self.target.address}:{port}"
        out, into = f"/tmp/out-{port}", f"/tmp/in-{port}"
        self.source.run(["mkdir", out])
        self.target.run(["mkdir", into])
        self.target.run([ppmr, "target", into, "--listen", address, "--insecure", "--transport", transport, "--memory-limit", "768MiB", "--pool-size", "448MiB", "--wait-for-files"])
        try:
            # The store's memory is touched and registered before the clock runs.
            wait_until(lambda: self.status(self.target, into)["store"]["ready_bytes"] >= size, 60, "the target's memory")
            self.source.run([ppmr, "source", out, "--target", address, "--insecure", "--transport", transport, "--chunk-size", chunk, "--streams", streams])
            blocks = size // MIB
            with Cost(self.lab) as cost:
                reader = self.target.popen(["sh", "-c", f"until [ -e {into}/f ]; do sleep 0.1; done; dd if={into}/f of=/dev/null bs=1M count={blocks} iflag=fullblock"], stdout=-3, stderr=-3)
                began = time.monotonic()
                self.source.run(["dd", "if=/dev/zero", f"of={out}/f", "bs=1M", f"count={blocks}"], timeout=300)
                if reader.wait(timeout=300):
                    raise LabError("the reader at the target failed")
                elapsed = time.monotonic() - began
            took = {peer["transport"] for peer in self.status(self.source, out)["peers"]}
            if took != {transport}:
                raise LabError(f"the pipeline took {took} instead of {transport}")
        finally:
            self.source.run(["fusermount3", "-u", out], check=False)
            self.target.run(["fusermount3", "-u", into], check=False)
            time.sleep(1)
        return size / elapsed, cost.seconds / (size / GIB)

    def status(self, node, mountpoint):
        return json.loads(node.run([find_ppmr(), "status", mountpoint, "--json"]).stdout)

    def iperf(self, streams):
        port = self.next_port()
        server = self.target.popen(["iperf3", "-s", "-1", "-p", port], stdout=-3, stderr=-3)
        try:
            self.await_listener(self.target, port)
            with Cost(self.lab) as cost:
                said = json.loads(self.source.run(["iperf3", "-c", self.target.address, "-p", port, "-P", streams, "-t", self.seconds, "-J"], timeout=60 + self.seconds * 3).stdout)
            server.wait(timeout=30)
        finally:
            if server.poll() is None:
                self.target.signal_process(server, 9)
        received = said["end"]["sum_received"]
        return received["bits_per_second"] / 8, cost.seconds / (received["bytes"] / GIB)

    def await_listener(self, node, port):
        wait_until(lambda: f":{port:04X} " in node.read_text("/proc/net/tcp") + self.read6(node), 30, f"port {port} on {node.name}", interval=0.05)

    @staticmethod
    def read6(node):
        return node.read_text("/proc/net/tcp6") if node.exists("/proc/net/tcp6") else ""


def rows_of(bench, chunk, streams):
    """What is measured, and beside which row."""
    size = f"{chunk // 1024} KiB x {streams}"
    return [
        (f"ib_read_bw {size}", None, lambda: bench.perftest(chunk, streams)),
        (f"verbs mover {size}", f"ib_read_bw {size}", lambda: bench.mover(chunk, streams, "verbs")),
        (f"verbs pipeline {size}", f"ib_read_bw {size}", lambda: bench.pipeline(chunk, streams, "verbs")),
        (f"iperf3 {size}", None, lambda: bench.iperf(streams)),
        (f"tcp mover {size}", f"iperf3 {size}", lambda: bench.mover(chunk, streams, "tcp")),
        (f"tcp pipeline {size}", f"iperf3 {size}", lambda: bench.pipeline(chunk, streams, "tcp")),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement")
    parser.add_argument("--runs", type=int, default=3, help="of each row, alternating")
    parser.add_argument("--streams", type=int, nargs="+", default=[2])
    parser.add_argument("--chunk-size", type=int, nargs="+", default=[128 << 10, 1 << 20])
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--json", help="one object a row goes to this file")
    options = parser.parse_args()
    results = {}
    with VirtualLab(say=lambda text: print(text, file=sys.stderr, flush=True)) as lab:
        bench = Bench(lab, options.seconds)
        rows = [row for chunk in options.chunk_size for streams in options.streams for row in rows_of(bench, chunk, streams) if options.only in row[0]]
        for run in range(options.runs):
            for name, _, measure in rows:
                rate, cost = measure()
                results.setdefault(name, []).append((rate, cost))
                print(f"run {run + 1}: {name}: {rate / 1e6:.1f} MB/s, {cost:.1f} CPU-s/GiB", file=sys.stderr, flush=True)
        kernel = lab.a.run(["uname", "-r"]).stdout.strip()
    print(f"Two emulated machines, Linux {kernel}; medians of {options.runs} runs of {options.seconds} s; lowest and highest\n")
    print("| what | MB/s | from - to | of its ceiling | CPU-s per GiB, both machines | of its ceiling's |\n| --- | --- | --- | --- | --- | --- |")
    for name, ceiling, _ in rows:
        rates, costs = zip(*results[name])
        rate, cost = statistics.median(rates), statistics.median(costs)
        share = cost_share = ""
        if ceiling in results:
            share = f"{100 * rate / statistics.median([r for r, _ in results[ceiling]]):.0f}%"
            cost_share = f"{cost / statistics.median([c for _, c in results[ceiling]]):.2f} x"
        print(f"| {name} | {rate / 1e6:.1f} | {min(rates) / 1e6:.1f} - {max(rates) / 1e6:.1f} | {share} | {cost:.1f} | {cost_share} |")
        if options.json:
            with open(options.json, "a", encoding="utf-8") as file:
                file.write(json.dumps({"row": name, "bytes_per_s": rates, "cpu_s_per_gib": costs}) + "\n")


if __name__ == "__main__":
    main()
