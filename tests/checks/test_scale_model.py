"""The model of the rates on larger machines, and what the report makes of it."""
import os
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench"))

from lab.node import LabError  # noqa: E402
from measure import report, scale, scale_model as model, thread_costs  # noqa: E402
from measure.rows import Rows  # noqa: E402

COSTS = {
    "read and encrypt": 0.35,
    "send": 0.1,
    "control messages of the source": 0.02,
    "receive and decrypt": 0.25,
    "control messages of the target": 0.03,
    "fill": 0.3,
}
FEW = {"readers": 1, "streams": 2, "fillers": 2}
MANY = {"readers": 8, "streams": 8, "fillers": 16}


def limits(*arguments, **options):
    return [(limit.name, limit.rate) for limit in model.bounds(COSTS, *arguments, **options)]


def test_nodes_that_share_cores_are_limited_by_the_sum_of_all_stages():
    [first, second, *_] = limits(FEW, 1, model.COPY, shared=True)
    assert first == ("the cores", pytest.approx(1 / 0.75))
    assert second == ("read and encrypt", pytest.approx(1 / 0.35))
    [first, *_] = limits(FEW, 2, model.COPY, shared=True)
    assert first == ("the cores", pytest.approx(2 / 0.75))


def test_one_thread_limits_where_there_are_many_cores():
    [first, second, *_] = limits(FEW, 64, model.COPY, 400)
    assert first == ("read and encrypt", pytest.approx(1 / 0.35))
    assert second == ("receive and decrypt", pytest.approx(2 / 0.25))


def test_more_threads_than_cores_do_not_help():
    found = dict(limits(MANY, 4, model.COPY))
    assert found["read and encrypt"] == pytest.approx(4 / 0.35)
    assert found["control messages of the source"] == pytest.approx(1 / 0.02)
    # the other stages of the node need the same cores
    assert found["the cores of the source"] == pytest.approx(4 / 0.47)
    assert found["the cores of the target"] == pytest.approx(4 / 0.28)


def test_link_carries_its_payload_and_does_not_limit_the_fill():
    [first, *_] = limits(MANY, 64, model.COPY, 10)
    assert first == ("the link", pytest.approx(1.25 * 1448 / 1538))
    assert "the link" not in dict(limits(MANY, 64, model.FILL, 10))
    assert "the link" not in dict(limits(MANY, 64, model.COPY))


def test_fill_is_a_phase_of_its_own():
    assert limits(FEW, 16, model.FILL) == [
        ("fill", pytest.approx(2 / 0.3)),
        ("the cores of the target", pytest.approx(16 / 0.3)),
    ]
    assert model.rate(COSTS, FEW, 1, model.FILL, shared=True) == pytest.approx(1 / 0.3)


def test_stage_that_costs_nothing_does_not_limit():
    free = {**COSTS, "control messages of the source": 0.0}
    names = [limit.name for limit in model.bounds(free, FEW, 2, model.COPY)]
    assert "control messages of the source" not in names


def test_prediction_is_off_by_the_same_factor_in_both_directions():
    assert model.off_by(1.2, 1.0) == pytest.approx(1.2)
    assert model.off_by(1.0, 1.2) == pytest.approx(1.2)


def test_costs_are_the_difference_between_a_large_and_a_small_move():
    large = {"bytes": 3e9, "stages": {"send": 0.5}, "phases": {"copy": 2.0, "fill": 0.8}}
    small = {"bytes": 1e9, "stages": {"send": 0.3}, "phases": {"copy": 1.0, "fill": 0.4}}
    assert scale.per_gb(large, small, "stages") == {"send": pytest.approx(0.1)}
    assert scale.per_gb(large, None, "phases")["fill"] == pytest.approx(0.8 / 3)
    assert scale.rates_of(large, small) == {"copy": pytest.approx(2), "fill": pytest.approx(5)}
    with pytest.raises(LabError, match="too busy"):
        scale.rates_of(small | {"bytes": 3e9}, large | {"bytes": 1e9})


def test_threads_of_this_process_are_seen_with_their_names():
    found = thread_costs.times_of(os.getpid())
    name, seconds, user = found[os.getpid(), os.getpid()]
    assert name == Path("/proc/self/comm").read_text().strip()
    assert 0 < seconds and 0 <= user <= seconds
    assert thread_costs.times_of(2**22 + 1) == {}  # more than the largest pid


def row_of(measured, cores=2):
    counts = {str(count): MANY for count in model.CORES} | {"2": FEW}
    return {
        "key": "scale/copy and fill/1024 MiB",
        "section": "scale",
        "series": "copy and fill",
        "parameters": {"size_mib": 1024, "cores": cores, "threads": counts},
        "unit": "GB/s",
        "results": measured,
        "also": {scale.COSTS: {name: [cost] for name, cost in COSTS.items()}},
        "facts": {},
        "not_measured": {},
    }


def test_report_shows_prediction_and_measurement_side_by_side(tmp_path):
    rows = Rows(tmp_path / "rows", {"host": "a machine"})
    assert scale.worst(rows) is None
    rows.add(row_of({"copy, 1 core": [1.0], "copy, 2 cores": [2.0, 2.4, 3.0]}))
    assert scale.worst(rows) == pytest.approx(4 / 3)
    text = report.write(rows, tmp_path)[0].read_text()
    assert "| copy, 1 core | 1.33 | 1.00 | 1.33 | the cores |" in text
    assert "| copy, 2 cores | 2.67 | 2.40 | 1.11 | the cores |" in text
    tree = "copy, rounds of a tree that runs"
    assert f"| {tree} | 16 | 400 Gb/s | 2.86 | read and encrypt | receive and decrypt |" in text
    assert "| copy, frozen tree | 16 | 100 Gb/s | 11.8 | the link | read and encrypt | 22.9 |" in text
    assert "| fill | 64 |  | 53.3 | fill | the cores of the target | 213 |" in text
