"""ppmr on nodes or on this very machine: both daemons, their mounts, what they say about themselves, and moving with them."""
import itertools
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from . import criu
from .migration import Move, now
from .node import HOST, LabError, free_port, wait_until
from .programs import REPOSITORY

MOUNT_TYPE = "fuse.ppmr"
PORT = 7800
_numbers = itertools.count(1)


def find_ppmr():
    """The ppmr under test: $PPMR, else where Bazel puts it."""
    path = Path(os.environ.get("PPMR") or REPOSITORY / "bazel-bin/ppmr").resolve()
    if not path.exists():
        raise LabError(f"no ppmr at {path}: bazel build //:ppmr, or say where it is in PPMR")
    return path


CREDENTIALS = ("--key-file", "--tls-cert", "--insecure")


def make_key(path, *nodes):
    """A new key file for these nodes, at the same path on each (HOST, or a node that sees its directory, once is enough). Returns what to tell the daemons."""
    for at in nodes:
        at.run(["mkdir", "-p", Path(path).parent])
    nodes[0].run([find_ppmr(), "keygen", path])
    key = nodes[0].run(["cat", path]).stdout
    for at in nodes[1:]:
        at.run(["sh", "-c", 'umask 077; [ -e "$0" ] || cat >"$0"', path], input=key)
    return ["--key-file", str(path)]


class Daemon:
    """`ppmr target` or `ppmr source`, kept in front (-f) so that its end can be seen. Mounted when the constructor returns."""

    def __init__(self, at, role, mountpoint, options, timeout=30, wait=True, environment=None):
        self.at, self.role, self.mountpoint = at, role, Path(mountpoint)
        self.log = Path(tempfile.gettempdir()) / f"ppmr-{role}-{os.getpid()}-{next(_numbers)}.log"
        command = [find_ppmr(), role, mountpoint, *options, "-f"]
        if at is HOST:  # on a node it goes with the node
            command = ["setpriv", "--pdeathsig", "TERM", *command]
        with open(self.log, "wb") as log:
            self.process = at.popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        if wait:
            try:
                wait_until(
                    lambda: self.mounted() or self.process.poll() is not None,
                    timeout,
                    f"ppmr {role} to mount {mountpoint}",
                    interval=0.002,
                )
            except LabError:
                self.kill()
                raise LabError(
                    f"ppmr {role} did not mount {mountpoint} within {timeout} s; it said: {self.said()}"
                ) from None
            if self.process.poll() is not None:
                raise LabError(
                    f"ppmr {role} on {at.name} ended with {self.process.returncode} and said: {self.said()}"
                )

    def mounted(self):
        return (str(self.mountpoint), MOUNT_TYPE) in self.at.mounts(MOUNT_TYPE)

    def said(self):
        return self.log.read_text(errors="replace").strip()[-2000:] or "nothing"

    def running(self):
        return self.process.poll() is None

    @property
    def host_pid(self):
        return self.at.host_pid(self.process)

    def memory_kib(self):
        """VmRSS and VmHWM of the daemon."""
        return self.at.process_memory_kib(self.process)

    def signal(self, number):
        self.at.signal_process(self.process, number)

    def status(self, timeout=10):
        return json.loads(
            self.at.run([find_ppmr(), "status", self.mountpoint, "--json"], timeout=timeout).stdout
        )

    def stop(self, timeout=15):
        """SIGTERM; returns the exit code. LabError if it does not end: a daemon that hangs is a finding."""
        if self.running():
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise LabError(
                    f"ppmr {self.role} did not end within {timeout} s of SIGTERM; it said: {self.said()}"
                ) from None
        return self.process.returncode

    def kill(self):
        """As if the machine had lost it. The mount it leaves behind is taken away."""
        if self.running():
            self.signal(signal.SIGKILL)
        self.process.wait()
        if self.mounted():
            self.at.run(["umount", "-l", self.mountpoint], check=False)

    def close(self):
        """Away with it, whatever state it is in."""
        try:
            self.stop(timeout=5)
        except (LabError, OSError):
            pass
        finally:
            self.kill()
            self.log.unlink(missing_ok=True)


class Mounts:
    """A target and a source joined to it, on two nodes, on one, or (HOST, HOST) over loopback.

        with Mounts(source_node, target_node, directory) as mounts:
            mounts.out, mounts.in_        the mount points, as their nodes see them
            mounts.source, mounts.target  the daemons

    They know each other by a key of their own, unless the options say how else (`CREDENTIALS`).
    """

    def __init__(
        self,
        source_at,
        target_at,
        directory,
        source_options=(),
        target_options=(),
        name="mnt",
        environment=None,
    ):
        self._environment = environment
        self.source_at, self.target_at = source_at, target_at
        self.out, self.in_ = Path(directory) / f"{name}-out", Path(directory) / f"{name}-in"
        self.source = self.target = None
        source_at.run(["mkdir", "-p", self.out])
        target_at.run(["mkdir", "-p", self.in_])
        self.port = free_port() if target_at is HOST else PORT + next(_numbers)
        self.address = f"{target_at.address}:{self.port}"
        if not any(option in CREDENTIALS for option in (*source_options, *target_options)):
            key = make_key(Path(directory) / f"{name}-key-{next(_numbers)}", source_at, target_at)
            source_options, target_options = [*key, *source_options], [*key, *target_options]
        self._target_options = ["--listen", self.address, *target_options]
        self._source_options = ["--target", self.address, *source_options]
        try:
            self.restart_dead()
        except BaseException:
            self.close()
            raise

    def restart_dead(self):
        """Starts what is not running (any more); the mount that a dead daemon left is taken away."""
        if self.target is None or not self.target.running():
            if self.target:
                self.target.close()
            self.target = Daemon(
                self.target_at,
                "target",
                self.in_,
                self._target_options,
                environment=self._environment,
            )
        if self.source is None or not self.source.running():
            if self.source:
                self.source.close()
            self.source = Daemon(
                self.source_at,
                "source",
                self.out,
                self._source_options,
                environment=self._environment,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def await_ready(self, timeout=60):
        """Until the target has touched the memory that it keeps ready: a daemon that has been up for some seconds."""

        def ready():
            store = self.target.status()["store"]
            return store["ready_bytes"] >= store["reserve_bytes"]

        wait_until(ready, timeout, "the target's memory is ready")

    def commit(self, name, timeout=60):
        self.source_at.run([find_ppmr(), "commit", self.out / name], timeout=timeout)

    def remove(self, name):
        self.target_at.run(["rm", "-r", self.in_ / name])

    def close(self):
        for daemon in (self.source, self.target):
            if daemon:
                daemon.close()


def bytes_below(at, directory):
    """Sum of the lengths of the files in a directory."""
    return sum(
        map(int, at.run(["find", directory, "-type", "f", "-printf", r"%s\n"]).stdout.split())
    )


class PpmrMove(Move):
    """criu dump into the source mount; ppmr restart waits on the target before the dump begins."""

    name = "ppmr"

    def __init__(self, source, target, mounts, lazily=True, restart_options=()):
        super().__init__(source, target, lazily)
        self.mounts, self.restart_options = mounts, list(restart_options)
        self._restart = None

    def prepare(self, label):
        self.label = label
        self._work_source, self._work_target = self.source.scratch(
            f"{label}-work"
        ), self.target.scratch(f"{label}-work")
        self.source.run(["mkdir", self.mounts.out / label])
        self.mounts.await_ready()

    def _start_restart(self, options):
        self._said = tempfile.TemporaryFile()
        self._restart = self.target.popen(
            [
                find_ppmr(),
                "restart",
                self.mounts.in_ / self.label,
                *([] if self.lazily else ["--eager"]),
                "--work-dir",
                self._work_target,
                "--timeout",
                60,
                *self.restart_options,
                *(["--", *options] if options else []),
            ],
            stdout=self._said,
            stderr=self._said,
        )

    def _transfer(self, pid, timeline, dump_options, restore_options):
        self._start_restart(restore_options)
        timeline.dump_began = now()
        criu.dump(self.source, pid, self.mounts.out / self.label, self._work_source, dump_options)
        timeline.dump_done = now()
        self.mounts.commit(self.label)
        timeline.arrived = now()

    def check(self):
        if self._restart and self._restart.poll() not in (None, 0):
            self._said.seek(0)
            raise LabError(
                f"ppmr restart ended with {self._restart.returncode} and said: {self._said.read().decode(errors='replace').strip()[-3000:]}"
            )

    def finish(self, timeout=120):
        """Waits until ppmr restart has ended well."""
        if self._restart:
            try:
                self._restart.wait(timeout=timeout)
            except subprocess.TimeoutExpired:
                raise LabError(f"ppmr restart did not end within {timeout} s") from None
            self.check()

    def clean(self):
        if self._restart:
            if self._restart.poll() is None:
                self.target.signal_process(self._restart, signal.SIGTERM)
                try:
                    self._restart.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    self.target.signal_process(self._restart, signal.SIGKILL)
                    self._restart.wait()
            self._said.close()
            self._restart = None
        self.target.run(["rm", "-rf", self.mounts.in_ / self.label], check=False)
        self.source.drop_scratch(self._work_source)
        self.target.drop_scratch(self._work_target)
