"""A process keeps its lock on a file of an NFS server, which both machines have mounted.

The server is the kernel's, on the source's machine. What `exportfs` and `rpc.mountd` would answer
is written to the kernel's tables, so that no package is needed.
"""
import signal
import time

import pytest

from lab.migrations import Migrations
from lab.node import wait_until

MOVED = 0
SHARED = "/mnt/shared"

# Clients may take new locks only after the grace period (10 s at least). In this period, clients
# may reclaim the locks that they had before a restart of the server.
SERVER = r"""
modprobe nfsd && mkdir -p /run/export && mount -t tmpfs export /run/export
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
for address in "$@"; do echo "nfsd $address 2147483647 lab" >/proc/net/rpc/auth.unix.ip/channel; done
echo '+4 -2 -3' >/proc/fs/nfsd/versions
echo 'lab 1 \x00000000 2147483647 /run/export' >/proc/net/rpc/nfsd.fh/channel
echo 'lab /run/export 2147483647 9234 65534 65534 0' >/proc/net/rpc/nfsd.export/channel
for time in grace lease; do echo 10 >/proc/fs/nfsd/nfsv4${time}time; done
echo 'tcp 2049' >/proc/fs/nfsd/portlist
echo 2 >/proc/fs/nfsd/threads
"""
CLIENT = """
modprobe nfsv4 && mkdir -p "$2"
mount -i -t nfs4 -o "addr=$1,clientaddr=$3,vers=4.2,sec=sys" "$1:/" "$2"
"""
STOP = f"umount -l {SHARED}; echo 0 >/proc/fs/nfsd/threads; umount -l /run/export; true"

HOLDER = """
import fcntl, os, struct, sys, time
file = os.open(sys.argv[2], os.O_RDWR)
if sys.argv[1] == "flock": fcntl.flock(file, fcntl.LOCK_EX)
if sys.argv[1] == "ofd": fcntl.fcntl(file, 37, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
if sys.argv[1] == "posix": fcntl.lockf(file, fcntl.LOCK_EX)
while True:
    print(os.uname().nodename, flush=True)
    os.write(file, b".")
    time.sleep(0.05)
"""
# Prints whether somebody else has the lock.
ASK = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError: print("taken")
else: print("free")
"""


@pytest.fixture
def nfs(machines):
    a, b = machines.nodes
    for module in ("nfsd", "nfsv4"):
        if a.run(["modprobe", "--dry-run", module], check=False).returncode != 0:
            pytest.skip(f"NOT TESTED: NFS: the machine's kernel has no module {module}")
    addresses = ["127.0.0.1", a.address, b.address]
    a.run(["sh", "-ec", SERVER, "sh", *addresses], timeout=60)
    for node in machines.nodes:
        node.run(["sh", "-ec", CLIENT, "sh", a.address, SHARED, node.address], timeout=60)
    yield SHARED
    b.run(["umount", "-l", SHARED], check=False)
    a.run(["sh", "-c", STOP])


@pytest.fixture
def migrations(machines):
    migrations = Migrations(
        machines.a,
        machines.b,
        "/tmp/locks",
        ["--pool-size", "16MiB"],
        ["--memory-limit", "128MiB", "--pool-size", "64MiB"],
        name="locks",
    )
    migrations.await_ready()
    yield migrations
    migrations.close()


def lock_as_seen_by(node, path):
    return node.run(["/usr/bin/python3", "-SEc", ASK, path], timeout=60).stdout.strip()


@pytest.mark.parametrize("kind", ["flock", "posix", "ofd"])
def test_lock_on_nfs_moves(machines, nfs, migrations, kind):
    a, b = machines.nodes
    path, log = f"{nfs}/locked-{time.time_ns()}", machines.home / f"holder-{time.time_ns()}"
    a.run(["touch", path])
    pid = a.spawn(["/usr/bin/python3", "-SEc", HOLDER, kind, path], log=log)
    wait_until(lambda: log.exists() and log.read_text(), 30, "the holder to run")
    assert lock_as_seen_by(b, path) == "taken"
    done = migrations.migrate(pid, criu_options=["--file-locks"], timeout=180)
    assert done.code == MOVED, done.output + migrations.logs(2)
    wait_until(lambda: b.name in log.read_text().split(), 30, "the holder to run there")
    assert lock_as_seen_by(a, path) == "taken" and lock_as_seen_by(b, path) == "taken"
    b.signal(pid, signal.SIGKILL)
    b.await_end(pid)
    wait_until(lambda: lock_as_seen_by(a, path) == "free", 30, "the lock to be free")
