"""Aggregation (the paper's first test): writers -> source mount -> pool, where the chunks are
discarded; compared with the null FUSE sink and tmpfs."""
from lab.ppmr import Daemon

from .loads import NullSink, memory_facts, rate, scratch, write_files
from .plan import Item, Outcome
from .rounds import alternate
from .spread import size_text
from .testbed import KIB, MIB, flags

SECTION = "aggregation"
WRITERS = (1, 2, 4, 8, 16)
REQUESTS = (4 * KIB, 16 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, MIB, 4 * MIB)
CHUNKS = (64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB)
POOLS = (4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB, 128 * MIB)
SMALL_REQUEST = 64 * KIB  # smaller requests are slow, so fewer bytes are written
MINOR_SHARE = 4


def measure(testbed, writers, request, chunk=MIB, pool=64 * MIB, tmpfs=False):
    node, effort = testbed.source, testbed.effort
    total = effort.bytes // (MINOR_SHARE if request < SMALL_REQUEST else 1)
    each = max(request, total // writers // request * request)
    daemon_at, sink_at = testbed.private / "aggregation", testbed.private / "null"
    node.run(["mkdir", "-p", daemon_at])
    daemon = Daemon(
        node,
        "source",
        daemon_at,
        flags(
            {"--discard": None, "--chunk-size": chunk, "--pool-size": pool}, testbed.source_options
        ),
    )
    try:
        # The sink has as many receiving threads as ppmr. With one thread, a writer would wait while
        # the sink completes the previous request.
        with NullSink(node, sink_at, max_write=chunk, threads=2) as sink:

            def into(mountpoint):
                def sample():
                    directory = mountpoint / testbed.label()
                    node.run(["mkdir", directory])
                    written = write_files(node, directory, writers, each, request)
                    node.run(["rm", "-r", directory])
                    return rate(written)

                return sample

            def into_tmpfs():
                with scratch(node, testbed.label(), tmpfs=True) as directory:
                    return rate(write_files(node, directory, writers, each, request))

            ways = {"ppmr": into(daemon_at), "null sink": into(sink.mountpoint)}
            if tmpfs:
                ways["tmpfs, first write"] = into_tmpfs
            samples = alternate(ways, effort.runs, effort.warm_ups)
            counters = daemon.status()["pool"]
            return Outcome(
                samples,
                {
                    "pool, most in use (MiB)": counters["high_water_bytes"] / MIB,
                    **memory_facts(daemon),
                },
            )
    finally:
        daemon.close()


def plan(testbed):
    effort = testbed.effort

    def item(series, name, parameters, seconds=6.0, tmpfs=False):
        return Item(
            SECTION,
            series,
            name,
            parameters,
            "GB/s",
            lambda: measure(testbed, **parameters, tmpfs=tmpfs),
            seconds * (effort.runs + 1) / 6,
        )

    for writers in WRITERS if effort.sweeps else effort.thin((1, 4)):
        for request in REQUESTS if effort.sweeps else (4 * KIB, MIB):
            yield item(
                "writers and write size",
                f"{writers} x {size_text(request)}",
                {"writers": writers, "request": request},
                tmpfs=request == MIB,
            )
    # The kernel splits writes larger than a chunk, so ppmr and the sink receive requests of the
    # chunk size.
    for chunk in CHUNKS if effort.sweeps else (128 * KIB,):
        for pool in effort.thin(POOLS):
            yield item(
                "chunk and pool size",
                f"{size_text(chunk)} in {size_text(pool)}",
                {"writers": 8, "request": MIB, "chunk": chunk, "pool": pool},
            )
