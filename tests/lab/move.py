"""The base class of all ways to move a tree, and the times of a move.

All times are CLOCK_REALTIME. CRIU restores a tree into a new time namespace, in which
CLOCK_MONOTONIC continues from the dump, so a program that reads that clock sees no downtime.
"""
import time
from dataclasses import dataclass, field

from .programs import gap_between


@dataclass
class Timeline:
    """Seconds. `frozen` is the time of the program's last line on the source, `running` of its
    first on the target."""

    dump_began: float = 0.0
    dump_done: float = 0.0  # criu dump has returned
    arrived: float = 0.0  # the last byte is at the target (with ppmr: verified)
    frozen: float = 0.0
    running: float = 0.0
    extra: dict = field(default_factory=dict)

    @property
    def downtime(self):
        return self.running - self.frozen

    @property
    def whole_move(self):
        return self.running - self.dump_began

    def since_dump_began(self, moment):
        return getattr(self, moment) - self.dump_began


now = time.time


class Move:
    """One way to move a tree from node `source` to node `target`: prepare, move, clean. Only `move`
    is timed.

    Subclasses implement `_transfer`, which sets the first three times of the timeline.
    """

    name = ""

    def __init__(self, source, target, lazily=False):
        self.source, self.target, self.lazily = source, target, lazily

    def prepare(self, label):
        raise NotImplementedError

    def _transfer(self, pid, timeline, dump_options, restore_options):
        raise NotImplementedError

    def clean(self):
        raise NotImplementedError

    def check(self):
        """Raises LabError if the restore has failed."""

    def finish(self):
        """Waits until all bytes are at the target, including the pages of a lazily restored
        tree."""

    def move_tree(self, pid, dump_options=(), restore_options=()):
        """Moves the tree of `pid`. Does not set the times `frozen` and `running`."""
        timeline = Timeline()
        self._transfer(pid, timeline, list(dump_options), list(restore_options))
        return timeline

    def move(self, program, dump_options=(), restore_options=()):
        """Moves a program of tests/programs and waits for a few lines from the target."""
        timeline = self.move_tree(program.pid, dump_options, restore_options)
        program.node = self.target
        program.wait_for_lines(3, self.target, check=self.check)
        last, first = gap_between(program.lines(), self.source, self.target)
        timeline.frozen, timeline.running = last["real_ns"] / 1e9, first["real_ns"] / 1e9
        return timeline
