"""Statistics of a few samples: the median and the extremes."""
import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float
    count: int

    @property
    def relative(self):
        """Returns half the distance between the extremes, divided by the median."""
        return (self.high - self.low) / 2 / self.median if self.median else math.inf


def spread(samples):
    samples = [float(sample) for sample in samples]
    if not samples:
        raise ValueError("no samples")
    if not all(map(math.isfinite, samples)):
        raise ValueError(f"samples are not finite: {samples}")
    return Spread(statistics.median(samples), min(samples), max(samples), len(samples))


def ratio(samples, against):
    """Returns the median of the first samples divided by the median of the second; None if one
    of the two was not measured."""
    if not samples or not against:
        return None
    base = spread(against).median
    return spread(samples).median / base if base else None


def size_text(count):
    """1048576 -> 1 MiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:g} {unit}"
    return f"{count} B"


def figure(value):
    """Returns three significant digits: 12.3, 0.123, 1230."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 4)}f}"


def duration(seconds):
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02} min"
