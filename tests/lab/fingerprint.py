"""What the kernel shows of a tree of processes: the same before and after a faithful move.

    before = fingerprint(node, pid)     # {"3002 limits": "...", "3003 thread 2 comm": "..."}
    ... move ...
    after = fingerprint(node, pid)      # differs(before, after) is {}

Names of objects without a name ("pipe:[71]") are numbered in the order in which they appear, so two
descriptors of one pipe stay two of one pipe. Not looked at: what runs on while the program runs
(times, counters, positions in files, memory in use), and the content of memory.
"""
import ctypes
import json
import os
import re
import socket
import struct
import sys
from pathlib import Path

# Fields of /proc/PID/status.
STATUS = (
    "Name Umask Uid Gid Groups NoNewPrivs Seccomp Seccomp_filters Speculation_Store_Bypass "
    "SpeculationIndirectBranch SigBlk SigIgn SigCgt CapInh CapPrm CapEff CapBnd CapAmb THP_enabled "
    "untag_mask Mems_allowed_list"
).split()
FILES = ("limits", "cmdline", "environ", "coredump_filter", "oom_score_adj", "personality")
THREAD_FILES = ("comm", "timerslack_ns")
LINKS = ("exe", "cwd", "root")
# Numbers of options that the traffic changes, by level. For TCP also the window (10), and what only
# shows that the connection was in repair mode (19 to 22, 29).
PASSING = {1: {4, 49, 55, 56, 57}, 6: {10, 11, 12, 14, 15, 19, 20, 21, 22, 24, 26, 28, 29, 31, 35}}
# Options for multicasts: a TCP socket has them, but neither uses them nor lets anybody set them.
WITHOUT_USE = {0: {32, 33}, 41: {17, 18}}
LEVELS = (1, 0, 41, 6, 17)
# Flags of mappings: whether pages were written since some moment, whether memory is counted.
OF_KERNEL = ("sd", "nr", "ac")
# A file without a name is a deleted one afterwards (docs/faithful.md).
O_TMPFILE = os.O_TMPFILE
IOPRIO_GET, PIDFD_OPEN, PIDFD_GETFD, SCHED_GETATTR = 252, 434, 438, 315


class Tree:
    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.seen, self.names = {}, {}

    def note(self, name, value):
        self.seen[name] = value

    def named(self, target):
        """Returns a link of /proc without the numbers of inodes, which differ on another kernel."""
        found = re.fullmatch(r"(socket|pipe|mnt|net|pid|uts|ipc|user|cgroup|time):\[(\d+)\]", target)
        if not found:
            return re.sub(r"^/memfd:|^anon_inode:", lambda kind: kind[0], target)
        number = self.names.setdefault(target, len(self.names))
        return f"{found[1]} {number}"

    def add(self, pid):
        for name in FILES:
            self.note(f"{pid} {name}", Path(f"/proc/{pid}/{name}").read_text(errors="replace"))
        for name in LINKS:
            self.note(f"{pid} {name}", os.readlink(f"/proc/{pid}/{name}"))
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        self.note(f"{pid} parent, group, session", [stat[1] if pid != self.root else "", *stat[2:4]])
        threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")))
        for thread in threads:
            self.add_thread(f"{pid} thread {thread}", thread)
        self.add_mappings(pid)
        self.add_descriptors(pid)

    def add_thread(self, name, thread):
        lines = Path(f"/proc/{thread}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        for field in STATUS:
            if field in status:
                self.note(f"{name} {field}", status[field].strip())
        for file in THREAD_FILES:
            self.note(f"{name} {file}", Path(f"/proc/{thread}/{file}").read_text().strip())
        attributes = ctypes.create_string_buffer(56)
        self.libc.syscall(SCHED_GETATTR, thread, attributes, 56, 0)
        self.note(f"{name} scheduling", attributes.raw[:24].hex())  # without the time slice
        self.note(f"{name} I/O priority", self.libc.syscall(IOPRIO_GET, 1, thread))
        self.note(f"{name} CPUs", sorted(os.sched_getaffinity(thread)))

    def add_mappings(self, pid):
        """The mappings of files and of shared memory; private memory grows and shrinks. Neighbours
        that are alike count as one, because the kernel merges them at some moments only."""
        found, start, end, shown = [], 0, 0, []
        for line in Path(f"/proc/{pid}/smaps").read_text(errors="replace").splitlines():
            words = line.split(None, 5)
            if re.match(r"[0-9a-f]+-[0-9a-f]+$", words[0]):
                start, end = (int(word, 16) for word in words[0].split("-"))
                # Anonymous shared memory has another name at the target (docs/faithful.md).
                shown = [words[1], *(name.removeprefix("/memfd:") for name in words[5:])]
            elif words[0] == "VmFlags:" and shown[1:] and shown[1].startswith("/"):
                shown += [flag for flag in line.split()[1:] if flag not in OF_KERNEL]
                if found and found[-1][1] == start and found[-1][2] == shown:
                    start = found.pop()[0]
                found.append((start, end, shown))
        for start, end, shown in found:
            self.note(f"{pid} mapping {start:x}-{end:x}", shown)

    def add_descriptors(self, pid):
        process = self.libc.syscall(PIDFD_OPEN, pid, 0)
        for number in sorted(map(int, os.listdir(f"/proc/{pid}/fd"))):
            name = f"{pid} descriptor {number}"
            target = os.readlink(f"/proc/{pid}/fd/{number}")
            self.note(name, self.named(target))
            info = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
            flags = int(re.search(r"^flags:\s+(\d+)", info, re.M)[1], 8)
            flags &= ~O_TMPFILE if flags & O_TMPFILE == O_TMPFILE else ~0
            self.note(f"{name} flags", f"{flags:#o}")
            locks = re.findall(r"^lock:\s+\d+: (\w+)\s+(\w+)\s+(\w+) \d+ \S+ (.*)", info, re.M)
            if locks:
                self.note(f"{name} locks", sorted(locks))
            if target.startswith("socket:"):
                taken = self.libc.syscall(PIDFD_GETFD, process, number, 0)
                self.add_socket(name, socket.socket(fileno=taken))
            if "eventpoll" in target:
                self.note(f"{name} waits for", sorted(re.findall(r"tfd:\s+(\d+) events:\s+(\w+)", info)))
        os.close(process)

    def add_socket(self, name, taken):
        with taken:
            kind = (taken.family, taken.type, taken.proto)
            self.note(f"{name} kind", kind)
            if taken.family in (socket.AF_INET, socket.AF_INET6):
                self.note(f"{name} address", taken.getsockname())
                if kind[1] & 1:  # a connection or a listener
                    state = struct.unpack_from("B", taken.getsockopt(6, 11, 8))[0]
                    self.note(f"{name} state", state)
            for level in LEVELS:
                for number in range(128):
                    if number in PASSING.get(level, ()):
                        continue
                    if taken.type & 1 and number in WITHOUT_USE.get(level, ()):
                        continue
                    try:
                        value = taken.getsockopt(level, number, 64)
                    except OSError:
                        continue
                    self.note(f"{name} option {level}/{number}", value.hex())

    def runs(self, pid):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"

    def gather(self, pid, is_root=True):
        if is_root:
            self.root = pid
        self.add(pid)
        children = Path(f"/proc/{pid}/task").glob("*/children")
        for child in sorted(int(word) for file in children for word in file.read_text().split()):
            if child != os.getpid() and self.runs(child):
                self.gather(child, False)
        return self.seen


def fingerprint(node, pid):
    done = node.run(["/usr/bin/python3", "-I", Path(__file__).resolve(), pid])
    return json.loads(done.stdout)


def differs(before, after):
    """Returns {name: (before, after)} of what is not the same."""
    names = sorted({*before, *after})
    return {
        name: (before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    }


if __name__ == "__main__":
    print(json.dumps(Tree().gather(int(sys.argv[1]))))
