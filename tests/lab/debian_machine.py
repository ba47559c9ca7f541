"""Debian machines on this one: systemd as process 1 of its own namespaces, in a root file system of
its own."""
import os
import subprocess

from .node import LabError, wait_until
from .pace import patience

# Runs as process 1. Systemd finds what a container manager gives it:
# https://systemd.io/CONTAINER_INTERFACE
_BOOT = r"""
set -e
root=$0
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty fuse; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for pair in $SHARED; do
  mount --bind "${pair%%:*}" "$root${pair#*:}"
done
if [ -d /opt/ppmr ]; then
  mkdir -p "$root/opt/ppmr"
  mount --rbind /opt/ppmr "$root/opt/ppmr"
fi
cd "$root"
mkdir old
pivot_root . old
umount -l /old
rmdir /old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
"""
_NAMESPACES = ["--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup"]


class DebianMachine:
    """Boots when it is made. Its CRIU is this machine's, because it has this machine's kernel."""

    def __init__(self, root, name, timeout=60, shared=None):
        """shared: {directory of this machine: where it is mounted there}."""
        self.name, self.root = name, root
        pairs = " ".join(f"{here}:{there}" for here, there in (shared or {}).items())
        self._unshare = subprocess.Popen(
            ["unshare", "--fork", "--kill-child", *_NAMESPACES, "bash", "-c", _BOOT, root],
            env={**os.environ, "SHARED": pairs},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._started, timeout, f"systemd of {name} to start")

    @property
    def pid(self):
        """Returns the host's pid of process 1."""
        path = f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children"
        children = open(path).read().split()
        if not children:
            raise LabError(f"{self.name} is not running")
        return int(children[0])

    def _started(self):
        if self._unshare.poll() is not None:
            raise LabError(f"{self.name} did not boot: {self._unshare.returncode}")
        try:
            state = self.run(["systemctl", "is-system-running"], check=False)
        except LabError:
            return False
        return state.stdout.strip() in ("running", "degraded")

    def run(self, command, check=True, timeout=120):
        """Runs a command, a list or a line for the shell, as root on the machine."""
        done = subprocess.run(
            self._entering(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patience(timeout),
        )
        if check and done.returncode != 0:
            raise LabError(
                f"on {self.name}: {command!r} ended with {done.returncode}: "
                f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return done

    def start(self, command):
        """Like run(), but without waiting: returns a Popen whose stdout has the whole output of the
        command.
        """
        return subprocess.Popen(
            self._entering(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _entering(self, command):
        words = ["sh", "-c", command] if isinstance(command, str) else [*map(str, command)]
        return ["nsenter", "--target", str(self.pid), "--all", "--wdns=/", *words]

    def stop(self):
        """Ends all of the machine's processes."""
        if self._unshare.poll() is None:
            # --kill-child: process 1 ends, and then the kernel ends the others.
            self._unshare.kill()
            self._unshare.wait()


def link(one, other, network="10.77.0"):
    """Joins two machines by a veth pair: NETWORK.1 and NETWORK.2."""
    pids = [str(one.pid), str(other.pid)]
    subprocess.run(
        ["ip", "link", "add", "eth0", "netns", pids[0]]
        + ["type", "veth", "peer", "name", "eth0", "netns", pids[1]],
        check=True,
    )
    for number, pid in enumerate(pids, 1):
        for command in (
            ["addr", "add", f"{network}.{number}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["link", "set", "lo", "up"],
        ):
            subprocess.run(["nsenter", "--target", pid, "--net", "ip", *command], check=True)
