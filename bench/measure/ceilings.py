"""The limits of this machine: memory, tmpfs, the null sink, TCP. Each is measured once alone; other
chapters measure their ceiling again next to ppmr."""
from .loads import MIB, NullSink, iperf, memory_rates, rate, scratch, write_files
from .plan import Item, Outcome
from .testbed import LINKS

SECTION = "ceilings"


def plan(testbed):
    effort = testbed.effort

    def memory():
        return Outcome(memory_rates(testbed.source, effort.runs, 0.3 if effort.sweeps else 0.02))

    def tmpfs():
        first, again = [], []
        for _ in range(effort.runs):
            with scratch(testbed.source, testbed.label(), tmpfs=True) as directory:
                first.append(rate(write_files(testbed.source, directory, 1, effort.bytes, MIB)))
                again.append(
                    rate(write_files(testbed.source, directory, 1, effort.bytes, MIB, keep=True))
                )
        return Outcome({"tmpfs, first write": first, "tmpfs, written over": again})

    def null_sink():
        samples = []
        with NullSink(testbed.source, testbed.private / "null") as sink:
            for _ in range(effort.runs + 1):
                label = testbed.label()
                testbed.source.run(["mkdir", sink.mountpoint / label])
                samples.append(
                    rate(write_files(testbed.source, sink.mountpoint / label, 1, effort.bytes, MIB))
                )
        return Outcome({"null FUSE sink, 1 writer, 1 MiB": samples[1:]})

    def tcp(link):
        def measure():
            at, to = testbed.nodes(link)
            results, facts = {}, {}
            for streams in (1, 2, 4) if effort.sweep > 1 else (2,):
                found = [
                    iperf(at, to, to.address, testbed.port(), streams, effort.iperf_seconds)
                    for _ in range(max(1, effort.runs - 2))
                ]
                name = f"iperf3, {streams} stream{'s' if streams > 1 else ''}"
                results[name] = [one["rate"] for one in found]
                middle = sorted(found, key=lambda one: one["rate"])[len(found) // 2]
                facts[f"{name}: sender, CPU-s/GB"], facts[f"{name}: receiver, CPU-s/GB"] = (
                    middle["sender_cpu"],
                    middle["receiver_cpu"],
                )
            return Outcome(results, facts)

        return measure

    yield Item(
        SECTION, "memory", "1 MiB steps over 64 MiB", {}, "GB/s", memory, 2 + 2 * effort.runs
    )
    yield Item(SECTION, "tmpfs", "1 MiB writes", {}, "GB/s", tmpfs, 1 + effort.runs)
    yield Item(SECTION, "FUSE", "1 MiB writes", {}, "GB/s", null_sink, 1 + effort.runs / 2)
    for link in LINKS if effort.sweeps else ["veth"]:
        yield Item(
            SECTION,
            "TCP",
            link,
            {"link": link},
            "GB/s",
            tcp(link),
            3 * max(1, effort.runs - 2) * (effort.iperf_seconds + 0.5),
        )
