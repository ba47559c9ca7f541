"""Runs the rows of a plan in order, with progress and remaining time. Rows that the file already
contains are not measured again."""
import sys
import time
from dataclasses import dataclass, field
from typing import Callable

from lab.node import LabError
from vm.image import CannotRun

from .spread import duration


@dataclass
class Item:
    section: str
    series: str
    name: str  # name within its series
    parameters: dict
    unit: str
    measure: Callable  # () -> Outcome
    guess_seconds: float

    @property
    def key(self):
        return f"{self.section}/{self.series}/{self.name}"


@dataclass
class Outcome:
    results: dict = field(default_factory=dict)
    facts: dict = field(default_factory=dict)
    not_measured: dict = field(default_factory=dict)
    spans: dict = field(default_factory=dict)
    also: dict = field(default_factory=dict)
    curves: dict = field(default_factory=dict)


class Progress:
    """Shows the progress: on a terminal one line that is overwritten, else a line per row."""

    def __init__(self, items, stream=sys.stderr):
        self._stream, self._count, self._done = stream, len(items), 0
        self._guessed_left = sum(item.guess_seconds for item in items)
        self._guessed_done = self._spent = 0.0

    def left(self):
        """Returns the remaining seconds: the guesses, scaled by the ratio of measured to
        guessed time so far."""
        pace = self._spent / self._guessed_done if self._guessed_done else 1.0
        return self._guessed_left * pace

    def begin(self, item):
        text = f"[{self._done + 1}/{self._count}] {item.key}; about {duration(self.left())} left"
        if self._stream.isatty():
            print(f"\r\033[K{text[:150]}", end="", file=self._stream, flush=True)
        else:
            print(text, file=self._stream, flush=True)

    def end(self, item, seconds):
        self._done += 1
        self._guessed_left -= item.guess_seconds
        self._guessed_done += item.guess_seconds
        self._spent += seconds

    def close(self):
        if self._stream.isatty():
            print("\r\033[K", end="", file=self._stream, flush=True)


def was_interrupted(error):
    """Returns whether Ctrl-C led to this error. Ctrl-C ends the nodes, too, so the clean-up may
    raise an error in place of KeyboardInterrupt."""
    while error and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def run(items, rows, progress=None):
    """Measures the items that are not in `rows`. A failed item prints its error and does not stop
    the others. Returns the keys of those that failed."""
    keys = [item.key for item in items]
    if len(set(keys)) != len(keys):
        raise ValueError(
            f"the plan contains a key twice: {sorted(key for key in keys if keys.count(key) > 1)[0]}"
        )
    todo = [item for item in items if item.key not in rows]
    progress = progress or Progress(todo)
    failed = []
    for item in todo:
        progress.begin(item)
        began = time.monotonic()
        try:
            outcome = item.measure()
        except CannotRun as error:
            outcome = Outcome(not_measured={"the emulated machines": str(error)})
        except LabError as error:
            if was_interrupted(error):
                raise
            # A failed item is not added to the rows, so a resumed run tries it again.
            print(f"\nbench: {item.key}: {error}", file=sys.stderr, flush=True)
            failed.append(item.key)
            outcome = None
        if outcome:
            rows.add(
                {
                    "key": item.key,
                    "section": item.section,
                    "series": item.series,
                    "parameters": item.parameters,
                    "unit": item.unit,
                    **vars(outcome),
                    "seconds_spent": round(time.monotonic() - began, 1),
                }
            )
        progress.end(item, time.monotonic() - began)
    progress.close()
    return failed
