"""Daemons that may die or hang, and jobs on their mounts, for tests of bad input and faults.

No call blocks without a limit. A late job is killed without waiting for it, because inside a
hanging mount it cannot even die; `World.close` waits for it after it has ended the daemons.
"""
import hashlib
import json
import math
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from .node import HOST, free_port, wait_until
from .pace import FACTOR_MAX, patience, slowness
from .ppmr import MOUNT_TYPE, Daemon, find_ppmr, make_key, needs_key

MIB = 1 << 20
PEER_TIMEOUT = math.ceil(3 * slowness())  # seconds, where a test waits for it
BIG = 4096 * MIB  # more than a test transfers
SMALL_POOL = ["--pool-size", "8MiB"]
NEVER = 120 * FACTOR_MAX  # a --peer-timeout longer than the patience of any test
GRACE = 4  # seconds by which an answer may be late on a busy machine
# Limit for `ls`, `ppmr status` and unmounting, whatever the peer does; shorter than PEER_TIMEOUT.
ANSWER_SECONDS = 2 * slowness()

# A job that writes or reads one file. Prints one JSON line per MiB, and a last line with the
# result: "errno" is "" on success.
JOB = r"""
import errno, hashlib, json, os, sys, time
what, path, size, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
MIB = 1 << 20
digest, done, failed, step = hashlib.sha256(), 0, "", what
def report(**words):
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
            report(mib=(done + count) // MIB)
        done += count
        if pause:
            time.sleep(pause)
    step = "close"
    os.close(fd)
except OSError as error:
    failed = errno.errorcode.get(error.errno, str(error.errno))
report(errno=failed, step=step, bytes=done, sha256=digest.hexdigest())
"""


def digest_of_written(size):
    """The digest of what a writing job of this size writes."""
    digest, base = hashlib.sha256(), bytes(range(256)) * (MIB // 256)
    for at in range(0, size, MIB):
        digest.update(((at // MIB).to_bytes(8, "little") + base[8:])[: min(MIB, size - at)])
    return digest.hexdigest()


class Job:
    """A process that writes or reads one file of a mount."""

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
        """Waits until the job has written or read this many MiB."""
        wait_until(
            lambda: self.mib() >= mib or not self.running(),
            within,
            f"{self.what} of {mib} MiB of {self.path}",
        )
        assert self.mib() >= mib, f"the {self.what} ended early: {self.result(1)}"

    def wait_until_stuck(self, still=1.0, within=20):
        """Waits until the job has made no progress for `still` seconds of the reference machine."""
        still *= slowness()
        done, since = self.mib(), time.monotonic()

        def is_stuck():
            nonlocal done, since
            assert self.running(), f"the {self.what} ended instead of blocking: {self.result(1)}"
            if self.mib() != done:
                done, since = self.mib(), time.monotonic()
            return time.monotonic() - since >= still

        wait_until(is_stuck, within, f"the {self.what} of {self.path} to block", interval=0.02)

    def kill(self):
        """Kills the job, which must not have ended: SIGKILL ends it even while it blocks."""
        os.killpg(self.process.pid, signal.SIGKILL)
        assert (
            self.process.wait(timeout=patience(5)) != 0
        ), f"the {self.what} ended before it was killed"

    def result(self, within):
        """The last line: errno, step, bytes, sha256."""
        within = patience(within)
        try:
            self.process.wait(timeout=within)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the {self.what} of {self.path} did not end within {within:g} s; "
                f"it is at {self.mib()} MiB"
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
    """Daemons, commands and jobs of one test; `close` ends them all.

    world = World(tmp_path)
    source, target = world.pair()            # over loopback; or source() and target() on nodes
    world.write(source.mountpoint / "file", 3 * MIB).succeeds()
    """

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
        """Runs a command to its end and returns an Ended."""
        within = patience(within)
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
                f"'{' '.join(map(str, argv))}' did not end within {within:g} s; "
                f"its errors: {err.read_text(errors='replace')}"
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
        ), f"'{' '.join(map(str, argv))}' ended with {ended.code}: {ended.output}"
        return ended

    def ppmr(self, *words, within=10, at=HOST):
        return self.run([find_ppmr(), *words], within, at)

    def begin(self, source, name="moved", at=HOST):
        """Makes a new checkpoint and returns its directory."""
        self.succeeds(["mkdir", source.mountpoint / name], at=at)
        return source.mountpoint / name

    def refuses_to_start(self, words, *messages):
        ended = self.ppmr(*words)
        assert ended.code == 2, f"ended with {ended.code}: {ended.output}"
        for message in messages:
            assert message in ended.err, f"the message does not contain '{message}': {ended.err!r}"

    def write(self, path, size=256 * MIB, pause=0.0, at=HOST):
        return Job(self, at, "write", path, size, pause)

    def read(self, path, pause=0.0, at=HOST):
        return Job(self, at, "read", path, 0, pause)

    def status(self, mountpoint, within=ANSWER_SECONDS + GRACE, at=HOST):
        return json.loads(
            self.succeeds([find_ppmr(), "status", mountpoint, "--json"], within, at).out
        )

    def wait_until_succeeds(self, argv, within=10, at=HOST, interval=0.2):
        """Repeats the command, which may hang, until it succeeds."""
        command = " ".join(map(str, argv))
        wait_until(
            lambda: self.run(argv, within, at).code == 0,
            within,
            f"'{command}' to succeed",
            interval,
        )

    def wait_for_name(self, path, within=10, at=HOST):
        self.wait_until_succeeds(["test", "-e", path], within, at, interval=0.01)

    def answers(self, argv, at=HOST):
        """The command must end in time, with any exit code."""
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
        """The key that all daemons of this world share, unless the options name other
        credentials."""
        if not needs_key(options):
            return []
        self._key = self._key or make_key(self.directory / "key", HOST)
        return self._key

    def _daemon(self, at, role, address_option, address, peer_timeout, options):
        mountpoint = self.mountpoint("in" if role == "target" else "out")
        words = [address_option, address, "--peer-timeout", peer_timeout]
        words += [*self.credentials(options), *options]
        self.daemons.append(Daemon(at, role, mountpoint, words))
        return self.daemons[-1]

    def target(self, *options, at=HOST, port=None, peer_timeout=PEER_TIMEOUT):
        port = port or free_port()
        address = f"{at.address}:{port}"
        daemon = self._daemon(at, "target", "--listen", address, peer_timeout, options)
        daemon.port, daemon.peer_address = port, address
        return daemon

    def source(self, target, *options, at=HOST, peer_timeout=PEER_TIMEOUT):
        return self._daemon(at, "source", "--target", target.peer_address, peer_timeout, options)

    def pair(self, source_options=(), target_options=(), peer_timeout=PEER_TIMEOUT):
        target = self.target(*target_options, peer_timeout=peer_timeout)
        return self.source(target, *source_options, peer_timeout=peer_timeout), target

    def tmpfs(self, size):
        path = self.mountpoint("tmpfs")
        self.succeeds(["mount", "-t", "tmpfs", "-o", f"size={size}", "small", path])
        return path

    def mounts(self):
        """Returns ppmr's mounts below the directory of this world."""
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
        # A failed test may leave mounts below the directory.
        for point, _ in reversed(HOST.mounts()):
            if point.startswith(str(self.directory) + "/"):
                subprocess.run(["umount", "-l", point], check=False, timeout=10)
        for pid in self.background_pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self.started:
            process.wait(timeout=patience(20))


class Ended:
    """The result of a command."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    @property
    def output(self):
        return (self.out + self.err).strip()


def _kill_group(process):
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def checkpoint_in(status, name):
    """Returns the entry of the checkpoint `name` in a status."""
    for checkpoint in status["checkpoints"]:
        if checkpoint.get("name") == name:
            return checkpoint
    raise AssertionError(f"the status has no checkpoint {name}: {json.dumps(status)[:2000]}")


def control_socket(mountpoint):
    """Returns the control socket of the daemon of a mount on this machine."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, at, *_ = line.split()
        if at == str(mountpoint):
            return source
    raise AssertionError(f"nothing is mounted at {mountpoint}")


def ask(mountpoint, **request):
    """Returns the answer of a daemon to a request to its control socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(control_socket(mountpoint))
        client.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(client.makefile().readline())


def wait_until_failed(world, mountpoint, name, within=PEER_TIMEOUT + GRACE, at=HOST):
    wait_until(
        lambda: checkpoint_in(world.status(mountpoint, at=at), name)["state"] == "failed",
        within,
        f"checkpoint {name} to be marked failed",
        interval=0.1,
    )


def wait_for_mount_to_go(daemon, within=10):
    wait_until(lambda: not daemon.mounted(), within, f"{daemon.mountpoint} to be unmounted")
