"""Predicts how fast memory moves on other machines: a pure model of costs that were measured here.

A move has two phases. The copy: threads at the source read and encrypt, streams send, streams
receive and decrypt into the image store. Then the fill: the pager puts the pages into the restored
processes. The stages of a phase work at the same time, so the slowest bound is the rate:

    a stage     its threads / its CPU seconds per GB, at most one thread for each core
    a node      its cores / the CPU seconds per GB of all of its stages together
    the link    its payload bytes per second

The next bound is what limits after the first one has been raised.
"""
from dataclasses import dataclass

SOURCE, TARGET = "source", "target"
COPY, FILL = "copy", "fill"
GIGABIT_BYTES = 0.125  # GB/s
# TCP over Ethernet with frames of 1500 bytes: 1448 bytes of payload in 1538 on the wire.
PAYLOAD_SHARE = 1448 / 1538

CORES = (4, 16, 64)
LINKS_GBIT = (10, 100, 400)


@dataclass(frozen=True)
class Stage:
    name: str
    node: str
    phase: str
    threads: str  # which of the thread counts; "": it always has one thread


# Steps that one thread does in turn are one stage: a thread serves each stream or reader.
STAGES = (
    Stage("read and encrypt", SOURCE, COPY, "readers"),
    Stage("send", SOURCE, COPY, "streams"),
    Stage("control messages of the source", SOURCE, COPY, ""),
    Stage("receive and decrypt", TARGET, COPY, "streams"),
    Stage("control messages of the target", TARGET, COPY, ""),
    Stage("fill", TARGET, FILL, "fillers"),
)


@dataclass(frozen=True)
class Limit:
    name: str
    rate: float  # GB/s


def bounds(costs, threads, cores, phase, link_gbit=None, shared=False):
    """Returns the Limits of a phase, the lowest first. costs: {stage: CPU-s/GB}; threads: {kind:
    count}. shared: both nodes are on the same cores. link_gbit None: the link costs CPU only."""
    stages = [stage for stage in STAGES if stage.phase == phase and costs[stage.name] > 0]
    found = []
    for stage in stages:
        count = min(threads[stage.threads] if stage.threads else 1, cores)
        found.append(Limit(stage.name, count / costs[stage.name]))
    nodes = {"the cores": stages} if shared else {}
    for node in () if shared else (SOURCE, TARGET):
        of_node = [stage for stage in stages if stage.node == node]
        if of_node:
            nodes[f"the cores of the {node}"] = of_node
    for name, of_node in nodes.items():
        found.append(Limit(name, cores / sum(costs[stage.name] for stage in of_node)))
    if link_gbit and phase == COPY:
        found.append(Limit("the link", link_gbit * GIGABIT_BYTES * PAYLOAD_SHARE))
    return sorted(found, key=lambda limit: limit.rate)


def rate(*arguments, **options):
    return bounds(*arguments, **options)[0].rate


def off_by(predicted, measured):
    """Returns how far the prediction is off, in either direction: 1.25 if it is a quarter more, or
    if the measured rate is a quarter more than it."""
    return max(predicted / measured, measured / predicted)
