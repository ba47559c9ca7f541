"""`criu dump` of one process that continues to run: into the source mount (streaming to a target on
the same cores), into a null sink, and into tmpfs."""
from contextlib import ExitStack, closing

from lab import criu
from lab.move import now
from lab.ppmr import Daemon, Mounts

from .loads import NullSink, memory_facts
from .moves import Crowd
from .plan import Item, Outcome
from .rounds import alternate

SECTION = "dumps"


def measure(testbed, mib):
    source, target = testbed.nodes("veth")
    effort, verified = testbed.effort, []
    with ExitStack() as stack:
        discarding = testbed.private / "discard"
        source.run(["mkdir", "-p", discarding])
        stack.enter_context(
            closing(Daemon(source, "source", discarding, ["--discard", *testbed.source_options]))
        )
        sink = stack.enter_context(NullSink(source, testbed.private / "null"))
        mounts = stack.enter_context(
            Mounts(
                source,
                target,
                testbed.private,
                testbed.source_options,
                testbed.target_options,
                name=testbed.label("dumps"),
            )
        )
        crowd = Crowd(source, testbed.lab.home / testbed.label("dumped"), 1, mib)
        stack.callback(crowd.end)
        mounts.await_ready()

        def dump(images, after=lambda: None):
            work = source.scratch(testbed.label("work"))
            testbed.await_fresh_memory()
            began = now()
            criu.dump(source, crowd.pid, images, work, ["--leave-running"])
            took = now() - began
            after()
            verified.append(now() - began)
            source.drop_scratch(work)
            return took

        def into_mount():
            label = testbed.label("dump")
            source.run(["mkdir", mounts.out / label])
            took = dump(mounts.out / label, lambda: mounts.commit(label))
            mounts.remove(label)
            mounts.await_ready()
            verified_in_mount.append(verified[-1])
            return took

        def into(mountpoint):
            def sample():
                directory = mountpoint / testbed.label("dump")
                source.run(["mkdir", directory])
                took = dump(directory)
                source.run(["rm", "-r", directory])
                return took

            return sample

        def into_tmpfs():
            images = source.scratch(testbed.label("images"), tmpfs=True)
            took = dump(images)
            source.drop_scratch(images)
            return took

        verified_in_mount = []
        samples = alternate(
            {
                "source mount, streaming": into_mount,
                "null FUSE sink": into(sink.mountpoint),
                "ppmr source --discard": into(discarding),
                "fresh tmpfs": into_tmpfs,
            },
            effort.runs,
            effort.warm_ups,
        )
        memory = memory_facts(mounts.source, mounts.target)
        return Outcome(
            samples,
            memory,
            also={
                "dumped and verified at the target": {
                    "source mount, streaming": verified_in_mount[effort.warm_ups :]
                }
            },
        )


def plan(testbed):
    effort = testbed.effort
    mib = effort.dump_mib
    yield Item(
        SECTION,
        "one process",
        f"{mib} MiB",
        {"mib": mib},
        "s",
        lambda: measure(testbed, mib),
        5 + (effort.runs + 1) * (2 + 4 * mib / 1000),
    )
