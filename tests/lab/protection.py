"""`ppmr protect` at the source, `ppmr takeover` at its partner, and the loss of a node."""
import json
import signal
import statistics

from .migrations import Running
from .node import wait_until
from .ppmr import find_ppmr


class Protection:
    """`ppmr protect` of a process at the source, and `ppmr takeover` at its partner."""

    def __init__(
        self,
        migrations,
        pid=None,
        every="1",
        options=(),
        criu_options=(),
        name="ledger",
        runc=None,
        ppmr=None,
        others=(),
        environment=None,
    ):
        """others: Migrations from the same source to further partners."""
        self.migrations, self.name = migrations, name
        mounts = [word for each in (migrations, *others) for word in ("--mount", each.out)]
        what = ["--runc", runc] if runc else ["--pid", pid, "--name", name]
        words = ["protect", *what, *mounts, "--every", every, "--json"]
        words += ["--state-dir", migrations.states["source"]]
        words += [*options, *(["--", *criu_options] if criu_options else [])]
        self.running = Running(migrations.source_at, [ppmr or find_ppmr(), *words], env=environment)

    def events(self):
        return self.running.events()

    def epochs(self):
        return [event for event in self.events() if event.get("event") == "epoch"]

    def wait_for_epochs(self, count, timeout=30, interval=0.005):
        begun = len(self.epochs())
        wait_until(
            lambda: len(self.epochs()) >= begun + count or not self.running.running(),
            timeout,
            f"{count} epochs",
            interval,
        )
        assert self.running.running(), self.running.wait(1).output

    def takeover(self, *options, check=True, at=None, **keywords):
        """at: the Migrations to the partner, if it is not the first one."""
        at = at or self.migrations
        words = ["takeover", "--json", "--state-dir", at.states["target"], *options]
        return at.target_at.run([find_ppmr(), *words], check=check, **keywords)

    def take_over(self, *options, **keywords):
        return self.takeover(self.name, "--fence", "true", *options, **keywords)

    def kept(self, at=None):
        listed = map(json.loads, self.takeover(at=at).stdout.splitlines())
        return {process["name"]: process for process in listed}

    def end(self):
        if self.running.running():
            self.running.signal(signal.SIGINT)
            self.running.wait()


def say_times(taken):
    """Prints what takeovers took besides CRIU's restore, and returns the longest, in milliseconds.
    taken: what `ppmr takeover --json` has printed."""
    besides = [each["took_ms"] - each["restore_ms"] for each in taken]
    restores = [each["restore_ms"] for each in taken]
    print(
        f"{len(taken)} takeovers: restore median {statistics.median(restores):g}, longest "
        f"{max(restores)} ms; besides it median {statistics.median(besides):g}, longest "
        f"{max(besides)} ms"
    )
    return max(besides)


def lose(node):
    """Everything on the node ends at once, its daemons too."""
    node.run(["sh", "-c", "kill -KILL -1"], check=False)
