"""Pipeline (the paper's third test): writers -> source mount -> stream -> target mount -> readers,
concurrently; compared with iperf3 on the same path.

The clock runs from the writers' common start until the last reader has read the end of its file.
Every reader verifies its bytes.
"""
from lab.ppmr import Mounts

from .aggregation import CHUNKS, POOLS
from .loads import GB, Load, iperf, memory_facts, read_words, write_words
from .host import ProcessCost, machine_time, process_cost
from .plan import Item, Outcome
from .spread import size_text, spread
from .testbed import BYTES_PER_SECOND, KIB, LINKS, MIB, flags

SECTION = "pipeline"
WRITERS = (1, 2, 4, 8, 16)
REQUESTS = (4 * KIB, 64 * KIB, MIB)


class Costs:
    """Sums over the samples of a row, and the costs per GB."""

    def __init__(self):
        self.bytes = self.seconds = self.pool_wait = 0.0
        self.source, self.target = ProcessCost(), ProcessCost()
        self.loads = self.busy = self.softirq = 0.0

    def facts(self):
        gigabytes = self.bytes / GB
        return {
            "source daemon, CPU-s/GB": self.source.cpu / gigabytes,
            "source daemon in the kernel, CPU-s/GB": self.source.system / gigabytes,
            "target daemon, CPU-s/GB": self.target.cpu / gigabytes,
            "target daemon in the kernel, CPU-s/GB": self.target.system / gigabytes,
            "writers and readers, CPU-s/GB": self.loads / gigabytes,
            "whole machine, CPU-s/GB": self.busy / gigabytes,
            "interrupts, CPU-s/GB": self.softirq / gigabytes,
            "source daemon, wake-ups/GB": self.source.sleeps / gigabytes,
            "target daemon, wake-ups/GB": self.target.sleeps / gigabytes,
            "receiving threads waiting for a slot, on average": self.pool_wait / self.seconds
            if self.seconds
            else 0.0,
        }


def sample(testbed, mounts, writers, each, request, files=1, costs=None):
    """Returns the GB/s from the first write to the last read."""
    label = testbed.label()
    mounts.source_at.run(["mkdir", mounts.out / label])
    readers = writer = None
    pids = mounts.source.host_pid, mounts.target.host_pid
    waited = mounts.source.status()["pool"]["wait_time_us"]
    before = [process_cost(pid) for pid in pids]
    try:
        readers = Load(
            mounts.target_at, read_words(mounts.in_ / label, writers, each, MIB, request, files)
        )
        writer = Load(
            mounts.source_at, write_words(mounts.out / label, writers, each, request, files)
        )
        machine = machine_time()  # the loads have touched their memory and start now
        written, read = writer.result(), readers.result()
        passed = machine_time() - machine
    finally:
        for load in (readers, writer):
            if load:
                load.kill()
    seconds = (read["ended_ns"] - written["begun_ns"]) / 1e9
    if costs is not None:
        after = [process_cost(pid) for pid in pids]
        costs.bytes += read["bytes"]
        costs.seconds += seconds
        costs.source += after[0] - before[0]
        costs.target += after[1] - before[1]
        costs.loads += sum(
            one[key] for one in (written, read) for key in ("user_seconds", "system_seconds")
        )
        costs.busy += passed.busy
        costs.softirq += passed.softirq
        costs.pool_wait += (mounts.source.status()["pool"]["wait_time_us"] - waited) / 1e6
    mounts.commit(label)
    mounts.remove(label)
    mounts.await_ready()
    return read["bytes"] / seconds / GB


def mounts_for(testbed, link, chunk=MIB, pool=64 * MIB, streams=2):
    at, to = testbed.nodes(link)
    ready = max(256 * MIB, testbed.bytes_for(link))
    return Mounts(
        at,
        to,
        testbed.private,
        flags(
            {"--chunk-size": chunk, "--pool-size": pool, "--streams": streams},
            testbed.source_options,
        ),
        flags({"--wait-for-files": None, "--pool-size": ready}, testbed.target_options),
        name=testbed.label("pipeline"),
    )


def measure(testbed, link, writers=1, request=MIB, chunk=MIB, pool=64 * MIB, streams=2, runs=None):
    effort, runs = testbed.effort, runs or testbed.effort.runs
    each = max(
        request,
        testbed.bytes_for(link)
        // (4 if request < 64 * KIB and link not in BYTES_PER_SECOND else 1)
        // writers
        // request
        * request,
    )
    ppmr, tcp, costs = [], [], Costs()
    with mounts_for(testbed, link, chunk, pool, streams) as mounts:
        mounts.await_ready()
        at, to = mounts.source_at, mounts.target_at
        for number in range(effort.warm_ups + runs):
            counts = number >= effort.warm_ups
            rate = sample(testbed, mounts, writers, each, request, costs=costs if counts else None)
            if counts:
                ppmr.append(rate)
                if len(ppmr) % 2:
                    tcp.append(
                        iperf(at, to, to.address, testbed.port(), streams, effort.iperf_seconds)
                    )
        facts = costs.facts()
        facts["iperf3 sender, CPU-s/GB"] = spread([one["sender_cpu"] for one in tcp]).median
        facts |= memory_facts(mounts.source, mounts.target)
    return Outcome({"ppmr": ppmr, "iperf3": [one["rate"] for one in tcp]}, facts)


def plan(testbed):
    effort = testbed.effort

    def item(series, name, parameters, limited=False, runs=effort.runs):
        seconds = 3 + (runs + 1) * 1.4 + runs / 2 * (effort.iperf_seconds + 0.5)
        return Item(
            SECTION,
            series,
            name,
            parameters,
            "GB/s",
            lambda: measure(testbed, **parameters, runs=runs),
            seconds + (runs * effort.limited_seconds if limited else 0),
        )

    for link in LINKS if effort.sweeps else ["veth", "10 Gb/s"][: effort.sweep]:
        for writers in effort.thin(WRITERS) if effort.sweeps else [1]:
            yield item(
                "links and writers",
                f"{link}, {writers}",
                {"link": link, "writers": writers},
                link in BYTES_PER_SECOND,
            )
    for request in REQUESTS[:-1] if effort.sweeps else []:
        yield item(
            "write size", size_text(request), {"link": "veth", "request": request, "writers": 2}
        )
    for chunk in effort.thin(CHUNKS) if effort.sweeps else []:
        for pool in effort.thin(POOLS):
            yield item(
                "chunk and pool size",
                f"{size_text(chunk)} in {size_text(pool)}",
                {"link": "veth", "writers": 2, "chunk": chunk, "pool": pool},
                runs=min(effort.runs, effort.grid_runs),
            )
