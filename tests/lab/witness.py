"""The witness of a migration (tests/programs/witness.cc): a process that logs each of its steps and
the node.

Its log shows whether it ran once, twice or not at all. Witness.state() shows what a copy does on a
node now.
"""
import json
import os
import shutil
import signal
import time
from pathlib import Path

from .node import LabError, wait_until
from .programs import chain_state, find_program

# The states of a copy.
ABSENT, DYING, STOPPED, RUNS = "absent", "dying", "stopped", "runs"
HELD_BY_CRIU = "held by CRIU"


class Witness:
    def __init__(self, directory, source, target, connected=False):
        """connected: it has a TCP connection to itself, and uses it for each line."""
        self._source, self._target = source, target
        directory.mkdir()
        self.log = directory / "log"
        self.began_ns = time.time_ns()
        words = [find_program("witness"), directory, *(["connected"] if connected else [])]
        self.pid = source.spawn(words)
        wait_until(
            lambda: self.log.exists() and self.log.stat().st_size > 500, 10, "the witness to start"
        )

    def state(self, node):
        """The state of the copy on this node.

        DYING: SIGKILL is pending, so it executes none of its own code.
        HELD_BY_CRIU: restored, and in code that CRIU put there for the restore.
        """
        try:
            pid = self.pid_on(node)
            status = node.read_text(f"/proc/{pid}/status")
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            if fields["Name"] not in ("witness", "criu") or fields["State"][0] in "ZX":
                return ABSENT
            if fields["Name"] == "criu":  # it gets its name late in the restore
                return HELD_BY_CRIU
            if int(fields["SigPnd"], 16) >> (signal.SIGKILL - 1) & 1:
                return DYING
            if fields["State"][0] in "Tt":
                return STOPPED
            where = node.read_text(f"/proc/{pid}/syscall").split()
            if len(where) < 3:  # the process is on a CPU, or not in a system call
                return RUNS if node is self._source or self._has_no_restorer(node) else HELD_BY_CRIU
            return RUNS if self._is_own_code(node, int(where[-1], 16)) else HELD_BY_CRIU
        except (OSError, KeyError):
            return ABSENT  # the process ended during the check

    def pid_on(self, node):
        """The pid of the copy on this node. It may not exist."""
        return self.pid

    def _executable(self, node):
        """Returns (start, end, name) of its executable mappings."""
        for line in node.read_text(f"/proc/{self.pid_on(node)}/maps").splitlines():
            span, flags, _, _, _, *name = line.split(None, 5)
            if "x" in flags:
                start, end = (int(number, 16) for number in span.split("-"))
                yield start, end, name[0] if name else ""

    def _is_own_code(self, node, address):
        # The restorer is anonymous memory. The witness's own code comes from files and the vdso.
        return any(start <= address < end and name for start, end, name in self._executable(node))

    def _has_no_restorer(self, node):
        return all(name for _, _, name in self._executable(node))

    def wait_for_growth(self):
        before = self.log.stat().st_size
        wait_until(lambda: self.log.stat().st_size > before + 500, 5, "the witness to go on")

    def has_run_on(self, node):
        """Whether the copy on this node has written a line."""
        return any(line.split()[2:3] == [node.name] for line in self._lines())

    def _lines(self):
        text = self.log.read_text()
        return text[: text.rfind("\n") + 1].splitlines()

    def check_log(self, allowed):
        """`allowed` lists the sequences of nodes that the log may contain."""
        lines = self._lines()
        nodes = self._check_lines(lines, 1)
        if nodes not in allowed:
            raise LabError(f"the witness ran on {nodes}")

    def check_log_of_copy(self):
        """The original and a copy of it (--leave-running) have both run."""
        of = {
            node.name: [line for line in self._lines() if line.split()[2] == node.name]
            for node in (self._source, self._target)
        }
        original, copy = of[self._source.name], of[self._target.name]
        # Both write a line that was complete in memory at the freeze.
        seen = set()
        for at, line in enumerate(original):
            if line in seen:
                copy.insert(0, original.pop(at))
                break
            seen.add(line)
        self._check_lines(original, 1)
        if copy:
            began = int(copy[0].split()[0])
            # The original may have ended before it wrote the line that the copy begins with.
            if began > len(original) + 1:
                raise LabError(f"the copy began with {began}, where its original never was")
            self._check_lines(copy, began)

    @staticmethod
    def _check_lines(lines, first):
        """Returns the nodes on which the lines were written, one after the other."""
        nodes = []
        last_real = 0
        for number, line in enumerate(lines, start=first):
            count, state, node, real, _mono, wrong = line.split()
            if int(count) != number:
                what = "counted twice or went back" if int(count) < number else "lost lines"
                raise LabError(f"line {number} has count {count}: the witness {what} ({line})")
            if int(state) != chain_state(0, number):
                raise LabError(f"line {number} of the witness has a wrong state")
            if int(wrong):
                raise LabError(f"line {number}: {wrong} words of memory are wrong")
            if int(real) <= last_real:
                raise LabError(
                    f"line {number} was written before the line above it: two copies ran"
                )
            last_real = int(real)
            if not nodes or nodes[-1] != node:
                nodes.append(node)
        return nodes

    def end(self):
        for node in (self._source, self._target):
            node.run(
                ["sh", "-c", 'grep -q "^Name:.witness" /proc/$0/status && kill -9 $0', self.pid],
                check=False,
            )
        wait_until(
            lambda: not any(self._exists(node) for node in (self._source, self._target)),
            5,
            "the witness to end",
        )

    def host_pids(self, node):
        """Returns the host pids of the copy on this node: one or none.

        Not by its command line, which is in memory that may not have arrived.
        """
        return [on_host for on_host, pid in node.all_processes() if pid == self.pid]

    def _exists(self, node):
        try:
            return "Name:\twitness" in node.read_text(f"/proc/{self.pid}/status")
        except OSError:
            return False


class ContainerWitness(Witness):
    """A witness that is the first process of a container of runc. Its pid differs on the nodes."""

    def __init__(self, directory, source, target, cgroup):
        self._source, self._target, self._cgroup = source, target, cgroup
        self.name = directory.name
        self.log = directory / "data/log"
        self.began_ns = time.time_ns()
        self._make_bundle(directory)
        start = f"runc run --detach --bundle {directory} {self.name} </dev/null >/dev/null 2>&1"
        source.run(["sh", "-c", start])
        wait_until(
            lambda: self.log.exists() and self.log.stat().st_size > 500, 10, "the witness to start"
        )
        self.pid = self.pid_on(source)

    def _make_bundle(self, directory):
        root = directory / "root"
        for made in ("bin", "data", "dev", "etc", "proc", "run", "sys", "tmp", "usr", "var"):
            (root / made).mkdir(parents=True)
        (directory / "data").mkdir()
        for link in ("lib", "lib64"):
            (root / link).symlink_to(f"usr/{link}")
        shutil.copy(find_program("witness"), root / "bin/witness")
        self._source.run(["runc", "spec", "--bundle", directory])
        path = directory / "config.json"
        config = json.loads(path.read_text())
        words = ["/bin/witness", "/data", "connected"]
        config["process"].update(terminal=False, args=words)
        config["root"] = {"path": str(root), "readonly": True}
        for place, source, access in (("/usr", "/usr", "ro"), ("/data", directory / "data", "rw")):
            options = {"type": "bind", "options": ["bind", access]}
            config["mounts"].append({"destination": place, "source": str(source), **options})
        config["linux"]["cgroupsPath"] = f"/{self._cgroup}"
        # The witness connects to itself on the node's loopback device, and logs the node's name.
        config["linux"]["namespaces"] = [
            one for one in config["linux"]["namespaces"] if one["type"] not in ("network", "uts")
        ]
        del config["hostname"]
        path.write_text(json.dumps(config))

    def _pids(self, node):
        """Returns {host pid: pid on the node} of the processes of the container there."""
        found = {}
        init = os.readlink(f"/proc/{node.init_pid}/ns/pid")
        for entry in Path("/proc").iterdir():
            try:
                if f"/{self._cgroup}\n" not in (entry / "cgroup").read_text():
                    continue
                status = (entry / "status").read_text()
                pids = next(x for x in status.splitlines() if x.startswith("NSpid:")).split()[1:]
                if len(pids) < 3 or status.split("State:\t")[1][0] in "ZX":
                    continue
                parent = int(status.split("PPid:\t")[1].split()[0])
                if os.readlink(f"/proc/{parent}/ns/pid") == init:
                    found[int(entry.name)] = int(pids[-2])
            except (OSError, StopIteration, IndexError, ValueError):
                continue
        return found

    def pid_on(self, node):
        return next(iter(self._pids(node).values()), 0)

    def host_pids(self, node):
        return list(self._pids(node))

    def end(self):
        for node in (self._source, self._target):
            node.run(["runc", "delete", "--force", self.name], check=False)
        wait_until(
            lambda: not any(self._pids(node) for node in (self._source, self._target)),
            5,
            "the container to end",
        )

    def is_listed(self, node):
        """Whether runc knows the container on this node."""
        return node.run(["runc", "state", self.name], check=False).returncode == 0
