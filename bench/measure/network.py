"""Network (the paper's second test): pool -> image store over TCP, encrypted, without FUSE;
compared with iperf3 with as many streams on the same path."""
from lab.node import LabError
from lab.ppmr import make_key

from .aggregation import CHUNKS, POOLS
from .loads import StreamTarget, iperf, stream_rates
from .plan import Item, Outcome
from .spread import size_text
from .testbed import BYTES_PER_SECOND, LINKS, MIB

SECTION = "network"
STREAMS = (1, 2, 4)


def measure(testbed, link, streams=2, writers=1, chunk=MIB, pool=64 * MIB, runs=None):
    effort, runs = testbed.effort, runs or testbed.effort.runs
    at, to = testbed.nodes(link)
    if to.address is None:
        raise LabError("the nodes have no address")
    bytes_ = testbed.bytes_for(link)
    ppmr, tcp = [], []
    cpu = []
    key = make_key(testbed.private / f"network-key-{testbed.port()}", *{at, to})
    store = max(2 * effort.bytes, 64 * MIB)
    with StreamTarget(to, to.address, testbed.port(), store, key) as target:
        # The ways alternate in blocks of rounds instead of single rounds, because every start of
        # the program costs a warm-up.
        blocks = 2 if runs > 1 else 1
        for block in range(blocks):
            in_block = runs // blocks + (runs % blocks if block == 0 else 0)
            ppmr += stream_rates(at, target, bytes_, writers, chunk, pool, streams, in_block)
            found = [
                iperf(at, to, to.address, testbed.port(), streams, effort.iperf_seconds)
                for _ in range(1 if link in BYTES_PER_SECOND else max(1, in_block - 1))
            ]
            tcp += [one["rate"] for one in found]
            cpu += [one["sender_cpu"] for one in found]
    return Outcome(
        {"ppmr": ppmr, "iperf3": tcp}, {"iperf3 sender, CPU-s/GB": sorted(cpu)[len(cpu) // 2]}
    )


def plan(testbed):
    effort = testbed.effort

    def item(series, name, parameters, limited=False, runs=effort.runs):
        seconds = 2 + (runs + 2) * 0.6 + runs * (effort.iperf_seconds + 0.5) * 0.7
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
        for streams in STREAMS if effort.sweeps else [2]:
            yield item(
                "links and streams",
                f"{link}, {streams}",
                {"link": link, "streams": streams},
                link in BYTES_PER_SECOND,
            )
    for writers in (2, 4) if effort.sweeps else []:
        yield item("writers", str(writers), {"link": "veth", "writers": writers})
    for chunk in effort.thin(CHUNKS) if effort.sweeps else []:
        for pool in effort.thin(POOLS):
            yield item(
                "chunk and pool size",
                f"{size_text(chunk)} in {size_text(pool)}",
                {"link": "veth", "chunk": chunk, "pool": pool},
                runs=min(effort.runs, effort.grid_runs),
            )
