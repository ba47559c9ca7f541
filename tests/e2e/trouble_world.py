"""What the tests of bad input and trouble share: daemons that may die, and jobs on mounts that may hang.

Nothing here waits without a limit. A job that is late is killed but not waited for (inside a mount that hangs it cannot even die); the world waits
for it at the end, when the daemons are gone.
"""
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lab.node import HOST, free_port, wait_until  # noqa: E402
from lab.ppmr import CREDENTIALS, MOUNT_TYPE, Daemon, find_ppmr, make_key  # noqa: E402

MIB = 1 << 20
PEER_TIMEOUT = 3  # seconds, where a test waits for it
NEVER = 120  # a --peer-timeout that no test lives to see
GRACE = 4  # seconds that an answer may be late on a busy machine
ANSWER_SECONDS = 2  # `ls`, `ppmr status` and unmounting answer within, whatever the peer does

# A job: writes or reads one file, prints one JSON line per MiB and one at the end ("errno" is "" if all went well).
JOB = r"""
import errno, hashlib, json, os, sys, time
what, path, size, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
MIB = 1 << 20
digest, done, failed, step = hashlib.sha256(), 0, "", what
def say(**words):
    print(json.dumps(words), flush=True)
base = bytes(range(256)) * (MIB // 256)
try:
    step = "open"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT if what == "write" else os.O_RDONLY, 0o644)
    step = what
    while what == "read" or done < size:
        if what == "write":
            number = done // MIB
            block = (number.to_bytes(8, "little") + base[8:])[:min(MIB, size - done)]
            count = os.write(fd, block)
            if count != len(block):
                failed = "SHORT"
                break
        else:
            block = os.read(fd, MIB)
            count = len(block)
            if not count:
                break
        digest.update(block)
        if (done + count) // MIB > done // MIB:
            say(mib=(done + count) // MIB)
        done += count
        if pause:
            time.sleep(pause)
    step = "close"
    os.close(fd)
except OSError as error:
    failed = errno.errorcode.get(error.errno, str(error.errno))
say(errno=failed, step=step, bytes=done, sha256=digest.hexdigest())
"""


def digest_of_written(size):
    """The digest of what a writing job of this size writes."""
    digest, base = hashlib.sha256(), bytes(range(256)) * (MIB // 256)
    for at in range(0, size, MIB):
        digest.update(((at // MIB).to_bytes(8, "little") + base[8:])[: min(MIB, size - at)])
    return digest.hexdigest()


class Job:
    def __init__(self, world, at, what, path, size, pause):
        self.what, self.path = what, path
        self._log = world.directory / f"job-{len(world.started)}.log"
        with open(self._log, "wb") as log:
            self.process = world.start(
                ["/usr/bin/python3", "-SEc", JOB, what, path, size, pause], at=at, stdout=log
            )

    def _lines(self):
        text = self._log.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def mib(self):
        return max([line.get("mib", 0) for line in self._lines()], default=0)

    def running(self):
        return self.process.poll() is None

    def wait_for(self, mib, within=20):
        """Waits until the job has moved so many MiB."""
        wait_until(
            lambda: self.mib() >= mib or not self.running(),
            within,
            f"{self.what} of {mib} MiB of {self.path}",
        )
        assert self.mib() >= mib, f"the {self.what} ended early: {self.result(1)}"

    def wait_until_stuck(self, still=1.0, within=20):
        """Waits until nothing has moved for a while."""
        seen = (self.mib(), time.monotonic())
        deadline = time.monotonic() + within
        while time.monotonic() - seen[1] < still:
            assert self.running(), f"the {self.what} ended instead of waiting: {self.result(1)}"
            assert time.monotonic() < deadline, f"the {self.what} goes on and on"
            if self.mib() != seen[0]:
                seen = (self.mib(), time.monotonic())
            time.sleep(0.02)

    def result(self, within):
        """The last line: errno, step, bytes, sha256."""
        try:
            self.process.wait(timeout=within)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the {self.what} of {self.path} did not end within {within} s, it stands at {self.mib()} MiB"
            ) from None
        lines = self._lines()
        assert (
            lines and "errno" in lines[-1]
        ), f"the {self.what} of {self.path} died with {self.process.returncode}"
        return lines[-1]

    def succeeds(self, within=60):
        result = self.result(within)
        assert result["errno"] == "", f"the {self.what} of {self.path} failed: {result}"
        return result

    def fails_with(self, *names, within):
        result = self.result(within)
        assert (
            result["errno"] in names
        ), f"the {self.what} of {self.path}: {result}, expected {' or '.join(names)}"
        return result


class World:
    def __init__(self, directory):
        self.directory = Path(directory)
        self.started, self.daemons, self.background_pids, self._names = [], [], [], 0
        self._key = None

    # -- commands and jobs

    def start(self, argv, at=HOST, **options):
        options.setdefault("stdout", subprocess.DEVNULL)
        options.setdefault("stderr", subprocess.STDOUT)
        process = at.popen([str(word) for word in argv], start_new_session=True, **options)
        self.started.append(process)
        return process

    def run(self, argv, within=10, at=HOST):
        """Runs to the end; returns (exit code, standard output, standard error, seconds)."""
        number = len(self.started)
        out, err = self.directory / f"run-{number}.out", self.directory / f"run-{number}.err"
        began = time.monotonic()
        with open(out, "wb") as to, open(err, "wb") as complaints:
            process = self.start(argv, at=at, stdout=to, stderr=complaints)
        try:
            code = process.wait(timeout=within)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            raise AssertionError(
                f"'{' '.join(map(str, argv))}' did not end within {within} s; it said: {err.read_text(errors='replace')}"
            ) from None
        return Ended(
            code,
            out.read_text(errors="replace"),
            err.read_text(errors="replace"),
            time.monotonic() - began,
        )

    def succeeds(self, argv, within=10, at=HOST):
        ended = self.run(argv, within, at)
        assert (
            ended.code == 0
        ), f"'{' '.join(map(str, argv))}' ended with {ended.code}: {ended.said}"
        return ended

    def ppmr(self, *words, within=10, at=HOST):
        return self.run([find_ppmr(), *words], within, at)

    def write(self, path, size=256 * MIB, pause=0.0, at=HOST):
        return Job(self, at, "write", path, size, pause)

    def read(self, path, pause=0.0, at=HOST):
        return Job(self, at, "read", path, 0, pause)

    def status(self, mountpoint, within=ANSWER_SECONDS + GRACE, at=HOST):
        return json.loads(
            self.succeeds([find_ppmr(), "status", mountpoint, "--json"], within, at).out
        )

    def wait_for_name(self, path, within=10, at=HOST):
        """Waits until the name is there; asked for by a process that may hang."""
        deadline = time.monotonic() + within
        while self.run(["test", "-e", path], within, at).code != 0:
            assert time.monotonic() < deadline, f"{path} does not appear"
            time.sleep(0.01)

    def answers(self, argv, at=HOST):
        """The command answers at once, whatever its exit code."""
        ended = self.run(argv, within=ANSWER_SECONDS + GRACE, at=at)
        assert (
            ended.seconds < ANSWER_SECONDS
        ), f"'{' '.join(map(str, argv))}' took {ended.seconds:.1f} s"
        return ended

    # -- mounts

    def mountpoint(self, name="mnt"):
        self._names += 1
        path = self.directory / f"{name}-{self._names}"
        path.mkdir()
        return path

    def credentials(self, options):
        """What a daemon needs to know the others of this world by, unless its options say how else."""
        if any(option in CREDENTIALS for option in options):
            return []
        self._key = self._key or make_key(self.directory / "key", HOST)
        return self._key

    def target(self, *options, at=HOST, port=None, peer_timeout=PEER_TIMEOUT):
        port = port or free_port()
        daemon = Daemon(
            at,
            "target",
            self.mountpoint("in"),
            [
                "--listen",
                f"{at.address}:{port}",
                "--peer-timeout",
                str(peer_timeout),
                *self.credentials(options),
                *options,
            ],
        )
        daemon.port, daemon.peer_address = port, f"{at.address}:{port}"
        self.daemons.append(daemon)
        return daemon

    def source(self, target, *options, at=HOST, peer_timeout=PEER_TIMEOUT):
        daemon = Daemon(
            at,
            "source",
            self.mountpoint("out"),
            [
                "--target",
                target.peer_address,
                "--peer-timeout",
                str(peer_timeout),
                *self.credentials(options),
                *options,
            ],
        )
        self.daemons.append(daemon)
        return daemon

    def pair(self, source_options=(), target_options=(), peer_timeout=PEER_TIMEOUT):
        target = self.target(*target_options, peer_timeout=peer_timeout)
        return self.source(target, *source_options, peer_timeout=peer_timeout), target

    def tmpfs(self, size):
        path = self.mountpoint("tmpfs")
        self.succeeds(["mount", "-t", "tmpfs", "-o", f"size={size}", "small", path])
        return path

    def mounts(self):
        """ppmr's mounts below our directory."""
        return [
            point
            for point, _ in HOST.mounts(MOUNT_TYPE)
            if point.startswith(str(self.directory) + "/")
        ]

    def close(self):
        for daemon in self.daemons:
            if daemon.running():
                try:
                    daemon.signal(signal.SIGCONT)
                except OSError:
                    pass
        for process in self.started:
            _kill_group(process)
        for daemon in reversed(self.daemons):
            daemon.close()
        # What a failed test left mounted below our directory, however it came there.
        for point, _ in reversed(HOST.mounts()):
            if point.startswith(str(self.directory) + "/"):
                subprocess.run(["umount", "-l", point], check=False, timeout=10)
        for pid in self.background_pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self.started:
            process.wait(timeout=20)


class Ended:
    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    @property
    def said(self):
        return (self.out + self.err).strip()


def _kill_group(process):
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def checkpoint_in(status, name):
    """The part of a status that speaks of the checkpoint `name`: the smallest object that has the name as a value, or under it as a key."""
    found = []

    def look(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                if key == name:
                    found.append(inner)
                elif isinstance(inner, str) and (inner == name or inner.endswith("/" + name)):
                    found.append(value)
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    look(status)
    assert found, f"the status does not speak of {name}: {json.dumps(status)[:2000]}"
    return found[-1]


def wait_until_failed(world, mountpoint, name, within=PEER_TIMEOUT + GRACE, at=HOST):
    deadline = time.monotonic() + within
    while "failed" not in json.dumps(checkpoint_in(world.status(mountpoint, at=at), name)).lower():
        assert (
            time.monotonic() < deadline
        ), f"{name} is not marked failed: {checkpoint_in(world.status(mountpoint, at=at), name)}"
        time.sleep(0.1)


def wait_for_mount_to_go(daemon, within=10):
    wait_until(lambda: not daemon.mounted(), within, f"{daemon.mountpoint} to be unmounted")
