"""Limits the rate of a block device, with the control groups that this machine has.

    with slow_disk.limited(path, bytes_per_s, writer=pid): ...
"""
import contextlib
import os
import pathlib

from .node import LabError, wait_until

GROUPS = pathlib.Path("/sys/fs/cgroup")
THROTTLES_V1 = {
    way: GROUPS / f"blkio/blkio.throttle.{way}_bps_device" for way in ("write", "read")
}


class NoLimit(LabError):
    """No control group here limits a device."""


def _words_of(file):
    return file.read_text().split() if file.exists() else []


def number_of(path):
    """Returns the device of a file system, as control groups name it."""
    device = os.stat(path).st_dev
    return f"{os.major(device)}:{os.minor(device)}"


@contextlib.contextmanager
def limit_of_all(number, bytes_per_s, ways=("write",)):
    """Limits all processes. Only control groups v1 can: in v2 the root group has no limits."""
    if not all(THROTTLES_V1[way].exists() for way in ways):
        raise NoLimit("no control groups v1 with blkio.throttle: nothing limits the whole disk")
    try:
        for way in ways:
            THROTTLES_V1[way].write_text(f"{number} {bytes_per_s}")
        yield
    finally:
        for way in ways:
            THROTTLES_V1[way].write_text(f"{number} 0")


def _process_and_children(pid):
    yield pid
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _words_of(children):
            yield from _process_and_children(int(child))


@contextlib.contextmanager
def _limit_of_group(number, bytes_per_s, writer):
    """Puts the writer into a control group of its own. The kernel counts what the page cache writes
    back as the writer's only with the controllers of I/O and of memory."""
    switches = GROUPS / "cgroup.subtree_control"
    added = [each for each in ("io", "memory") if each not in _words_of(switches)]
    switches.write_text(" ".join(f"+{each}" for each in added))
    [before] = [
        line.partition("::")[2]
        for line in _words_of(pathlib.Path(f"/proc/{writer}/cgroup"))
        if line.startswith("0::")
    ]
    group = GROUPS / f"ppmr-slow-disk-{writer}"
    group.mkdir()

    def move_to(directory):
        for pid in _process_and_children(writer):
            (directory / "cgroup.procs").write_text(str(pid))

    try:
        (group / "io.max").write_text(f"{number} wbps={bytes_per_s}")
        move_to(group)
        yield
    finally:
        (group / "io.max").write_text(f"{number} wbps=max")
        move_to(GROUPS / before.lstrip("/"))
        wait_until(lambda: not _words_of(group / "cgroup.procs"), 20, "the group to be empty")
        group.rmdir()
        switches.write_text(" ".join(f"-{each}" for each in added))


def limited(path, bytes_per_s, writer):
    """The disk of `path`, and no other one, writes so many bytes per second.

    writer: the process that writes to it, for control groups v2; its children, too.
    """
    if "io" in _words_of(GROUPS / "cgroup.controllers"):
        return _limit_of_group(number_of(path), bytes_per_s, writer)
    return limit_of_all(number_of(path), bytes_per_s)
