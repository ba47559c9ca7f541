"""What is to be measured, in order, with progress and time left; what is in the file already is not measured again."""
import sys
import time
from dataclasses import dataclass, field
from typing import Callable

from lab.node import LabError

from .spread import duration


@dataclass
class Item:
    section: str
    series: str
    name: str  # within its series
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


class Progress:
    """On a terminal one line that is written over, else a line per row."""

    def __init__(self, items, stream=sys.stderr):
        self._stream, self._count, self._done = stream, len(items), 0
        self._guessed_left = sum(item.guess_seconds for item in items)
        self._guessed_done = self._spent = 0.0

    def left(self):
        """Seconds, by how far off the guesses have been so far."""
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
    """Ctrl-C ends the nodes, too, so that the clean-up may fail on what is gone already."""
    while error and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def run(items, rows, progress=None):
    """Measures what is not in `rows` yet. A row that cannot be measured says why and the others go on. Returns the keys of those that failed."""
    keys = [item.key for item in items]
    if len(set(keys)) != len(keys):
        raise ValueError(
            f"the plan has a key twice: {sorted(key for key in keys if keys.count(key) > 1)[0]}"
        )
    todo = [item for item in items if item.key not in rows]
    progress = progress or Progress(todo)
    failed = []
    for item in todo:
        progress.begin(item)
        began = time.monotonic()
        try:
            outcome = item.measure()
        except LabError as error:
            if was_interrupted(error):
                raise
            # Not written down: a resumed run tries it again.
            print(f"\nbench: {item.key}: {error}", file=sys.stderr, flush=True)
            failed.append(item.key)
        else:
            rows.add(
                {
                    "key": item.key,
                    "section": item.section,
                    "series": item.series,
                    "parameters": item.parameters,
                    "unit": item.unit,
                    "results": outcome.results,
                    "facts": outcome.facts,
                    "not_measured": outcome.not_measured,
                    "spans": outcome.spans,
                    "also": outcome.also,
                    "seconds_spent": round(time.monotonic() - began, 1),
                }
            )
        progress.end(item, time.monotonic() - began)
    progress.close()
    return failed
