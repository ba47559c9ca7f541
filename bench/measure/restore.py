"""CRIU's restore alone, from images that are already in memory: in the target mount, and in tmpfs.
Every round restores the same images."""
import shutil

from lab import criu
from lab.move import now
from lab.node import wait_until
from lab.peers import TAR_PORT, TarCopy
from lab.ppmr import Mounts
from lab.programs import SteadyWorker

from .loads import scratch
from .plan import Item, Outcome
from .rounds import alternate
from .testbed import MIB, flags

SECTION = "restore"


def measure(testbed, mib, lazily):
    source, target = testbed.nodes("veth")
    with Mounts(
        source,
        target,
        testbed.private,
        testbed.source_options,
        flags({"--pool-size": max(256 * MIB, (mib + 64) * MIB)}, testbed.target_options),
        name=testbed.label("restore"),
    ) as mounts, scratch(target, testbed.label("images"), tmpfs=True) as in_tmpfs:
        mounts.await_ready()
        label = testbed.label("worker")
        worker = SteadyWorker(source, testbed.lab.home / label, mib)
        worker.wait_for_lines(20)
        with scratch(source, f"{label}-images", tmpfs=True) as images, scratch(
            source, f"{label}-work"
        ) as work:
            try:
                criu.dump(source, worker.pid, images, work)
            except BaseException:
                worker.end()
                raise
            tar = TarCopy(source, target, in_tmpfs, TAR_PORT)
            try:
                tar.copy(images)
            finally:
                tar.close()
            source.run(["cp", "-r", images, mounts.out / label])
            mounts.commit(label)
        # A restore checks the lengths of the files that the program has open, and the restored
        # program appends to them.
        kept = {file: file.read_bytes() for file in worker.directory.iterdir()}

        def restore_from(where):
            def sample():
                for file, content in kept.items():
                    file.write_bytes(content)
                with scratch(target, testbed.label("work")) as work:
                    began = now()
                    pages = (
                        criu.restore_lazily(target, where, work)
                        if lazily
                        else criu.restore(target, where, work)
                    )
                    took = now() - began
                    worker.node = target
                    try:
                        worker.wait_for_lines(2, target)
                        if pages:
                            pages.finish()
                    finally:
                        worker.end()
                        wait_until(
                            lambda: not target.exists(f"/proc/{worker.pid}"),
                            10,
                            "the restored process to end",
                            interval=0.002,
                        )
                        child = worker.lines()[-1]["child"]
                        wait_until(
                            lambda: not target.exists(f"/proc/{child}"),
                            10,
                            "its child to end",
                            interval=0.002,
                        )
                    return took

            return sample

        try:
            return Outcome(
                alternate(
                    {
                        "target mount": restore_from(mounts.in_ / label),
                        "tmpfs": restore_from(in_tmpfs),
                    },
                    testbed.effort.runs,
                    testbed.effort.warm_ups,
                )
            )
        finally:
            shutil.rmtree(worker.directory, ignore_errors=True)


def plan(testbed):
    effort = testbed.effort
    mib = 1024 if effort.sweeps else effort.move_mib[0]
    for name, lazily in (("eager", False), ("lazy", True)):
        yield Item(
            SECTION,
            "from memory",
            name,
            {"mib": mib, "lazily": lazily},
            "s",
            lambda lazily=lazily: measure(testbed, mib, lazily),
            6 + mib / 200 + (effort.runs + 1) * (1 + mib / 400),
        )
