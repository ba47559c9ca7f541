"""A move on a clock that all nodes share, and what every way of moving has in common.

That clock is CLOCK_REALTIME: CRIU restores a tree into a time namespace of its own, in which CLOCK_MONOTONIC goes on from the moment of the
dump, so to the program there seems to have been no downtime at all.
"""
import time
from dataclasses import dataclass, field

from .programs import gap_between


@dataclass
class Timeline:
    """Seconds of CLOCK_REALTIME. `frozen` is the last line the program wrote on the source, `running` the first on the target."""

    dump_began: float = 0.0
    dump_done: float = 0.0  # criu dump has returned
    arrived: float = 0.0  # the last byte is at the target (with ppmr: verified there)
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
    """One way of moving a tree from node `source` to node `target`. Subclasses do `_transfer`, which fills in the timeline's first three.

    A move is used in three steps so that only the middle one is timed: prepare, move, clean."""

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
        """LabError if the side that restores has failed."""

    def finish(self):
        """Waits until everything is at the target, also the pages of a tree that was restored lazily."""

    def move_tree(self, pid, dump_options=(), restore_options=()):
        """Moves the tree under `pid`; `frozen` and `running` stay unknown."""
        timeline = Timeline()
        self._transfer(pid, timeline, list(dump_options), list(restore_options))
        return timeline

    def move(self, program, dump_options=(), restore_options=()):
        """Moves a program of ours and waits until it has written a few lines over there."""
        timeline = self.move_tree(program.pid, dump_options, restore_options)
        program.node = self.target
        program.wait_for_lines(3, self.target, check=self.check)
        last, first = gap_between(program.lines(), self.source, self.target)
        timeline.frozen, timeline.running = last["real_ns"] / 1e9, first["real_ns"] / 1e9
        return timeline
