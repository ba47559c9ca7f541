"""ppmr's performance targets, each a ratio of medians in one run, and whether the rows of a run
reach them.

A target whose figures are missing in the run is reported as not measured; figures of another run
are never used."""
from . import epoch_costs, epochs, job_targets, scale, shape_targets
from .machine_moves import WRITTEN_MIB
from .spread import ratio, spread
from .verdict import Target


def _ratio(key, of, against):
    def value(rows):
        row = rows.get(key)
        return row and ratio(row["results"].get(of), row["results"].get(against))

    return value


def _of_null_sink(name):
    return _ratio(f"aggregation/writers and write size/{name}", "ppmr", "null sink")


def _of_iperf(section, series, name):
    return _ratio(f"{section}/{series}/{name}", "ppmr", "iperf3")


def _of_machines(name):
    return _ratio(f"machines/{name}", "ppmr", "ib_read_bw")


def _live(size_mib):
    def measured(rows):
        found = [
            row
            for row in rows.of("machine moves", "downtime of a live move")
            if row["parameters"]["size_mib"] == size_mib
        ]
        return (
            ratio(found[0]["results"].get("live"), found[0]["results"].get("stop-and-copy"))
            if found
            else None
        )

    return measured


def _pool_insensitivity(rows):
    """The slowest pool of 8 MiB or more against the fastest, with full chunks. Each counts relative
    to the null sink of the same minutes, because the machine's speed drifts."""
    shares = [
        ratio(row["results"]["ppmr"], row["results"]["null sink"])
        for row in rows.of("aggregation", "chunk and pool size")
        if row["parameters"]["chunk"] == 1 << 20 and row["parameters"]["pool"] >= 8 << 20
    ]
    return min(shares) / max(shares) if len(shares) > 2 else None


def _source_cost_without_tcp(rows):
    row = rows.get("pipeline/links and writers/veth, 1")
    return row and row["facts"]["source daemon, CPU-s/GB"] - row["facts"]["iperf3 sender, CPU-s/GB"]


def _move(key, way, against="ppmr, lazy"):
    def value(rows):
        row = rows.get(key)
        return row and ratio(row["results"].get(way), row["results"].get(against))

    return value


def _downtime(key, way, against):
    def value(rows):
        downtime = (rows.get(key) or {}).get("also", {}).get("downtime", {})
        return ratio(downtime.get(way), downtime.get(against))

    return value


ONE_GIB = "moves/size/1024 MiB"
EIGHT = "moves/processes/8"

TARGETS = (
    Target(
        "aggregation, 1 writer, 1 MiB writes, of the null sink",
        0.85,
        _of_null_sink("1 x 1 MiB"),
        unit="%",
    ),
    Target(
        "aggregation, 1 writer, 1 MiB writes, against a first write to tmpfs",
        5,
        _ratio("aggregation/writers and write size/1 x 1 MiB", "ppmr", "tmpfs, first write"),
    ),
    Target(
        "aggregation, 1 writer, 128 KiB writes, of the null sink",
        0.80,
        _of_null_sink("1 x 128 KiB"),
        unit="%",
    ),
    Target(
        "aggregation, 1 writer, 4 KiB writes, of the null sink",
        0.60,
        _of_null_sink("1 x 4 KiB"),
        unit="%",
    ),
    Target(
        "aggregation, pools from 8 MiB up: slowest of fastest", 0.90, _pool_insensitivity, unit="%"
    ),
    Target(
        "network, veth unlimited, of iperf3",
        0.90,
        _of_iperf("network", "links and streams", "veth, 2"),
        unit="%",
    ),
    Target(
        "network, 10 Gb/s, of iperf3",
        0.97,
        _of_iperf("network", "links and streams", "10 Gb/s, 2"),
        unit="%",
    ),
    Target(
        "network, 1 Gb/s, of iperf3",
        0.97,
        _of_iperf("network", "links and streams", "1 Gb/s, 2"),
        unit="%",
    ),
    Target(
        "pipeline, 10 Gb/s, of iperf3",
        0.95,
        _of_iperf("pipeline", "links and writers", "10 Gb/s, 1"),
        unit="%",
    ),
    Target(
        "pipeline, veth unlimited, of iperf3",
        0.55,
        _of_iperf("pipeline", "links and writers", "veth, 1"),
        unit="%",
    ),
    Target("move of 1 GiB against Local", 10.7, _move(ONE_GIB, "Local")),
    Target("move of 1 GiB against tmpfs + tar", 10, _move(ONE_GIB, "tmpfs + tar")),
    Target("move of 1 GiB against the page server", 5, _move(ONE_GIB, "CRIU page server")),
    Target("move of 8 processes of 128 MiB against Local", 10.7, _move(EIGHT, "Local")),
    Target("move of 8 processes of 128 MiB against tmpfs + tar", 10, _move(EIGHT, "tmpfs + tar")),
    Target(
        "move of 8 processes of 128 MiB against the page server",
        5,
        _move(EIGHT, "CRIU page server"),
    ),
    Target(
        "downtime of 1 GiB: the page server's against ppmr migrate's, lazily",
        5,
        _downtime(ONE_GIB, "CRIU page server", "ppmr migrate"),
    ),
    *shape_targets.TARGETS,
    *job_targets.TARGETS,
    *epochs.TARGETS,
    *epoch_costs.TARGETS,
    Target(
        "eager restore from the target mount against one from tmpfs",
        1.05,
        _ratio("restore/from memory/eager", "target mount", "tmpfs"),
        at_least=False,
    ),
    Target(
        "lazy restore from the target mount, until it runs",
        0.06,
        lambda rows: (row := rows.get("restore/from memory/lazy"))
        and spread(row["results"]["target mount"]).median,
        at_least=False,
        unit="s",
    ),
    Target(
        "mover over RDMA between emulated machines, 128 KiB, of ib_read_bw",
        0.90,
        _of_machines("mover/RDMA, 128 KiB"),
        unit="%",
    ),
    Target(
        "mover over RDMA between emulated machines, 1 MiB, of ib_read_bw",
        0.90,
        _of_machines("mover/RDMA, 1 MiB"),
        unit="%",
    ),
    Target(
        "pipeline over RDMA between emulated machines, 128 KiB, of ib_read_bw",
        0.75,
        _of_machines("pipeline/RDMA, 128 KiB"),
        unit="%",
    ),
    Target(
        "pipeline over RDMA between emulated machines, 1 MiB, of ib_read_bw",
        0.75,
        _of_machines("pipeline/RDMA, 1 MiB"),
        unit="%",
    ),
    *(
        Target(
            f"downtime of a live move between emulated machines, {size} MiB, of stop-and-copy's",
            0.25,
            _live(size),
            at_least=False,
            unit="%",
        )
        for size in WRITTEN_MIB
    ),
    Target(
        "source daemon with its kernel work, without TCP's share",
        0.35,
        _source_cost_without_tcp,
        at_least=False,
        unit="CPU-s/GB",
    ),
    *(
        Target(
            f"time of a move, encrypted, {link}, of one that is not",
            wanted,
            _ratio(f"costs/encryption/random, {link}", "encrypted", "plain"),
            at_least=False,
        )
        for link, wanted in (("veth", 1.35), ("10 Gb/s", 1.05))
    ),
    *(
        Target(
            f"time of a move of text, 1 Gb/s, uncompressed, of one with --compress {how}",
            2,
            _ratio("costs/compression/text, 1 Gb/s", "off", how),
        )
        for how in ("lz4", "zstd")
    ),
    Target(
        "time of a move while 10,000 strangers connect, of one alone",
        1.2,
        _ratio("costs/strangers/random, 1 Gb/s", "10,000 strangers", "alone"),
        at_least=False,
    ),
    Target(
        "model of the rates on one core and on two: its worst prediction is off by a factor of",
        scale.MARGIN,
        scale.worst,
        at_least=False,
    ),
)
