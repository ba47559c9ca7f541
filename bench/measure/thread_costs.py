"""The CPU seconds of the threads that move memory, by what they do.

Processes of a move end with it, so a thread reads their times from /proc every few milliseconds,
and the last reading counts. The kernel counts in nanoseconds (schedstat). It samples the time that
a thread spends in user space with each tick.
"""
import os
import threading
from pathlib import Path

from .host import TICK

INTERVAL_S = 0.01
STREAM, MEMORY = "ppmr-stream", "ppmr-memory"  # names of threads of the daemons
PAGE_READER, PAGER = "page-reader", "serve-pages"  # commands of ppmr


def times_of(pid):
    """Returns {(pid, thread): (name, CPU seconds, of which in user space)} of the threads that
    run."""
    found = {}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
                name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
                user, system = (int(word) / TICK for word in rest.split()[11:13])
                share = user / (user + system) if user + system else 0.0
                found[pid, int(task.name)] = (name, seconds, share * seconds)
            except (OSError, ValueError, IndexError):
                continue  # the thread has ended
    except OSError:
        pass  # the process has ended
    return found


class ThreadCosts:
    """Watches daemons, and the page readers and pagers that start on the nodes, until it is left.

        with ThreadCosts({"source": pid, "target": pid}, nodes) as costs: ...
        costs.seconds("source", STREAM)      CPU seconds of all threads of that name
    """

    def __init__(self, daemons, nodes):
        self._kinds = {pid: role for role, pid in daemons.items()}
        self._before = {key: of for pid in self._kinds for key, of in times_of(pid).items()}
        self._spaces = {os.readlink(f"/proc/{node.init_pid}/ns/pid") for node in nodes}
        self._seen = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._last = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _find(self):
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) in self._seen:
                continue
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                if words[1:2] not in ([PAGE_READER.encode()], [PAGER.encode()]):
                    # Before execve(2) a process has the command line of the ppmr that forked it.
                    if words[0] and os.path.basename(words[0]) != b"ppmr":
                        self._seen.add(int(name))
                    continue
                if os.readlink(f"/proc/{name}/ns/pid") in self._spaces:
                    self._kinds[int(name)] = words[1].decode()
                self._seen.add(int(name))
            except OSError:
                continue

    def _watch(self):
        while not self._ends.wait(INTERVAL_S):
            self._find()
            self._look()

    def _look(self):
        for pid in self._kinds:
            self._last.update(times_of(pid))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ends.set()
        self._thread.join()
        self._look()

    def _sum(self, kind, matches, index):
        total = 0.0
        for key, of in self._last.items():
            if self._kinds[key[0]] == kind and matches(of[0]):
                total += of[index] - self._before.get(key, ("", 0.0, 0.0))[index]
        return total

    def seconds(self, kind, name=None):
        return self._sum(kind, lambda found: name in (None, found), 1)

    def user_seconds(self, kind, name=None):
        return self._sum(kind, lambda found: name in (None, found), 2)

    def other_seconds(self, kind, *names):
        return self._sum(kind, lambda found: found not in names, 1)
