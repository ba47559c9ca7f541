"""A performance target, and whether the rows of a run reach it."""
from dataclasses import dataclass
from typing import Callable, Optional

from .spread import figure


@dataclass(frozen=True)
class Target:
    what: str
    wanted: float
    value: Callable  # rows -> number, or None if it was not measured
    at_least: bool = True
    unit: str = "x"  # x, %, s, CPU-s/GB ...

    def verdict(self, rows):
        value = self.value(rows)
        if value is None:
            return Verdict(self, None, None)
        return Verdict(self, value, value >= self.wanted if self.at_least else value <= self.wanted)


@dataclass(frozen=True)
class Verdict:
    target: Target
    value: Optional[float]
    reached: Optional[bool]

    def text(self):
        if self.value is None:
            return "not measured in this run"
        if self.reached:
            return "reached"
        short = abs(self.target.wanted - self.value) / self.target.wanted
        return f"missed by {100 * short:.0f}%"


def number(value, unit):
    if unit == "%":
        return f"{100 * value:.0f}%"
    return f"{figure(value)} x" if unit == "x" else f"{figure(value)} {unit}"
