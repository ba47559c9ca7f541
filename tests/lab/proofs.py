"""Checks that the process on the target continues the computation of the source: claims about a
steady worker."""
from .node import LabError
from .programs import check_continuity, gap_between


class Before:
    """The state of a steady worker before its move."""

    def __init__(self, worker):
        self.audit = worker.audit()
        self.pid, self.child = worker.pid, worker.lines()[-1]["child"]
        self.threads = worker.thread_count()
        self.offset = worker.offset()


def prove(worker, before, source, target):
    """Returns [(claim, holds, detail), ...]. The worker must have run on `target` for a while."""
    claims = []

    def claim(what, check):
        try:
            claims.append((what, True, check()))
        except (LabError, OSError) as error:
            claims.append((what, False, str(error)))

    def require(condition, sentence):
        if not condition:
            raise LabError(sentence)

    lines = worker.lines()

    def moved():
        last, first = gap_between(lines, source, target)
        source.await_end(before.pid)
        return f"last line on {source.name}: {last['line']}, first line on {target.name}: {first['line']}"

    def memory():
        audit = worker.audit()
        require(
            audit["digest"] == before.audit["digest"],
            f"digest {audit['digest']} on {target.name}, {before.audit['digest']} on {source.name}",
        )
        require(
            audit["wrong_words"] == 0 and audit["digest"] == audit["expected"],
            f"{audit['wrong_words']} words differ from their seed",
        )
        return f"digest {audit['digest']}, as before; every word matches its seed"

    def output():
        check_continuity(lines)
        return f"{len(lines)} numbered lines, none missing, none repeated"

    def pids():
        now = lines[-1]
        require(
            (now["pid"], now["child"]) == (before.pid, before.child),
            f"{now['pid']} and {now['child']}, were {before.pid} and {before.child}",
        )
        require(
            target.alive(before.pid) and target.alive(before.child),
            f"{before.pid} or {before.child} does not run on {target.name}",
        )
        return f"{before.pid} and its child {before.child}, as before"

    def offset():
        # The worker writes during the check, so its offset is between the file sizes before and
        # after.
        path = worker.directory / "output"
        low = path.stat().st_size
        at = worker.offset()
        high = path.stat().st_size
        require(low <= at <= high and at > before.offset, f"offset {at} in a file of {high} bytes")
        return f"{at}, the size of the output: no overwritten bytes, no hole"

    def timer():
        last, first = gap_between(lines, source, target)
        since = lines[-1]["ticks"] - first["ticks"]
        require(first["ticks"] >= last["ticks"], f"{first['ticks']} ticks after {last['ticks']}")
        require(since > 0, f"no tick on {target.name}")
        return f"{last['ticks']} ticks on {source.name}, {since} more on {target.name}"

    def threads():
        require(
            worker.thread_count() == before.threads,
            f"{worker.thread_count()} threads, were {before.threads}",
        )
        last, _ = gap_between(lines, source, target)
        walked = [now - then for now, then in zip(lines[-1]["steps"], last["steps"])]
        require(all(steps > 0 for steps in walked), f"steps since the move: {walked}")
        return f"{before.threads}; each continues its chain ({', '.join(map(str, walked))} steps)"

    def child():
        last, _ = gap_between(lines, source, target)
        require(lines[-1]["served"] == lines[-1]["line"], "the child has lost count")
        return f"{last['served']} answers on {source.name}, {lines[-1]['served'] - last['served']} more on {target.name}, through the same pipes"

    for what, check in (
        ("moved", moved),
        ("memory", memory),
        ("output", output),
        ("pids", pids),
        ("file offset", offset),
        ("timer", timer),
        ("threads", threads),
        ("child", child),
    ):
        claim(what, check)
    return claims
