"""How long a test may wait on this machine. The limits in tests are for the reference machine, with
one test at a time.

    patience(10)     10 s on the reference machine; more on a slower one, and beside other tests
    slowness()       for times that are part of what a test shows, such as a --peer-timeout

A wait helper (`wait_until`, `Commands.run`, `World.run` ...) applies patience() itself, so a test
passes it plain seconds. A test that calls Popen.wait or subprocess.run itself applies patience().

The first call measures the machine, in about 0.2 s. It stores the result in $PPMR_SLOWNESS, which
the processes of a parallel run inherit: they would measure each other. Set it to try a slow
machine.
"""
import functools
import os
import subprocess
import time

# Two virtual CPUs of an AMD EPYC, quiet, Python 3.11. A faster machine changes no limit.
LOOP_MS_REFERENCE = 20.0
START_MS_REFERENCE = 0.87
FACTOR_MAX = 6  # a machine slower than this gets no more time: a hanging test must end, too

_LOOPS, _STARTS = 5, 50


def _loop():
    value = 1
    for _ in range(100_000):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF


def _start():
    subprocess.run(["/bin/true"], check=True)


def _mean_ms(action, count):
    began = time.perf_counter()
    for _ in range(count):
        action()
    return (time.perf_counter() - began) * 1000 / count


def _clamped(factor):
    return min(max(factor, 1.0), FACTOR_MAX)


def factor_of(loop_ms, start_ms):
    """Returns the slowness of a machine with these times: the larger of the two ratios."""
    return _clamped(max(loop_ms / LOOP_MS_REFERENCE, start_ms / START_MS_REFERENCE))


@functools.lru_cache(maxsize=None)
def slowness():
    """How many times slower than the reference machine this one is, from 1 to FACTOR_MAX."""
    if "PPMR_SLOWNESS" not in os.environ:
        measured = factor_of(_mean_ms(_loop, _LOOPS), _mean_ms(_start, _STARTS))
        os.environ["PPMR_SLOWNESS"] = f"{measured:.2f}"
    return _clamped(float(os.environ["PPMR_SLOWNESS"]))


def workers():
    """The number of test processes of a parallel run (pytest-xdist), else 1."""
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))


def patience(seconds):
    """The time limit on this machine, of what takes at most `seconds` on the reference machine."""
    return seconds * _clamped(slowness() * workers())
