"""The ways to move a tree of the chapter shapes, and one measured and verified move.

Plain CRIU moves nothing to another node: its dump into tmpfs and its restore from there are what
the shape costs CRIU by itself.
"""
import contextlib
from dataclasses import dataclass, field

from lab import criu
from lab.move import Move, now
from lab.node import LabError

from lab.peers import PageServerMove, TarMove

from .host import available_memory_bytes
from .migrate import MigrateMove
from .shape_trees import BEATS_AFTER, await_free, tasks_of
from .testbed import MIB
from .ways import LazyPagesMove

DEFAULT, POST_COPY, EAGER = "ppmr", "ppmr --post-copy", "ppmr --eager"
MODES = {DEFAULT: [], POST_COPY: ["--post-copy"], EAGER: ["--eager"]}
PLAIN, TAR, PAGE_SERVER = "plain CRIU, tmpfs", "tmpfs + tar", "CRIU page server"
LAZY_PAGES = "CRIU lazy pages"
SPARE_MIB = 512  # memory for the daemons and the machine


class PlainMove(Move):
    """criu dump into a new tmpfs, and criu restore from there, on one node."""

    name = PLAIN

    def __init__(self, node):
        super().__init__(node, node)

    def prepare(self, label):
        self._images = self.source.scratch(f"{label}-images", tmpfs=True)
        self._work = self.source.scratch(f"{label}-work")

    def _transfer(self, pid, timeline, dump_options, restore_options):
        tasks = tasks_of(self.source, pid)
        timeline.dump_began = now()
        criu.dump(self.source, pid, self._images, self._work, dump_options, timeout=300)
        timeline.dump_done = timeline.arrived = now()
        for task in tasks:  # a restored task needs its pid
            await_free(self.source, task)
        self.source.keep_helpers_low()
        timeline.extra["between"] = now() - timeline.dump_done  # neither dump nor restore
        criu.restore(self.source, self._images, self._work, restore_options, timeout=300)

    def clean(self):
        self.source.drop_scratch(self._images)
        self.source.drop_scratch(self._work)


@dataclass
class Way:
    name: str
    move: Move
    # The copies of the tree's memory that this machine holds at once: the tree, its images, the
    # restored tree.
    copies: float

    @property
    def is_ppmr(self):
        return self.name in MODES

    def lacks_memory(self, mib):
        """Returns why there is too little memory for a tree of this size, or an empty string."""
        needed, free = self.copies * mib + SPARE_MIB, available_memory_bytes() / MIB
        if needed <= free:
            return ""
        return f"both nodes are on one machine: {mib / 1024:.0f} GiB need {needed / 1024:.0f} GiB of free memory, {free / 1024:.0f} GiB are free"


def ways_of(testbed, mounts):
    """Returns the ways, ppmr first, because the others are compared with ppmr."""
    at, to = testbed.source, testbed.target
    copies = {DEFAULT: 2, POST_COPY: 3, EAGER: 3}
    return [
        *(
            Way(name, MigrateMove(at, to, mounts, *options), copies[name])
            for name, options in MODES.items()
        ),
        Way(PLAIN, PlainMove(at), 2),
        Way(TAR, TarMove(at, to), 3),
        Way(PAGE_SERVER, PageServerMove(at, to), 2),
        Way(LAZY_PAGES, LazyPagesMove(at, to), 2),
    ]


@dataclass
class Moved:
    """One move."""

    downtime: float
    complete: float  # seconds from the last beat before the move until all memory is in place
    sent_mb: float  # over the link to the target
    pss_before_mib: float
    pss_after_mib: float
    summary: dict = field(default_factory=dict)  # of ppmr migrate


def move_tree(testbed, way, tree):
    """Moves a tree in one way and verifies it. Leaves the moved tree running."""
    move, label = way.move, testbed.label("move")
    before_mib = tree.pss_mib()
    move.prepare(label)
    try:
        testbed.await_fresh_memory()
        received = testbed.link.received_bytes(testbed.target)
        if isinstance(move, MigrateMove):  # this command ends later, when all memory is in place
            move.when_running = lambda: tree.arrived(move.target)
        timeline = move.move_tree(tree.pid, tree.dump_options, tree.dump_options)
        restored = now()
        # A moment at which the tree was frozen.
        frozen = timeline.extra.get("held", timeline.dump_done)
        tree.arrived(move.target)
        try:
            tree.await_beats(BEATS_AFTER, after=frozen)
        except LabError:
            move.check()  # raises the cause if the command has reported one
            raise
        move.finish()
        if "complete" not in timeline.extra:
            timeline.extra["complete"] = now() if way.name == LAZY_PAGES else restored
        sent = testbed.link.received_bytes(testbed.target) - received
        last, first = tree.gap(frozen, move.source, move.target)
        tree.check()
        between = timeline.extra.get("between", 0.0)
        moved = Moved(
            first - last - between,
            max(timeline.extra["complete"], first) - last - between,
            sent / 1e6,
            before_mib,
            tree.pss_mib(),
            getattr(move, "summary", {}),
        )
    except BaseException:
        with contextlib.suppress(LabError):  # the first error is the cause
            move.clean()
        raise
    move.clean()
    return moved


def what_failed(error):
    """Returns the first line of an error. For a failed CRIU, returns the first error in its log."""
    lines = str(error).splitlines()
    errors = [line for line in lines[1:] if "Error" in line and "rlimit" not in line]
    return ": ".join(line.strip(" :") for line in [lines[0], *errors[:1]])[:300]
