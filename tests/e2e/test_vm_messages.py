"""`ppmr migrate` of processes that use RDMA themselves and release it for a move
(jobs/rdma_release.h).

Two ends (tests/verbs_messages) on two machines exchange messages over verbs and check every byte.
"""
import itertools
import random
import signal
import time

import pytest

from lab.migrations import Migrations
from lab.node import LabError, wait_until
from lab.programs import Line, find_program

MIB = 1 << 20
MOVED = 0
LONG_MOVES, LONG_KILLS, LONG_BYTES = 50, 12, 1 << 30
_numbers = itertools.count(1)


class End:
    """One end of the exchange. `node` is the machine on which it runs now."""

    def __init__(self, node, name, partner, directory, message_bytes, rate, **place):
        self.node, self.name, self.other = node, name, None
        self.out, self.log = directory / f"{name}.out", directory / f"{name}.log"
        options = {
            "--name": name,
            "--partner": partner,
            "--directory": directory,
            "--message-bytes": message_bytes,
            "--rate": rate,
        }
        words = itertools.chain.from_iterable(options.items())
        self.pid = node.spawn([find_program("verbs_ends"), *words], log=self.log, **place)
        wait_until(lambda: self.out.exists() and self.texts(), 60, f"end {name} to start")

    def texts(self):
        text = self.out.read_text()
        return text[: text.rfind("\n") + 1].splitlines()

    def last(self):
        """Returns the newest line, which must report no error."""
        text = self.texts()[-1]
        line = Line(text.removeprefix("final "))
        complaint = self.log.read_text()
        if line["wrong"] or line["twice"] or line["missing"] or "WRONG" in complaint:
            raise LabError(f"end {self.name}: {complaint}; its last line: {text}")
        return line

    def wait_for(self, what, condition, timeout=180):
        def there():
            line = self.last()
            if self.other:
                self.other.last()
            return line if condition(line) else None

        try:
            return wait_until(there, timeout, f"end {self.name}: {what}", interval=0.05)
        except LabError as late:
            complaint = f"{self.texts()[-1]}; its output: {self.log.read_text()[-1000:]}"
            raise LabError(f"{late}; its last line: {complaint}") from None

    def await_traffic(self, count=20):
        """Waits for further messages in both directions."""
        before = self.last()
        return self.wait_for(
            f"{count} more messages in both directions",
            lambda line: line["received"] >= before["received"] + count
            and line["acknowledged"] >= before["acknowledged"] + count,
        )


class Ends:
    """Both ends, and the migrations from each machine to the other."""

    def __init__(self, machines, migrations, message_bytes=32 << 10, rate=50):
        self.machines, self.migrations = machines, migrations
        directory = machines.home / f"ends-{next(_numbers)}"
        directory.mkdir()
        a, b = machines.nodes
        self.x = End(a, "x", "y", directory, message_bytes, rate)
        # If processes of both machines had the same pid, they could not move to the other machine.
        self.y = End(b, "y", "x", directory, message_bytes, rate, first_pid=self.x.pid + 2000)
        assert self.x.pid != self.y.pid
        self.x.other, self.y.other = self.y, self.x
        self.await_traffic()

    def from_node(self, node):
        return next(pair for pair in self.migrations if pair.source_at is node)

    def start_move(self, end):
        return self.from_node(end.node).start_migrate(end.pid)

    def move(self, end):
        pair = self.from_node(end.node)
        before = end.last()
        done = pair.migrate(end.pid, timeout=180)
        assert done.code == MOVED, done.output + pair.logs(2)
        released = [event for event in done.events if event.get("event") == "rdma-released"]
        assert len(released) == 1, done.output
        end.node = pair.target_at
        end.wait_for(
            f"resumes on machine {end.node.name}",
            lambda line: line["node"] == end.node.name
            and line["resumes"] > before["resumes"]
            and not line["away"],
        )
        self.await_traffic()

    def await_traffic(self, count=20):
        for end in (self.x, self.y):
            end.await_traffic(count)

    def finish(self):
        """Ends both and compares their counts: nothing was lost or doubled. Returns the bytes that
        arrived."""
        ends = (self.x, self.y)
        for end in ends:
            end.node.signal(end.pid, signal.SIGTERM)
        x, y = [
            end.wait_for("its final line", lambda _, end=end: end.texts()[-1].startswith("final "))
            for end in ends
        ]
        for end in ends:
            end.node.await_end(end.pid, timeout=60)
        assert x["acknowledged"] == x["sent"] == y["received"], (x, y)
        assert y["acknowledged"] == y["sent"] == x["received"], (x, y)
        return x["bytes"] + y["bytes"]

    def kill(self):
        for end in (self.x, self.y):
            for node in self.machines.nodes:
                node.signal(end.pid, signal.SIGKILL)


@pytest.fixture
def migrations(ppmr, machines):
    """Returns the migrations from machine a to machine b, and those back."""
    number = next(_numbers)
    source_options = ["--pool-size", "16MiB", "--transport", "verbs"]
    target_options = ["--memory-limit", "256MiB", "--pool-size", "96MiB"]
    a, b = machines.nodes
    with Migrations(
        a, b, f"/tmp/messages-{number}", source_options, target_options, name=f"there{number}"
    ) as there, Migrations(
        b, a, f"/tmp/messages-{number}", source_options, target_options, name=f"back{number}"
    ) as back:
        for pair in (there, back):
            pair.await_ready()
        yield there, back


@pytest.fixture
def make_ends(machines, migrations):
    made = []

    def make(**options):
        made.append(Ends(machines, migrations, **options))
        return made[-1]

    yield make
    for ends in made:
        ends.kill()


def test_end_moves_there_and_back_under_traffic(make_ends):
    ends = make_ends()
    for _ in range(2):
        ends.move(ends.x)
    line = ends.x.last()
    assert (line["node"], line["releases"], line["resumes"]) == ("a", 2, 2)
    ends.finish()


@pytest.mark.long
def test_messages_are_sent_again_after_a_connection_broke(machines, make_ends):
    ends = make_ends()
    machines.cut_link()
    try:
        for end in (ends.x, ends.y):
            end.wait_for("loses its connection", lambda line: line["broken"] > 0)
    finally:
        machines.restore_link()
    ends.await_traffic()
    assert ends.x.last()["sent_again"] > 0
    ends.finish()


def await_release(ends, end, running):
    """Waits until the end obeys ppmr's request, or has obeyed it."""
    before = end.last()["releases"]

    def begun(line):
        if not running.running() and not line["releasing"]:
            raise LabError(f"ppmr migrate ended before the release: {running.wait(1).output}")
        return line["releasing"] or line["releases"] > before

    return end.wait_for("begins to release", begun)


@pytest.mark.long
def test_end_resumes_by_itself_when_ppmr_is_killed_during_release(make_ends):
    ends = make_ends()
    x, y = ends.x, ends.y
    before = x.last()
    # A partner that does not answer makes the release last for its whole time limit of 2 s. The
    # partner also does not acknowledge the messages that its device receives, so these messages
    # arrive twice.
    y.node.signal(y.pid, signal.SIGSTOP)
    try:
        running = ends.start_move(x)
        line = await_release(ends, x, running)
        running.signal(signal.SIGKILL)
        assert line["releasing"], "the release had ended before ppmr was killed"
        x.wait_for("is away", lambda line: line["releases"] > before["releases"])
    finally:
        y.node.signal(y.pid, signal.SIGCONT)
    x.wait_for("resumes", lambda line: line["resumes"] > before["resumes"] and not line["away"])
    assert x.last()["node"] == "a"
    ends.await_traffic()
    assert x.last()["sent_again"] > 0 and y.last()["discarded"] > 0
    ends.from_node(x.node).recover(check=False)
    ends.move(x)
    ends.finish()


def kill_during_move(ends, end, random_, during):
    """Kills `ppmr migrate` at a random moment. Recovery then decides on which machine the end
    runs.

    Returns whether ppmr still ran.
    """
    pair = ends.from_node(end.node)
    before = end.last()
    running = ends.start_move(end)
    await_release(ends, end, running)
    if during == "resume":
        # The end writes its first line on the new machine shortly before or after the request to
        # resume.
        end.wait_for(
            "runs on the other machine or here again",
            lambda line: line["node"] != end.node.name or line["resumes"] > before["resumes"],
        )
    time.sleep(random_.uniform(0, 0.5))
    killed = running.running()
    running.kill()
    recovered = pair.recover(timeout=120, check=False)
    line = end.wait_for(
        f"resumes somewhere; ppmr's recovery: {recovered.output}",
        lambda line: line["resumes"] > before["resumes"] and not line["away"],
    )
    end.node = next(node for node in ends.machines.nodes if node.name == line["node"])
    ends.await_traffic()
    return killed


@pytest.mark.long
def test_ends_survive_many_moves_and_kills(make_ends):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    ends = make_ends(message_bytes=64 << 10, rate=60)
    steps = ["move"] * LONG_MOVES + ["release", "resume"] * (LONG_KILLS // 2)
    random_.shuffle(steps)
    for number, step in enumerate(steps, start=1):
        end = random_.choice([ends.x, ends.y])
        began = time.monotonic()
        if step == "move":
            ends.move(end)
        else:
            killed = kill_during_move(ends, end, random_, step)
            step += ", ppmr killed" if killed else ", ppmr had ended"
        line = end.last()
        print(
            f"{number}: {step} of {end.name}, now on {end.node.name}, {time.monotonic() - began:.1f} s,"
            f" connections {line['connections']}, sent again {line['sent_again']}",
            flush=True,
        )

    def carried():
        return ends.x.last()["bytes"] + ends.y.last()["bytes"]

    wait_until(lambda: carried() >= LONG_BYTES, 1800, f"{LONG_BYTES} bytes", interval=1)
    total = ends.finish()
    print(f"{total / MIB:.0f} MiB arrived")
    assert total >= LONG_BYTES
