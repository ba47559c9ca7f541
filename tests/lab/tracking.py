"""Whether the kernel notes what a process writes, and who holds the userfaultfd for it."""
import functools
import json
import os
import subprocess
from pathlib import Path

from .ppmr import find_ppmr


def protects_written_pages():
    """Whether this kernel tracks writes by a userfaultfd, which a test can see."""
    release = os.uname().release.split(".")
    return (int(release[0]), int(release[1])) >= (6, 7)


@functools.lru_cache(maxsize=None)
def tracks_writes():
    """Whether moves here are live, as `ppmr doctor` says."""
    done = subprocess.run([find_ppmr(), "doctor", "--json"], capture_output=True, text=True)
    checks = [json.loads(line) for line in done.stdout.splitlines()]
    [level] = [one["level"] for one in checks if one.get("check") == "live-moves"]
    return level == "ok"


# In VmFlags of smaps: write-protected, missing or minor faults of a userfaultfd.
FLAGS = {"uw", "um", "ui"}


def tree_of(host_pid):
    """The host pids of a process and its descendants."""
    found = [host_pid]
    for pid in found:
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:
            continue  # it has ended
    return found


def is_tracked(host_pid):
    """Whether a mapping of the process or of a descendant is registered with a userfaultfd."""
    for pid in tree_of(host_pid):
        try:
            shown = Path(f"/proc/{pid}/smaps").read_text()
        except OSError:
            continue
        for line in shown.splitlines():
            if line.startswith("VmFlags:") and FLAGS.intersection(line.split()):
                return True
    return False


def userfaultfds(node):
    """The command lines of the processes of a node that hold a userfaultfd."""
    found = []
    for pid, _ in node.all_processes():
        try:
            links = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
            if any("userfaultfd" in link for link in links):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                found.append(b" ".join(words).decode(errors="replace").strip())
        except OSError:
            continue
    return found
