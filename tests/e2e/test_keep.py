"""Kept checkpoints (`ppmr target --keep-dir`): they outlive the daemon of the target, also if it is
killed at any moment, and what was reported as kept is there and whole."""
import contextlib
import fcntl
import itertools
import os
import random
import statistics
import struct
import threading
import time

import pytest

from lab import criu, slow_disk
from lab.node import wait_until
from lab.ppmr import Mounts, find_ppmr
from lab.programs import SteadyWorker, check_continuity
from lab.world import MIB, SMALL_POOL, digest_of_written

pytestmark = pytest.mark.xdist_group("stopped daemons")

KILLS, KILLS_LONG = 5, 100
POWER_LOSSES, POWER_LOSSES_LONG = 5, 20


@pytest.fixture
def keep(world):
    """The directory, and the options with which a target keeps checkpoints in it."""
    return Keep(world, world.directory / "kept")


class Keep:
    def __init__(self, world, directory):
        self.world, self.directory = world, directory
        directory.mkdir(exist_ok=True)
        self.key = world.directory / "keep-key"
        if not self.key.exists():
            world.succeeds([find_ppmr(), "keygen", self.key])

    @property
    def options(self):
        return ["--keep-dir", self.directory, "--keep-key", self.key]

    def files(self):
        return sorted(os.listdir(self.directory))


def send(world, source, name, size):
    directory = world.begin(source, name)
    world.write(directory / "file", size).succeeds()
    world.succeeds([find_ppmr(), "commit", directory])


def wait_until_kept(world, target, name):
    return world.succeeds([find_ppmr(), "commit", target.mountpoint / name, "--kept"], within=30)


def checkpoint(world, target, name):
    listed = world.status(target.mountpoint)["checkpoints"]
    return next((entry for entry in listed if entry["name"] == name), None)


# -- restart after the end of the target


def test_dumped_process_is_restarted_after_its_target_was_killed(nodes, lab):
    kept, key = nodes.target.private / "kept", nodes.target.private / "keep-key"
    nodes.target.run(["mkdir", kept])
    nodes.target.run([find_ppmr(), "keygen", key])
    options = ["--keep-dir", kept, "--keep-key", key]
    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=48)
    worker.wait_for_lines(10)
    with Mounts(
        nodes.source, nodes.target, lab.directory / "private", target_options=options
    ) as mounts:
        work = nodes.source.private / "work"
        nodes.source.run(["mkdir", "-p", mounts.out / "job", work])
        criu.dump(nodes.source, worker.pid, mounts.out / "job", work, [])
        mounts.commit("job")
        nodes.target.run([find_ppmr(), "commit", mounts.in_ / "job", "--kept"])
        mounts.target.kill()
        mounts.source.kill()
        mounts.restart_dead()
        [found] = mounts.target.status()["checkpoints"]
        assert (found["name"], found["state"], found["kept"]) == ("job", "sealed", "kept")
        nodes.target.run([find_ppmr(), "restart", mounts.in_ / "job", "--remove"])
        worker.node = nodes.target
        worker.wait_for_lines(10, nodes.target)
        check_continuity(worker.lines())
        assert nodes.target.names(kept) == [], "its checkpoint was removed"
        worker.end()


def test_images_of_a_migration_are_not_kept(nodes, lab, make_migrations):
    kept, key = nodes.target.private / "kept", nodes.target.private / "keep-key"
    nodes.target.run(["mkdir", kept])
    nodes.target.run([find_ppmr(), "keygen", key])
    migrations = make_migrations(target_options=["--keep-dir", kept, "--keep-key", key])
    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=16)
    worker.wait_for_lines(10)
    migrations.migrate(worker.pid)
    worker.node = nodes.target
    worker.wait_for_lines(10, nodes.target)
    status = migrations.target.status()
    assert (status["checkpoints"], status["keep"]["checkpoints"]) == ([], 0)
    assert nodes.target.names(kept) == ["epochs"], "of protected processes"
    assert nodes.target.names(kept / "epochs") == ["lock"]
    worker.end()


def test_what_tar_and_dd_wrote_is_there_after_a_restart(world, keep):
    source, target = world.pair(SMALL_POOL, keep.options)
    tree = world.directory / "tree"
    (tree / "sub/empty").mkdir(parents=True)
    (tree / "text").write_text("text\n")
    (tree / "sub/mode").write_bytes(b"x" * 100_000)
    (tree / "sub/mode").chmod(0o751)
    (tree / "link").symlink_to("sub/mode")
    (tree / "nothing").touch()
    with open(tree / "sparse", "wb") as sparse:
        sparse.truncate(200 * MIB)
        sparse.seek(77 * MIB + 5)
        sparse.write(b"in the middle")
    world.begin(source, "tree")
    copy = 'tar -C "$0" -cSf - . | tar -C "$1" -xSf -'
    world.succeeds(["sh", "-c", copy, tree, source.mountpoint / "tree"], within=30)
    world.succeeds(
        ["dd", "if=/dev/zero", f"of={source.mountpoint}/zeros", "bs=1M", "count=20", "status=none"]
    )
    for name in ("tree", "zeros"):
        world.succeeds([find_ppmr(), "commit", source.mountpoint / name])
        wait_until_kept(world, target, name)
    target.kill()
    again = world.target(*keep.options)
    listing = ["find", ".", "-printf", "%P %y %m %s %l %T@\\n"]

    def listed(directory):
        shell = f'cd "$0" && {" ".join(map(repr, listing))} | sort'
        return world.succeeds(["sh", "-c", shell, directory]).out

    world.succeeds(["diff", "-r", "--no-dereference", tree, again.mountpoint / "tree"], within=30)
    there = [line for line in listed(again.mountpoint / "tree").splitlines() if " d " not in line]
    assert there == [line for line in listed(tree).splitlines() if " d " not in line]
    assert (again.mountpoint / "tree/sparse").stat().st_blocks <= 16, "the holes are stored"
    assert (again.mountpoint / "zeros").read_bytes() == bytes(20 * MIB)


# -- removal, owners


def test_removal_also_removes_the_kept_copy(world, keep):
    source, target = world.pair(SMALL_POOL, keep.options)
    for name in ("one", "two"):
        send(world, source, name, 2 * MIB)
        wait_until_kept(world, target, name)
    world.succeeds(["rm", "-r", target.mountpoint / "one"])
    assert keep.files() == ["00000002.kept"]
    target.kill()
    source.kill()
    target = world.target(*keep.options)
    source = world.source(target, *SMALL_POOL)
    assert os.listdir(target.mountpoint) == ["two"]
    world.write(source.mountpoint / "two", MIB).fails_with("EEXIST", within=10)
    world.succeeds(["rm", "-r", target.mountpoint / "two"])
    assert keep.files() == []
    send(world, source, "two", MIB)
    wait_until_kept(world, target, "two")


def test_keep_count_removes_the_oldest_of_a_series(world, keep):
    source, target = world.pair(SMALL_POOL, [*keep.options, "--keep-count", "2"])
    for name in ("db.1", "db.2", "web", "db.3"):
        send(world, source, name, MIB)
        wait_until_kept(world, target, name)
    wait_until(lambda: len(keep.files()) == 3, 10, "the oldest to be removed")
    assert sorted(os.listdir(target.mountpoint)) == ["db.2", "db.3", "web"]


# -- disks and keys that fail


def test_stream_goes_on_while_the_disk_is_full_and_is_kept_when_it_is_not(world):
    keep = Keep(world, world.tmpfs("8M"))
    source, target = world.pair(SMALL_POOL, keep.options)
    send(world, source, "large", 20 * MIB)
    send(world, source, "small", MIB)
    wait_until_kept(world, target, "small")
    wait_until(
        lambda: "MiB are free" in checkpoint(world, target, "large")["keep_error"],
        10,
        "the reason in the status",
    )
    assert checkpoint(world, target, "large")["kept"] == "no"
    assert world.status(target.mountpoint)["keep"]["failures"] >= 1
    page = world.succeeds([find_ppmr(), "status", target.mountpoint]).out
    assert "MiB are free" in page
    late = world.ppmr("commit", target.mountpoint / "large", "--kept", "--timeout", "0.2")
    assert late.code != 0 and "MiB are free" in late.err
    assert world.read(target.mountpoint / "large/file").succeeds()["sha256"] == digest_of_written(
        20 * MIB
    )
    world.succeeds(["mount", "-o", "remount,size=64M", keep.directory])
    wait_until_kept(world, target, "large")
    assert world.status(target.mountpoint)["keep"]["error"] == ""


def test_wrong_key_and_damaged_checkpoints_are_named_and_the_others_are_readable(world, keep):
    source, target = world.pair(SMALL_POOL, keep.options)
    for name in ("torn", "damaged", "good"):
        send(world, source, name, 3 * MIB)
        wait_until_kept(world, target, name)
    target.kill()
    source.kill()
    other = Keep(world, keep.directory)
    other.key = world.directory / "other-key"
    world.succeeds([find_ppmr(), "keygen", other.key])
    target = world.target(*other.options)
    assert os.listdir(target.mountpoint) == []
    unreadable = world.status(target.mountpoint)["keep"]["unreadable"]
    assert {entry["name"] for entry in unreadable} == {"torn", "damaged", "good"}
    assert all("--keep-key" in entry["reason"] for entry in unreadable)
    assert target.stop() == 0

    os.truncate(keep.directory / "00000001.kept", 2 * MIB)
    with open(keep.directory / "00000002.kept", "r+b") as file:
        file.seek(2 * MIB)
        file.write(b"damage")
    other.key.write_text(other.key.read_text() + keep.key.read_text())
    target = world.target(*other.options)
    assert sorted(os.listdir(target.mountpoint)) == ["damaged", "good"]
    [entry] = world.status(target.mountpoint)["keep"]["unreadable"]
    assert (entry["file"], entry["name"]) == ("00000001.kept", "torn")
    assert "torn" in entry["reason"]
    world.read(target.mountpoint / "damaged/file").fails_with("EIO", within=10)
    assert world.read(target.mountpoint / "good/file").succeeds()["sha256"] == digest_of_written(
        3 * MIB
    )
    assert "00000002.kept" in target.output()


def test_keep_directory_belongs_to_one_target(world, keep):
    world.target(*keep.options)
    words = ["target", world.mountpoint(), "--listen", "127.0.0.1:0", *world.credentials([])]
    world.refuses_to_start([*words, *keep.options], "another target uses it")
    world.succeeds([find_ppmr(), *words, *keep.options, "--check"])


def test_kept_bytes_are_encrypted(world, keep):
    source, target = world.pair(SMALL_POOL, keep.options)
    secret = b"the secret of this process"
    (source.mountpoint / "file").write_bytes(secret * 1000)
    world.succeeds([find_ppmr(), "commit", source.mountpoint / "file"])
    wait_until_kept(world, target, "file")
    [name] = keep.files()
    assert secret not in (keep.directory / name).read_bytes()
    assert (keep.directory / name).stat().st_mode & 0o777 == 0o600


# -- kills and power losses


class Rounds:
    """Checkpoints are written, kept and removed until `end` stops the target at a random moment."""

    def __init__(self, world, keep):
        self.world, self.keep = world, keep
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        self.chance = random.Random(seed)
        self.digests, self.removed, self._numbers = {}, set(), itertools.count()

    def play(self, end):
        world = self.world
        target = world.target(*self.keep.options, "--memory-limit", "256MiB")
        source = world.source(target, *SMALL_POOL)
        ended = threading.Event()

        def stop():
            end()
            target.process.kill()
            source.process.kill()
            ended.set()

        timer = threading.Timer(self.chance.uniform(0.05, 0.7), stop)
        timer.start()
        while not ended.is_set():
            self._write_one(source, target)
            if self.digests and self.chance.random() < 0.3:
                self._remove_one(target)
        timer.join()
        source.kill()
        target.kill()

    def _runs(self, *steps):
        # Any of them may fail, because the target ends.
        return all(self.world.run(step, within=30).code == 0 for step in steps)

    def _write_one(self, source, target):
        name = f"c{next(self._numbers)}x"
        sent, directory = self.world.directory / "sent", source.mountpoint / name
        size = self.chance.randrange(1, 12 * MIB)
        kept = ["--kept", "--timeout", "20"]
        if self._runs(
            ["mkdir", directory],
            ["sh", "-c", f'head -c {size} /dev/urandom >"$0"', sent],
            ["cp", sent, directory / "file"],
            [find_ppmr(), "commit", directory, "--timeout", "20"],
            [find_ppmr(), "commit", target.mountpoint / name, *kept],
        ):
            self.digests[name] = self.digest_of(sent)

    def _remove_one(self, target):
        name = self.chance.choice(sorted(self.digests))
        del self.digests[name]  # if it fails, the checkpoint may be there or not
        if self._runs(["rm", "-r", target.mountpoint / name]):
            self.removed.add(name)

    def digest_of(self, path):
        return self.world.succeeds(["sha256sum", path], within=30).out[:64]

    def check(self):
        target = self.world.target(*self.keep.options, "--memory-limit", "64MiB")
        status = self.world.status(target.mountpoint)
        assert status["keep"]["unreadable"] == []
        there = {entry["name"] for entry in status["checkpoints"]}
        assert set(self.digests) <= there, f"lost: {set(self.digests) - there}"
        assert not self.removed & there, f"removed, and back: {self.removed & there}"
        for name in there:
            digest = self.digest_of(target.mountpoint / name / "file")
            assert digest == self.digests.get(name, digest)
        assert [file for file in self.keep.files() if file.endswith(".part")] == []
        for name in there:  # the disk is small
            if self.chance.random() < 0.7:
                self.world.succeeds(["rm", "-r", target.mountpoint / name])
                self.digests.pop(name, None)
                self.removed.add(name)
        target.kill()


@pytest.mark.first
def test_what_was_reported_as_kept_is_there_after_kills(world, keep, long):
    rounds = Rounds(world, keep)
    for _ in range(KILLS_LONG if long else KILLS):
        rounds.play(end=lambda: None)
        rounds.check()


class Disk:
    """A file system that can lose its power: it then has what was synced before, and little else.

    ext4's shutdown stops all I/O at once, also that of its journal. The disk after the power loss
    is a copy: a mount namespace elsewhere may still hold the file system that was shut down.
    """

    SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, struct.pack("I", 2)  # fs/ext4/ext4.h

    def __init__(self, world, size_mib):
        self.world, self.path = world, None
        self.image = world.directory / "image"
        with open(self.image, "wb") as image:
            image.truncate(size_mib * MIB)
        world.succeeds(["mkfs.ext4", "-q", "-F", self.image])
        self._mount()

    def _mount(self):
        self.path = self.world.mountpoint("disk")
        self.world.succeeds(["mount", "-o", "loop", self.image, self.path], within=30)

    def cut_power(self):
        disk = os.open(self.path, os.O_RDONLY)
        fcntl.ioctl(disk, self.SHUTDOWN, self.NO_LOG_FLUSH)
        os.close(disk)

    def restore_power(self):
        lost, self.image = self.image, self.image.with_suffix(f".{self.path.name}")
        self.world.succeeds(["cp", "--sparse=always", lost, self.image], within=60)
        self.world.succeeds(["umount", "-l", self.path])
        lost.unlink()
        self._mount()


@pytest.mark.first
def test_what_was_reported_as_kept_is_there_after_power_losses(world, long, need_command):
    need_command("mkfs.ext4")
    disk = Disk(world, 256)
    (disk.path / "not synced").write_bytes(b"x" * MIB)
    disk.cut_power()
    disk.restore_power()
    lost = disk.path / "not synced"
    assert not lost.exists() or lost.stat().st_size == 0, "the disk keeps what was not synced"
    keep = Keep(world, disk.path / "kept")
    os.sync()
    rounds = Rounds(world, keep)
    for _ in range(POWER_LOSSES_LONG if long else POWER_LOSSES):
        rounds.play(end=disk.cut_power)
        disk.restore_power()
        keep.directory = disk.path / "kept"
        rounds.check()


def test_streams_are_as_fast_while_the_disk_is_slow(world, need_command):
    need_command("mkfs.ext4")
    disk = Disk(world, 1024)
    keep = Keep(world, disk.path / "kept")
    size, rate = 64 * MIB, 2 * MIB
    first = 4 * size  # it is written for two minutes, the others are sent meanwhile
    source, target = world.pair(SMALL_POOL, [*keep.options, "--memory-limit", "1GiB"])

    def seconds(name):
        began = time.monotonic()
        send(world, source, name, size)
        return time.monotonic() - began

    def kept():
        return world.status(target.mountpoint)["keep"]

    quick = []
    for number in range(3):
        quick.append(seconds(f"quick-{number}"))
        wait_until_kept(world, target, f"quick-{number}")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(slow_disk.limited(disk.path, rate, writer=target.process.pid))
        except slow_disk.NoLimit as why:
            pytest.skip(f"NOT TESTED: a slow disk: {why}")
        send(world, source, "first", first)
        wait_until(lambda: kept()["writing"] == "first", 20, "the checkpoint to be written")
        slow = [seconds(f"beside-{number}") for number in range(3)]
        still = kept()
        assert (still["writing"], still["error"]) == ("first", ""), still
        assert checkpoint(world, target, "first")["kept"] == "writing"
        assert checkpoint(world, target, "beside-2")["kept"] == "no"
    times = statistics.median(quick), statistics.median(slow)
    print(f"{size // MIB} MiB: {times[0]:.2f} s, beside a disk with 2 MiB/s {times[1]:.2f} s")
    assert times[1] < 2 * times[0] + 1
    for name in ("first", "beside-2"):
        wait_until_kept(world, target, name)
