"""How the daemons' CPU and memory grow with the bytes of a checkpoint, its files, and the
writers."""
from lab.node import LabError

from .loads import memory_facts
from .host import available_memory_bytes
from .pipeline import Costs, mounts_for, sample
from .plan import Item, Outcome
from .spread import size_text
from .testbed import GIB, KIB, MIB

SECTION = "growth"
SIZES = (64 * MIB, 256 * MIB, GIB, 4 * GIB)
FILES = (1, 10, 100, 1000)


def measure(testbed, bytes_, writers=1, files=1, request=MIB):
    if available_memory_bytes() < 1.5 * bytes_:
        raise LabError(
            f"{size_text(bytes_)} of images do not fit in {size_text(available_memory_bytes())} of free memory"
        )
    costs, rates = Costs(), []
    with mounts_for(testbed, "veth") as mounts:
        mounts.await_ready()
        at_rest = {
            daemon.role: daemon.memory_kib()["VmRSS"] / 1024
            for daemon in (mounts.source, mounts.target)
        }
        for number in range(testbed.effort.warm_ups + testbed.effort.runs):
            rate = sample(
                testbed,
                mounts,
                writers,
                bytes_ // writers // files,
                request,
                files,
                costs if number >= testbed.effort.warm_ups else None,
            )
            if number >= testbed.effort.warm_ups:
                rates.append(rate)
        facts = costs.facts()
        for daemon in (mounts.source, mounts.target):
            facts[f"{daemon.role} daemon at rest (MiB)"] = at_rest[daemon.role]
        facts |= memory_facts(mounts.source, mounts.target)
    return Outcome({"ppmr": rates}, facts)


def plan(testbed):
    effort = testbed.effort

    def item(series, name, parameters):
        seconds = 3 + (effort.runs + 1) * (
            0.7 + parameters["bytes_"] / 8e8 + parameters.get("files", 1) / 500
        )
        return Item(
            SECTION,
            series,
            name,
            parameters,
            "GB/s",
            lambda: measure(testbed, **parameters),
            seconds,
        )

    for size in SIZES if effort.sweeps else [min(SIZES[1], effort.bytes)]:
        yield item("size", size_text(size), {"bytes_": size})
    for files in FILES[1:] if effort.sweeps else [10]:
        yield item("files", str(files), {"bytes_": min(effort.bytes, GIB), "files": files})
    for writers in (4, 16) if effort.sweeps else []:
        yield item("writers", str(writers), {"bytes_": GIB, "writers": writers})
    # Small files: the cost of names, not of bytes.
    for files in (1000,) if effort.sweeps else []:
        yield item("small files", f"{files} x 64 KiB", {"bytes_": files * 64 * KIB, "files": files})
