"""Process 1 of a node: makes the node's private places, then reaps orphans until its standard input ends.

Standard input is a pipe held by whoever made the node, so the node goes away with its maker, however the maker ends: when
process 1 of a pid namespace exits, the kernel kills everything else in it, and mounts and network go with the last process.
"""
import os
import select
import signal
import subprocess
import sys


def reap():
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def let_go_of_copied_mounts():
    """A FUSE mount ends with its last copy: those that came along from outside must not be kept alive by this node."""
    with open("/proc/self/mountinfo") as mounts:
        copies = [line.split()[4] for line in mounts if " - fuse.ppmr " in line]
    for mountpoint in copies:
        subprocess.run(["umount", "-l", mountpoint], check=False)


def main():
    name, *private_directories = sys.argv[1:]
    for command in (
        ["mount", "--make-rprivate", "/"],
        *(
            ["mount", "-t", "tmpfs", "-o", "mode=0755", "node", place]
            for place in private_directories
        ),
        [
            "mount",
            "-t",
            "devpts",
            "-o",
            "mode=0620,ptmxmode=0666",
            "node",
            "/dev/pts",
        ],  # else terminals would share their numbers
        ["hostname", name],
        ["ip", "link", "set", "lo", "up"],
    ):
        subprocess.run(command, check=True)
    let_go_of_copied_mounts()
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
