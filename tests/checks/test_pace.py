"""The pace of the machine (lab/pace.py): how its measured times become time limits."""
import pytest

from lab import pace


@pytest.fixture(autouse=True)
def measured_anew(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    monkeypatch.setenv("PPMR_SLOWNESS", "1")
    pace.slowness.cache_clear()
    yield monkeypatch
    pace.slowness.cache_clear()


@pytest.mark.parametrize(
    "loop_ms, start_ms, factor",
    [
        (pace.LOOP_MS_REFERENCE, pace.START_MS_REFERENCE, 1),
        (pace.LOOP_MS_REFERENCE / 3, pace.START_MS_REFERENCE / 3, 1),
        (pace.LOOP_MS_REFERENCE * 2, pace.START_MS_REFERENCE, 2),
        (pace.LOOP_MS_REFERENCE, pace.START_MS_REFERENCE * 3, 3),
        (pace.LOOP_MS_REFERENCE * 100, pace.START_MS_REFERENCE, pace.FACTOR_MAX),
    ],
)
def test_slowness_follows_the_worse_time_from_one_to_the_maximum(loop_ms, start_ms, factor):
    assert pace.factor_of(loop_ms, start_ms) == pytest.approx(factor)


def test_slowness_is_measured_once_and_inherited_by_the_processes_of_a_parallel_run(measured_anew):
    measured_anew.delenv("PPMR_SLOWNESS")
    measured_anew.setattr(pace, "_mean_ms", lambda action, count: pace.LOOP_MS_REFERENCE * 2)
    assert pace.slowness() == pace.FACTOR_MAX  # a process start takes as long as the loop
    measured_anew.setattr(pace, "_mean_ms", None)
    pace.slowness.cache_clear()
    assert pace.slowness() == pace.FACTOR_MAX


def test_patience_grows_with_slowness_and_processes_up_to_the_maximum(measured_anew):
    assert pace.patience(10) == 10
    measured_anew.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    assert pace.patience(10) == 30
    measured_anew.setenv("PPMR_SLOWNESS", "1.5")
    pace.slowness.cache_clear()
    assert pace.patience(10) == pytest.approx(45)
    measured_anew.setenv("PYTEST_XDIST_WORKER_COUNT", "30")
    assert pace.patience(10) == 10 * pace.FACTOR_MAX
