"""Process 1 of a node: mounts the node's private directories, then reaps orphans until its standard
input ends.

Standard input is a pipe whose other end the creator of the node holds, so the node ends with its
creator. When process 1 of a pid namespace exits, the kernel kills the other processes in it, and
removes the node's mounts and network with the last of them.
"""
import ctypes
import os
import select
import signal
import subprocess
import sys

MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
CLONE_NEWCGROUP = 0x02000000


def reap():
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def drop_copied_mounts():
    """Unmounts this node's copies of the host's ppmr mounts: a FUSE mount ends only with its last
    copy.

    By system call: umount(8) looks at the mount point and blocks when the daemon is stopped.
    """
    libc = ctypes.CDLL(None)
    with open("/proc/self/mountinfo") as mounts:
        copies = [line.split()[4] for line in mounts if " - fuse.ppmr " in line]
    for mountpoint in copies:
        path = mountpoint.encode().decode("unicode_escape")
        libc.umount2(os.fsencode(path), MNT_DETACH | UMOUNT_NOFOLLOW)


def make_control_groups(name):
    """Gives the node control groups of its own: those of the host named `name`, as the root of all
    it sees."""
    with open("/proc/self/mountinfo") as mounts:
        fields = [line.split() for line in mounts]
    hierarchies = [(f[4], f[-3], f[-1]) for f in fields if f[-3] in ("cgroup", "cgroup2")]
    for mountpoint, _, _ in hierarchies:
        group = f"{mountpoint}/{name}"
        os.makedirs(group, exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if os.path.exists(f"{group}/{file}"):
                with open(f"{mountpoint}/{file}") as parent, open(f"{group}/{file}", "w") as own:
                    own.write(parent.read())
        with open(f"{group}/cgroup.procs", "w") as members:
            members.write("0")
    if ctypes.CDLL(None).unshare(CLONE_NEWCGROUP) != 0:
        raise OSError("unshare: no cgroup namespace")
    for mountpoint, kind, options in hierarchies:
        what = ["-o", ",".join(set(options.split(",")) - {"rw"})] if kind == "cgroup" else []
        subprocess.run(["umount", mountpoint], check=True)
        subprocess.run(["mount", "-t", kind, *what, kind, mountpoint], check=True)


def main():
    name, control_groups, *private_directories = sys.argv[1:]
    drop_copied_mounts()  # this comes before the slow steps
    tmpfs = ["mount", "-t", "tmpfs", "-o", "mode=0755", "node"]
    # With the host's devpts, the terminals of all nodes would share their numbers.
    devpts = ["mount", "-t", "devpts", "-o", "mode=0620,ptmxmode=0666", "node", "/dev/pts"]
    for command in (
        ["mount", "--make-rprivate", "/"],
        *([*tmpfs, directory] for directory in private_directories),
        devpts,
        ["hostname", name],
        ["ip", "link", "set", "lo", "up"],
    ):
        subprocess.run(command, check=True)
    if control_groups:
        make_control_groups(control_groups)
    child_ended, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(child_ended, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([0, child_ended], [], [])
        if child_ended in readable:
            os.read(child_ended, 4096)
            reap()
        if 0 in readable and not os.read(0, 1):
            return


if __name__ == "__main__":
    main()
