"""The ways of moving a tree that ppmr is compared with, in addition to those of tests/lab/peers.py:
the paper's baselines and common tools.

Each runs under its best conditions: receivers listen before the dump begins, copies go straight
through sockets, restores are eager unless the way is a lazy one. The defining cost of a baseline
stays: *Local* and *RDMA+Local* write the images to a disk and drop them from the page cache.
"""
import contextlib
import os
import subprocess
from pathlib import Path

from lab import criu
from lab.move import Move, now
from lab.node import LabError, wait_until
from lab.peers import PageServerMove, TarCopy, TarMove, _PeerMove
from lab.ppmr import PpmrMove

from .loads import mortal
from .migrate import MigrateMove

LAZY_PORT, RSYNC_PORT, DISK_PORT = 7810, 7811, 7812
PIPE_BYTES = 4 << 20

# Writes all files below a directory to the disk and drops them from the page cache.
TO_DISK = """
import os, sys
for directory, _, names in os.walk(sys.argv[1]):
    for name in names:
        fd = os.open(os.path.join(directory, name), os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    fd = os.open(directory, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
"""

# Copies a checkpoint from a target mount to files while it arrives. A thread per file; reads block
# until their bytes arrive.
LAND = """
import os, sys, threading, time
mount, disk = sys.argv[1:]
failed, threads, known = [], [], set()
def land(name):
    try:
        with open(os.path.join(mount, name), "rb", buffering=0) as images, open(os.path.join(disk, name), "wb", buffering=0) as file:
            buffer = memoryview(bytearray(1 << 20))
            while count := images.readinto(buffer):
                done = 0
                while done < count:
                    done += file.write(buffer[done:count])
    except OSError as error:
        failed.append(f"{name}: {error}")
print("watching", flush=True)
while True:
    complete = "inventory.img" in known
    try:
        names = set(os.listdir(mount)) - known
    except FileNotFoundError:
        names = set()
    for name in names:
        threads.append(threading.Thread(target=land, args=(name,)))
        threads[-1].start()
    known |= names
    if complete and not names:
        break
    time.sleep(0.001)
for thread in threads:
    thread.join()
sys.exit("; ".join(failed) or 0)
"""


def python(script):
    return ["/usr/bin/python3", "-SEc", script]


def to_disk(at, directory):
    at.run([*python(TO_DISK), directory], timeout=300)


class LocalMove(Move):
    """The paper's *Local*: CRIU dumps to a local disk; the files are copied to the other node's
    disk; CRIU restores from there."""

    name = "Local"

    def __init__(self, source, target, disk):
        super().__init__(source, target)
        self._disk = Path(disk)

    def prepare(self, label):
        self._at_source, self._at_target = (
            self._disk / f"{label}-source",
            self._disk / f"{label}-target",
        )
        for node, path in ((self.source, self._at_source), (self.target, self._at_target)):
            node.run(["mkdir", path])
        self._work_source, self._work_target = self.source.scratch(
            f"{label}-work"
        ), self.target.scratch(f"{label}-work")
        self._tar = TarCopy(self.source, self.target, self._at_target, DISK_PORT)

    def _transfer(self, pid, timeline, dump_options, restore_options):
        timeline.dump_began = now()
        criu.dump(self.source, pid, self._at_source, self._work_source, dump_options)
        to_disk(self.source, self._at_source)
        timeline.dump_done = now()
        self._tar.copy(self._at_source, timeout=300)
        to_disk(self.target, self._at_target)
        timeline.arrived = now()
        criu.restore(self.target, self._at_target, self._work_target, restore_options)

    def clean(self):
        self._tar.close()
        self.source.run(["rm", "-rf", self._at_source, self._at_target], check=False)
        self.source.drop_scratch(self._work_source)
        self.target.drop_scratch(self._work_target)


class SharedMove(Move):
    """The paper's *Shared*: CRIU dumps into a file system that both nodes have mounted, and
    restores from there."""

    name = "Shared"

    def __init__(self, source, target, shared):
        super().__init__(source, target)
        self._shared = Path(shared)

    def prepare(self, label):
        self._images = self._shared / f"{label}-images"
        self.source.run(["mkdir", self._images])
        self._work_source, self._work_target = self.source.scratch(
            f"{label}-work"
        ), self.target.scratch(f"{label}-work")

    def _transfer(self, pid, timeline, dump_options, restore_options):
        timeline.dump_began = now()
        criu.dump(self.source, pid, self._images, self._work_source, dump_options)
        to_disk(self.source, self._images)
        timeline.dump_done = timeline.arrived = now()
        criu.restore(self.target, self._images, self._work_target, restore_options)

    def clean(self):
        self.source.run(["rm", "-rf", self._images], check=False)
        self.source.drop_scratch(self._work_source)
        self.target.drop_scratch(self._work_target)


class LandedMove(PpmrMove):
    """The paper's *RDMA+Local*: ppmr's stream into files on the target's disk. The restore starts
    when they are complete."""

    name = "RDMA+Local (bytes over TCP)"

    def __init__(self, source, target, mounts, disk):
        super().__init__(source, target, mounts, lazily=False)
        self._disk = Path(disk)

    def prepare(self, label):
        super().prepare(label)
        self._files = self._disk / f"{label}-landed"
        self.target.run(["mkdir", self._files])
        self._landing = self.target.popen(
            mortal([*python(LAND), self.mounts.in_ / label, self._files]),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._landing.stdout.readline().strip() != "watching":
            raise LabError(
                f"{self.name}: cannot watch {self.mounts.in_ / label}: {self._landing.stderr.read().strip()}"
            )

    def _transfer(self, pid, timeline, dump_options, restore_options):
        timeline.dump_began = now()
        criu.dump(self.source, pid, self.mounts.out / self.label, self._work_source, dump_options)
        timeline.dump_done = now()
        self.mounts.commit(self.label)
        if self._landing.wait(timeout=300) != 0:
            raise LabError(
                f"{self.name}: cannot copy from {self.mounts.in_ / self.label}: {self._landing.stderr.read().strip()}"
            )
        to_disk(self.target, self._files)
        timeline.arrived = now()
        criu.restore(self.target, self._files, self._work_target, restore_options)

    def clean(self):
        if self._landing.poll() is None:
            self._landing.kill()
            self._landing.wait()
        self._landing.stdout.close()
        self._landing.stderr.close()
        self.target.run(["rm", "-rf", self._files], check=False)
        super().clean()


class RsyncMove(_PeerMove):
    """Images in tmpfs, copied to an rsync daemon without ssh, as whole files, without rsync's
    checksums."""

    name = "tmpfs + rsync"

    def prepare(self, label):
        super().prepare(label)
        self._address = self.target.address
        configuration = self.target.host_path(self._work_target) / "rsyncd.conf"
        configuration.write_text(
            f"use chroot = no\nuid = 0\ngid = 0\n[images]\npath = {self._at_target}\nread only = no\nreverse lookup = no\n"
        )
        self._daemon = self.target.popen(
            mortal(
                [
                    "rsync",
                    "--daemon",
                    "--no-detach",
                    f"--port={RSYNC_PORT}",
                    f"--address={self._address}",
                    f"--config={self._work_target}/rsyncd.conf",
                    "--log-file=/dev/null",
                ]
            )
        )
        self.target.await_listener(RSYNC_PORT, self._daemon)
        if self._daemon.poll() is not None:
            self.clean()
            raise LabError(f"rsync does not listen at {self._address}:{RSYNC_PORT}")

    def _transfer(self, pid, timeline, dump_options, restore_options):
        timeline.dump_began = now()
        criu.dump(self.source, pid, self._at_source, self._work_source, dump_options)
        timeline.dump_done = now()
        self.source.run(
            [
                "rsync",
                "-a",
                "--whole-file",
                "--inplace",
                f"{self._at_source}/",
                f"rsync://{self._address}:{RSYNC_PORT}/images/",
            ],
            timeout=300,
        )
        timeline.arrived = now()
        self._restore(restore_options)

    def clean(self):
        self._daemon.kill()
        self._daemon.wait()
        super().clean()


class LazyPagesMove(_PeerMove):
    """CRIU's post-copy: the small images are copied, the process runs at the target and gets its
    pages from the frozen source, on demand and in the background."""

    name = "CRIU lazy pages"

    def _transfer(self, pid, timeline, dump_options, restore_options):
        self._dump = None
        status, status_writer = os.pipe()
        timeline.dump_began = now()
        try:
            self._dump = self.source.popen(
                mortal(
                    [
                        criu.find_criu(self.source),
                        "dump",
                        "-t",
                        pid,
                        "-D",
                        self._at_source,
                        "-W",
                        self._work_source,
                        "-o",
                        "dump.log",
                        "--lazy-pages",
                        "--address",
                        self.source.address,
                        "--port",
                        LAZY_PORT,
                        "--status-fd",
                        status_writer,
                        *dump_options,
                    ]
                ),
                pass_fds=(status_writer,),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            os.close(status_writer)
            status_writer = -1
            if os.read(status, 1) != b"\0":
                raise criu.CriuError(
                    f"criu dump --lazy-pages failed:\n{criu._errors(self.source, self._work_source / 'dump.log')}"
                )
        finally:
            os.close(status)
            if status_writer >= 0:
                os.close(status_writer)
        timeline.dump_done = now()
        self._tar.copy(self._at_source)
        timeline.arrived = now()
        self._pages = criu.LazyPages(
            self.target,
            self._at_target,
            self._work_target,
            ["--page-server", "--address", self.source.address, "--port", LAZY_PORT],
        )
        criu.restore(
            self.target, self._at_target, self._work_target, ["--lazy-pages", *restore_options]
        )

    def finish(self):
        super().finish()
        if self._dump and self._dump.wait(timeout=120) != 0:
            raise criu.CriuError(
                f"criu dump --lazy-pages failed:\n{criu._errors(self.source, self._work_source / 'dump.log')}"
            )
        self._dump = None

    def clean(self):
        if getattr(self, "_dump", None) and self._dump.poll() is None:
            self._dump.kill()
            self._dump.wait()
            wait_until(  # the dump uses these files, and ends with its page server
                lambda: self.source.run(["umount", self._at_source], check=False).returncode == 0,
                10,
                "criu dump to end",
            )
        self._dump = self._pages = None
        super().clean()


@contextlib.contextmanager
def room_in_pipes():
    """Allows pipes of 4 MiB, which CRIU's page server requires if it lacks CAP_SYS_RESOURCE."""
    limit = Path("/proc/sys/fs/pipe-max-size")
    before = int(limit.read_text())
    if before < PIPE_BYTES:
        limit.write_text(f"{PIPE_BYTES}\n")
    try:
        yield
    finally:
        if before < PIPE_BYTES:
            limit.write_text(f"{before}\n")


def all_ways(testbed, mounts, migrating=False):
    """([ways], {name: why it cannot run}). The others are compared with the first. `migrating`: the
    target of these mounts restarts processes."""
    at, to, disk = testbed.source, testbed.target, testbed.disk_directory
    ways = [
        Named("ppmr, lazy", PpmrMove(at, to, mounts)),
        Named("ppmr, eager", PpmrMove(at, to, mounts, lazily=False)),
        Named("tmpfs + tar", TarMove(at, to)),
        Named("tmpfs + rsync", RsyncMove(at, to)),
        Named(PageServerMove.name, PageServerMove(at, to)),
        Named(LazyPagesMove.name, LazyPagesMove(at, to)),
    ]
    if migrating:
        ways[2:2] = [
            Named(" ".join([MigrateMove.name, *options]), MigrateMove(at, to, mounts, *options))
            for options in ([], ["--eager"])
        ]
    why_not = {"criu-image-streamer": "not a Debian package, and this driver does not support it"}
    kind = filesystem_of(at, disk)
    if kind in ("tmpfs", "ramfs"):
        why_not[LocalMove.name] = why_not[
            LandedMove.name
        ] = f"{disk} is on {kind}, not on a disk: use --disk DIR"
    else:
        ways += [
            Named(LocalMove.name, LocalMove(at, to, disk)),
            Named(LandedMove.name, LandedMove(at, to, mounts, disk)),
        ]
    if testbed.shared_directory:
        ways.append(Named(SharedMove.name, SharedMove(at, to, testbed.shared_directory)))
    else:
        why_not[
            SharedMove.name
        ] = "no network file system: both nodes run on one kernel and one disk; use --shared DIR if there is one"
    return ways, why_not


def filesystem_of(at, directory):
    return at.run(["stat", "-f", "-c", "%T", directory]).stdout.strip()


class Named:
    """A way to move, and its name in the report."""

    def __init__(self, name, move):
        self.name, self.move = name, move
