"""`criu dump` of one process that stays, into the source mount (streaming to a target on the same cores), into nothing, and into tmpfs."""
from contextlib import ExitStack, closing

from lab import criu
from lab.migration import now
from lab.ppmr import Daemon, Mounts

from .loads import NullSink
from .moves import Crowd
from .plan import Item, Outcome
from .rounds import alternate

SECTION = "dumps"


def measure(world, mib):
    source, target = world.nodes("veth")
    effort, verified = world.effort, []
    with ExitStack() as stack:
        nothing = world.private / "nothing"
        source.run(["mkdir", "-p", nothing])
        stack.enter_context(
            closing(Daemon(source, "source", nothing, ["--discard", *world.source_options]))
        )
        sink = stack.enter_context(NullSink(source, world.private / "null"))
        mounts = stack.enter_context(
            Mounts(
                source,
                target,
                world.private,
                world.source_options,
                world.target_options,
                name=world.label("dumps"),
            )
        )
        crowd = Crowd(source, world.lab.home / world.label("dumped"), 1, mib)
        stack.callback(crowd.end)
        mounts.await_ready()

        def dump(images, after=lambda: None):
            work = source.scratch(world.label("work"))
            world.await_fresh_memory()
            began = now()
            criu.dump(source, crowd.pid, images, work, ["--leave-running"])
            took = now() - began
            after()
            verified.append(now() - began)
            source.drop_scratch(work)
            return took

        def into_mount():
            label = world.label("dump")
            source.run(["mkdir", mounts.out / label])
            took = dump(mounts.out / label, lambda: mounts.commit(label))
            mounts.remove(label)
            mounts.await_ready()
            verified_in_mount.append(verified[-1])
            return took

        def into(mountpoint):
            def sample():
                directory = mountpoint / world.label("dump")
                source.run(["mkdir", directory])
                took = dump(directory)
                source.run(["rm", "-r", directory])
                return took

            return sample

        def into_tmpfs():
            images = source.scratch(world.label("images"), tmpfs=True)
            took = dump(images)
            source.drop_scratch(images)
            return took

        verified_in_mount = []
        samples = alternate(
            {
                "source mount, streaming": into_mount,
                "null FUSE sink": into(sink.mountpoint),
                "ppmr source --discard": into(nothing),
                "fresh tmpfs": into_tmpfs,
            },
            effort.runs,
            effort.warm_ups,
        )
        memory = {
            f"{daemon.role} daemon, most memory (MiB)": daemon.memory_kib()["VmHWM"] / 1024
            for daemon in (mounts.source, mounts.target)
        }
        return Outcome(
            samples,
            memory,
            also={
                "dumped and verified at the target": {
                    "source mount, streaming": verified_in_mount[effort.warm_ups :]
                }
            },
        )


def plan(world):
    effort = world.effort
    mib = 1024 if effort.sweeps else effort.move_mib[0]
    yield Item(
        SECTION,
        "one process",
        f"{mib} MiB",
        {"mib": mib},
        "s",
        lambda: measure(world, mib),
        5 + (effort.runs + 1) * (2 + 4 * mib / 1000),
    )
