"""The targets of the chapter shapes. Seconds count from the last sign of life before a move."""
from .shape_ways import DEFAULT, LAZY_PAGES, PLAIN, POST_COPY, TAR
from .shapes import IN_PLACE, PSS, PSS_BEFORE, SENT
from .spread import ratio, spread
from .verdict import Target
from .touches import FIRST_PASS, LATENCY_P99
from .shape_trees import SPARSE_PAGES

SPARSE = "sparse, 65,536 single pages"
PREFORK = "prefork, 400 MiB and 8 children"
LEAST_FILL_S = 0.001


def _samples(rows, key, way, what=None):
    row = rows.get(key)
    return row and (row.get("also", {}).get(what, {}) if what else row["results"]).get(way)


def _median(key, way, what=None):
    def value(rows):
        found = _samples(rows, key, way, what)
        return spread(found).median if found else None

    return value


def _of(shape, way, what=None):
    return _median(f"shapes/downtime/{shape}", way, what)


def _against(key, way, other, what=None, other_what=None):
    def value(rows):
        return ratio(_samples(rows, key, way, what), _samples(rows, key, other, other_what or what))

    return value


def _more_than(shape, other):
    """Returns by how many seconds the tree stands still longer than another one, in the default
    mode."""

    def value(rows):
        slow, fast = _of(shape, DEFAULT)(rows), _of(other, DEFAULT)(rows)
        return None if slow is None or fast is None else max(0.0, slow - fast)

    return value


def _fill(shape, pages, way):
    """Returns the pages per second from the first sign of life at the target until all memory
    is in place."""

    def value(rows):
        running, complete = _of(shape, way)(rows), _of(shape, way, IN_PLACE)(rows)
        return complete and pages / max(LEAST_FILL_S, complete - running)

    return value


def longest_of_tar(rows):
    """Returns (ratio, shape) of the shape with the worst ratio to tmpfs + tar + restore."""
    found = [
        (ratio(row["results"][DEFAULT], row["results"][TAR]), row["parameters"]["shape"])
        for row in rows.of("shapes", "downtime")
        if row["results"].get(DEFAULT) and row["results"].get(TAR)
    ]
    return max(found, default=(None, None))


def _at_most(what, wanted, value, unit="s"):
    return Target(what, wanted, value, at_least=False, unit=unit)


def _sent(shape, mib):
    """Returns the bytes that the target received in the default mode, divided by those of the
    memory."""

    def value(rows):
        sent = _of(shape, DEFAULT, SENT)(rows)
        return sent and sent * 1e6 / (mib << 20)

    return value


TARGETS = (
    *(
        _at_most(
            f"downtime of {gib} GiB, default mode, more than of 64 MiB",
            0.05 + 0.015 * gib,
            _more_than(f"{gib} GiB", "64 MiB"),
        )
        for gib in (1, 4, 8)
    ),
    *(
        _at_most(f"downtime of {shape}, default mode", wanted, _of(shape, DEFAULT))
        for shape, wanted in (
            ("1 GiB, 64 MiB hot", 0.30),
            ("4 GiB, 64 MiB hot", 0.30),
            ("Python, 1 GiB", 0.30),
            ("Node.js, 1 GiB", 0.30),
            ("JVM, 1 GiB", 0.30),
            ("1 GiB of open files in memory", 0.40),
            ("3 GiB of open files in memory", 0.40),
        )
    ),
    _at_most("sent for 1 GiB, of the memory", 1.02, _sent("1 GiB", 1024), "x"),
    _at_most(
        "sent for 1 GiB, 64 MiB hot, of the memory", 1.25, _sent("1 GiB, 64 MiB hot", 1024), "x"
    ),
    _at_most(
        "redis with 1 GiB under load without an answer, default mode",
        0.25,
        _median("shapes/redis under load/1 GiB", DEFAULT),
    ),
    _at_most(
        "PostgreSQL with 1 GiB of buffers without an answer, default mode",
        0.40,
        _median("shapes/PostgreSQL under load/1 GiB", DEFAULT),
    ),
    *(
        _at_most(f"downtime of {shape}, --post-copy", wanted, _of(shape, POST_COPY))
        for shape, wanted in (("64 MiB", 0.12), ("1 GiB", 0.15), ("4 GiB", 0.40))
    ),
    _at_most(
        "all memory of 4 GiB in place, --post-copy, of CRIU's lazy pages",
        0.25,
        _against("shapes/downtime/4 GiB", POST_COPY, LAZY_PAGES, IN_PLACE),
        "%",
    ),
    _at_most(
        "all memory of 4 GiB in place, --post-copy, of the default mode's",
        1.3,
        _against("shapes/downtime/4 GiB", POST_COPY, DEFAULT, IN_PLACE),
        "x",
    ),
    _at_most(
        "first pass over 1 GiB in random order, --post-copy, of CRIU's lazy pages",
        0.25,
        _against(FIRST_PASS, POST_COPY, LAZY_PAGES),
        "%",
    ),
    _at_most(
        "99% of these touches, --post-copy, within",
        2000,
        _median(FIRST_PASS, POST_COPY, LATENCY_P99),
        "µs",
    ),
    _at_most("downtime of 1 GiB shared, default mode", 0.4, _of("1 GiB shared", DEFAULT)),
    _at_most(f"downtime of {SPARSE}, default mode", 0.8, _of(SPARSE, DEFAULT)),
    *(
        Target(
            f"{SPARSE}, filled by {way}",
            200_000,
            _fill(SPARSE, SPARSE_PAGES, way),
            unit="pages/s",
        )
        for way in (DEFAULT, POST_COPY)
    ),
    *(
        _at_most(
            f"downtime of {shape}, default mode, of plain CRIU's dump and restore in tmpfs",
            1.25,
            _against(f"shapes/downtime/{shape}", DEFAULT, PLAIN),
            "x",
        )
        for shape in ("2,000 threads", "300 processes")
    ),
    *(
        _at_most(f"downtime of {shape}, more than without", 0.05, _more_than(shape, other))
        for shape, other in (
            ("64 MiB, 1 TiB reserved", "64 MiB"),
            ("JVM, 64 GiB reserved", "JVM"),
            ("JVM, -XX:+UseZGC 16 GiB reserved", "JVM"),
            ("Node.js, WebAssembly", "Node.js"),
        )
    ),
    _at_most(f"{PREFORK}: received by the target", 450, _of(PREFORK, DEFAULT, SENT), "MB"),
    *(
        _at_most(
            f"{PREFORK}: PSS after {way}, of that before",
            1.15,
            _against(f"shapes/downtime/{PREFORK}", way, PSS_BEFORE, PSS),
            "x",
        )
        for way in (DEFAULT, POST_COPY)
    ),
    _at_most(f"downtime of {PREFORK}, default mode", 0.8, _of(PREFORK, DEFAULT)),
    _at_most(
        "60 processes of 8 MiB by ppmr evacuate",
        7,
        _median("shapes/evacuation/60 processes of 8 MiB", "ppmr evacuate"),
    ),
    _at_most(
        "downtime of the worst shape, default mode, of tmpfs + tar + restore",
        1,
        lambda rows: longest_of_tar(rows)[0],
        "x",
    ),
)
