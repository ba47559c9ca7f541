"""ppmr on nodes or on this machine: both daemons, their mounts, their status, and moves with
them."""
import itertools
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from . import criu
from .move import Move, now
from .node import HOST, LabError, free_port, wait_until
from .pace import patience
from .programs import REPOSITORY

MOUNT_TYPE = "fuse.ppmr"
PORT = 7800
_numbers = itertools.count(1)


def find_ppmr(environment=None):
    """Returns the ppmr under test: $PPMR, else Bazel's output. With PPMR_PAUSE_FILE in
    `environment`: the test build, which has pause points.
    """
    if "PPMR_PAUSE_FILE" in (environment or {}):
        path = (REPOSITORY / "bazel-bin/tests/ppmr").resolve()
        if not path.exists():
            raise LabError(f"no test build at {path}: run `bazel build //tests:ppmr`")
        return path
    path = Path(os.environ.get("PPMR") or REPOSITORY / "bazel-bin/ppmr").resolve()
    if not path.exists():
        raise LabError(f"no ppmr at {path}: run `bazel build //:ppmr`, or set PPMR to its path")
    return path


# Options of targets that do not set them. The end-to-end tests let targets touch less memory at
# start.
TARGET_DEFAULTS = {}
CREDENTIALS = ("--key-file", "--tls-cert", "--insecure")


def needs_key(options):
    """Returns whether a daemon with these options has no credentials yet."""
    return not any(option in CREDENTIALS for option in options)


def make_key(path, *nodes):
    """Makes a key file at this path on each of the nodes, and returns the daemons' options.

    A path that several nodes share is written once.
    """
    for at in nodes:
        at.run(["mkdir", "-p", Path(path).parent])
    nodes[0].run([find_ppmr(), "keygen", path])
    key = nodes[0].run(["cat", path]).stdout
    for at in nodes[1:]:
        at.run(["sh", "-c", 'umask 077; [ -e "$0" ] || cat >"$0"', path], input=key)
    return ["--key-file", str(path)]


class Daemon:
    """`ppmr target` or `ppmr source` in the foreground. Its mount is up when the constructor
    returns."""

    def __init__(self, at, role, mountpoint, options, timeout=60, wait=True, environment=None):
        self.at, self.role, self.mountpoint = at, role, Path(mountpoint)
        self.log = Path(tempfile.gettempdir()) / f"ppmr-{role}-{os.getpid()}-{next(_numbers)}.log"
        if role == "target":
            defaults = [pair for pair in TARGET_DEFAULTS.items() if pair[0] not in options]
            options = [*sum(defaults, ()), *options]
        command = [find_ppmr(environment), role, mountpoint, *options, "-f"]
        if at is HOST:  # on a node the daemon ends with its node
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
                    f"ppmr {role} did not mount {mountpoint}; log: {self.output()}"
                ) from None
            if self.process.poll() is not None:
                raise LabError(
                    f"ppmr {role} on {at.name} ended with {self.process.returncode}; log: {self.output()}"
                )

    def mounted(self):
        return (str(self.mountpoint), MOUNT_TYPE) in self.at.mounts(MOUNT_TYPE)

    def output(self):
        return self.log.read_text(errors="replace").strip()[-2000:] or "(empty)"

    def running(self):
        return self.process.poll() is None

    @property
    def host_pid(self):
        return self.at.host_pid(self.process)

    def memory_kib(self):
        """Returns VmRSS and VmHWM of the daemon."""
        return self.at.process_memory_kib(self.process)

    def signal(self, number):
        self.at.signal_process(self.process, number)

    def status(self, timeout=10):
        return json.loads(
            self.at.run([find_ppmr(), "status", self.mountpoint, "--json"], timeout=timeout).stdout
        )

    def stop(self, timeout=15):
        """Sends SIGTERM and returns the exit code. LabError if the daemon does not end."""
        return self._stop(patience(timeout))

    def _stop(self, seconds):
        if self.running():
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                self.kill()
                raise LabError(
                    f"ppmr {self.role} did not end within {seconds:g} s of SIGTERM; log: {self.output()}"
                ) from None
        return self.process.returncode

    def kill(self):
        """Sends SIGKILL and removes the mount that is left."""
        if self.running():
            self.signal(signal.SIGKILL)
        self.process.wait()
        if self.mounted():
            self.at.run(["umount", "-l", self.mountpoint], check=False)

    def close(self):
        """Ends the daemon in any state."""
        try:
            self._stop(5)  # the test is over: no reason for patience
        except (LabError, OSError):
            pass
        finally:
            self.kill()
            self.log.unlink(missing_ok=True)


class Mounts:
    """A target and a source connected to it: on two nodes, on one, or (HOST, HOST) over loopback.

        with Mounts(source_node, target_node, directory) as mounts:
            mounts.out, mounts.in_        the mount points, as paths of their nodes
            mounts.source, mounts.target  the daemons

    They share a new key, unless the options name credentials (`CREDENTIALS`).
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
        if needs_key((*source_options, *target_options)):
            key = make_key(Path(directory) / f"{name}-key-{next(_numbers)}", source_at, target_at)
            source_options, target_options = [*key, *source_options], [*key, *target_options]
        self._target_options = ["--listen", self.address, *target_options]
        self._source_options = list(source_options)
        try:
            self._source_options = ["--target", self.reach_target(), *source_options]
            self.restart_dead()
        except BaseException:
            self.close()
            raise

    def reach_target(self):
        """Returns the address that the source connects to."""
        return self.address

    def restart_dead(self):
        """Starts the daemons that are not running and removes the mounts of dead daemons."""
        self.target = self._running(
            self.target, self.target_at, "target", self.in_, self._target_options
        )
        self.source = self._running(
            self.source, self.source_at, "source", self.out, self._source_options
        )

    def renew(self):
        """Ends both daemons and starts them again."""
        self.source.stop()
        self.target.stop()
        self.restart_dead()
        self.await_ready()

    def renew_elsewhere(self):
        """Kills both daemons, and starts them at another port, with another key in another file."""
        port = PORT + next(_numbers)
        key = Path(f"{self._option(self._source_options, '--key-file')}-{port}")
        make_key(key, self.source_at, self.target_at)
        address = f"{self.target_at.address}:{port}"
        for options, values in (
            (self._source_options, {"--target": address, "--key-file": key}),
            (self._target_options, {"--listen": address, "--key-file": key}),
        ):
            for option, value in values.items():
                options[options.index(option) + 1] = str(value)
        self.port, self.address = port, address
        self.source.kill()
        self.target.kill()
        self.restart_dead()

    @staticmethod
    def _option(options, name):
        return options[options.index(name) + 1]

    def _running(self, daemon, *arguments):
        if daemon and daemon.running():
            return daemon
        if daemon:
            daemon.close()
        return Daemon(*arguments, environment=self._environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def await_ready(self, timeout=60):
        """Waits until the target has touched the memory that it reserves."""

        def ready():
            store = self.target.status()["store"]
            return store["ready_bytes"] >= store["reserve_bytes"]

        wait_until(ready, timeout, "the target to touch its memory")

    def commit(self, name, timeout=60):
        self.source_at.run([find_ppmr(), "commit", self.out / name], timeout=timeout)

    def remove(self, name):
        self.target_at.run(["rm", "-r", self.in_ / name])

    def close(self):
        for daemon in (self.source, self.target):
            if daemon:
                daemon.close()


def bytes_below(at, directory):
    """Returns the sum of the lengths of the files in a directory."""
    return sum(
        map(int, at.run(["find", directory, "-type", "f", "-printf", r"%s\n"]).stdout.split())
    )


class PpmrMove(Move):
    """criu dump into the source mount. ppmr restart already waits on the target when the dump
    begins."""

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
        self._output = tempfile.TemporaryFile()
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
            stdout=self._output,
            stderr=self._output,
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
            self._output.seek(0)
            text = self._output.read().decode(errors="replace").strip()[-3000:]
            raise LabError(f"ppmr restart ended with {self._restart.returncode}; output: {text}")

    def finish(self, timeout=120):
        """Waits until ppmr restart has succeeded."""
        if self._restart:
            try:
                self._restart.wait(timeout=patience(timeout))
            except subprocess.TimeoutExpired:
                raise LabError(f"ppmr restart did not end within {patience(timeout):g} s") from None
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
            self._output.close()
            self._restart = None
        self.target.run(["rm", "-rf", self.mounts.in_ / self.label], check=False)
        self.source.drop_scratch(self._work_source)
        self.target.drop_scratch(self._work_target)
