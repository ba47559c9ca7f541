"""The benchmark driver: statistics, resuming after an interruption, and reports."""
import dataclasses
import io
import json
import math
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench"))

from lab.node import LabError  # noqa: E402
from measure import aggregation, application, epoch_costs, epochs, jobs, moves  # noqa: E402
from measure import network, pictures, pipeline, plan, report, restore, shapes  # noqa: E402
from measure import stored, testbed  # noqa: E402
from measure.pictures import drawn_curves, drawn_values, drawn_ways, until_complete  # noqa: E402
from measure.rounds import alternate  # noqa: E402
from measure.rows import Rows, RowsError  # noqa: E402
from measure.shape_trees import Beat, gap  # noqa: E402
from measure.spread import duration, figure, ratio, size_text, spread  # noqa: E402
from measure.verdict import Target  # noqa: E402
from measure.targets import TARGETS  # noqa: E402
from measure.testbed import EFFORTS, flags  # noqa: E402
from measure.touches import slower_than  # noqa: E402

MACHINE = {"host": "a machine", "commit": "abc"}
CHAPTERS = (aggregation, application, epochs, jobs, moves, network, pipeline, restore, shapes)


def row(key, **changes):
    return {
        "key": key,
        "section": "s",
        "series": "t",
        "parameters": {},
        "unit": "GB/s",
        "results": {"ppmr": [1.0]},
        "facts": {},
        "not_measured": {},
        **changes,
    }


def item(name, measure, guess=1.0):
    return plan.Item("s", "t", name, {}, "GB/s", measure, guess)


def test_spread_has_median_and_extremes():
    found = spread([3, 1, 2, 10])
    assert (found.median, found.low, found.high, found.count) == (2.5, 1, 10, 4)
    assert found.relative == pytest.approx(9 / 2 / 2.5)


@pytest.mark.parametrize("samples", [[], [math.nan], [1, math.inf]])
def test_invalid_samples_have_no_spread(samples):
    with pytest.raises(ValueError):
        spread(samples)


def test_ratio_compares_medians():
    assert ratio([2, 4, 100], [1, 2, 3]) == 2
    assert ratio([], [1]) is None
    assert ratio([1], []) is None


def test_runs_of_jobs_are_compared_with_the_plain_run_of_their_round():
    def of(*seconds):
        return [jobs.Run(each, each, [], 0) for each in seconds]

    more, ratios = jobs.beside_plain({jobs.PLAIN: of(20, 40), "one move": of(22, 43)})
    assert more == {"one move": [2, 3]}
    assert ratios == {"one move": [1.1, 1.075]}
    with pytest.raises(ValueError):
        jobs.beside_plain({jobs.PLAIN: of(20), "one move": of(22, 43)})


def test_user_options_replace_the_same_options_of_the_plan():
    assert flags({"--pool-size": 1, "--discard": None}, []) == ["--pool-size", 1, "--discard"]
    assert flags({"--pool-size": 1, "--discard": None}, ["--pool-size=8MiB"]) == [
        "--discard",
        "--pool-size=8MiB",
    ]


def test_numbers_sizes_and_durations_are_formatted():
    assert [figure(value) for value in (0, 12.345, 0.12345, 1234.5, 0.00012)] == [
        "0",
        "12.3",
        "0.123",
        "1234",
        "0.0001",
    ]
    assert [size_text(value) for value in (4096, 1 << 20, 3 << 29, 100)] == [
        "4 KiB",
        "1 MiB",
        "1.5 GiB",
        "100 B",
    ]
    assert [duration(value) for value in (59.4, 61, 3725)] == ["59 s", "1 min 01 s", "1 h 02 min"]


def test_measuring_order_alternates_and_first_round_is_not_counted():
    order = []

    def way(name):
        def sample():
            order.append(name)
            return len(order)

        return sample

    samples = alternate({"a": way("a"), "b": way("b")}, runs=2)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert samples == {"a": [4, 5], "b": [3, 6]}


def test_rows_persist_and_rows_of_another_commit_are_refused(tmp_path):
    Rows(tmp_path / "rows", MACHINE).add(row("one"))
    again = Rows(tmp_path / "rows", MACHINE)
    assert "one" in again and again.get("one")["results"] == {"ppmr": [1.0]}
    with pytest.raises(RowsError, match="another commit"):
        Rows(tmp_path / "rows", {**MACHINE, "commit": "def"})


def test_incomplete_last_line_of_results_file_is_dropped(tmp_path):
    rows = Rows(tmp_path / "rows", MACHINE)
    rows.add(row("one"))
    with open(rows.path, "a") as file:
        file.write('{"key": "two", "sec')
    again = Rows(rows.path, MACHINE)
    assert [found["key"] for found in again] == ["one"]
    again.add(row("two"))
    assert [json.loads(line).get("key") for line in rows.path.read_text().splitlines()] == [
        None,
        "one",
        "two",
    ]


def test_results_file_that_is_foreign_or_missing_is_refused(tmp_path):
    (tmp_path / "rows").write_text("foreign\n")
    with pytest.raises(RowsError, match="not a file of figures"):
        Rows(tmp_path / "rows", MACHINE)
    with pytest.raises(RowsError, match="no figures"):
        Rows(tmp_path / "none")


def test_row_without_samples_needs_a_reason(tmp_path):
    rows = Rows(tmp_path / "rows", MACHINE)
    with pytest.raises(RowsError, match="no samples"):
        rows.add(row("empty", results={"ppmr": []}))
    rows.add(row("empty", results={}, not_measured={"Shared": "no network file system"}))


def test_plan_continues_after_failure_and_retries_it_when_resumed(tmp_path):
    measured = []

    def works(name):
        def measure():
            measured.append(name)
            return plan.Outcome({"ppmr": [1.0]})

        return measure

    def fails():
        raise LabError("the cable is out")

    rows = Rows(tmp_path / "rows", MACHINE)
    quiet = plan.Progress([], io.StringIO())
    assert plan.run(
        [item("one", works("one")), item("two", fails), item("three", works("three"))], rows, quiet
    ) == ["s/t/two"]
    assert (
        plan.run(
            [item("one", works("one")), item("two", works("two"))], Rows(rows.path, MACHINE), quiet
        )
        == []
    )
    assert measured == ["one", "three", "two"]


def test_interrupt_ends_benchmark_plan_even_if_cleanup_fails(tmp_path):
    def interrupted():
        try:
            raise KeyboardInterrupt
        finally:
            raise LabError("the node is gone")

    with pytest.raises(LabError) as caught:
        plan.run(
            [item("one", interrupted), item("two", None)],
            Rows(tmp_path / "rows", MACHINE),
            plan.Progress([], io.StringIO()),
        )
    assert plan.was_interrupted(caught.value)
    assert not plan.was_interrupted(LabError("the cable is out"))


def test_plan_with_duplicate_key_is_refused(tmp_path):
    with pytest.raises(ValueError, match="twice"):
        plan.run([item("one", None), item("one", None)], Rows(tmp_path / "rows", MACHINE))


def test_remaining_time_follows_measured_durations():
    items = [item(str(number), None, guess=2.0) for number in range(4)]
    progress = plan.Progress(items, io.StringIO())
    assert progress.left() == 8
    progress.begin(items[0])
    progress.end(items[0], 4.0)  # twice as long as estimated
    assert progress.left() == 12


def test_performance_target_is_reached_missed_or_not_measured(tmp_path):
    rows = Rows(tmp_path / "rows", MACHINE)
    half = Target("half", 0.5, lambda rows: 0.5, unit="%")
    assert (half.verdict(rows).reached, half.verdict(rows).text()) == (True, "reached")
    assert Target("all", 1.0, lambda rows: 0.5, unit="%").verdict(rows).text() == "missed by 50%"
    assert (
        Target("little", 0.25, lambda rows: 0.5, at_least=False).verdict(rows).text()
        == "missed by 100%"
    )
    assert Target("none", 1.0, lambda rows: None).verdict(rows).text() == "not measured in this run"


def test_report_has_medians_ratios_and_reasons_for_gaps(tmp_path):
    rows = Rows(tmp_path / "rows", {**MACHINE, "effort": "quick"})
    rows.add(
        row(
            "aggregation/writers and write size/1 x 1 MiB",
            section="aggregation",
            series="writers and write size",
            parameters={"writers": 1, "request": 1 << 20},
            results={"ppmr": [3.0, 4.0, 5.0], "null sink": [8.0]},
        )
    )
    rows.add(
        row(
            "moves/size/64 MiB",
            section="moves",
            series="size",
            unit="s",
            results={"ppmr, lazy": [0.1], "Local": [1.5]},
            not_measured={"Shared": "no network file system"},
        )
    )
    path, _ = report.write(rows, tmp_path)
    text = path.read_text()
    assert "| ppmr | 4.00 (3.00 to 5.00) |  |\n| null sink | 8.00 | 50% |" in text
    assert "| Local | 1.50 | 15.0 x |" in text
    assert "- Shared: not measured: no network file system" in text
    assert (
        "aggregation, 1 writer, 1 MiB writes, of the null sink | at least 85% | 50% | missed by 41% |"
        in text
    )
    assert "This was not a full run" in text


def shape_row(name, downtimes, **changes):
    return row(
        f"shapes/downtime/{name}",
        section="shapes",
        series="downtime",
        unit="s",
        parameters={"shape": name, "mib": 64},
        results={way: [seconds] for way, seconds in downtimes.items()},
        **changes,
    )


def test_table_of_shapes_compares_few_ways_and_names_missing_values(tmp_path):
    rows = Rows(tmp_path / "rows", MACHINE)
    ways = {"ppmr": 0.5, "ppmr --eager": 0.6, "plain CRIU, tmpfs": 1.0, "tmpfs + tar": 1.5}
    also = {"received by the target, MB": {"ppmr": [70.0], "ppmr --eager": [71.0]}}
    rows.add(shape_row("64 MiB", ways, also=also))
    reason = {"tmpfs + tar": "too little memory"}
    rows.add(shape_row("8 GiB", {"ppmr": 2.0}, not_measured=reason))
    text = report.write(rows, tmp_path)[0].read_text()
    assert "| plain CRIU, tmpfs / ppmr | tmpfs + tar / ppmr |\n" in text
    assert "| 64 MiB | 0.500 | 0.600 | 1.00 | 1.50 | 2.00 x | 3.00 x |" in text
    assert "| 8 GiB | 2.00 | - | - | - |  |  |" in text
    assert "- tmpfs + tar (8 GiB): not measured: too little memory" in text
    assert "| ppmr --eager | 71.0 |  |" in text


def verdict(rows, what):
    [target] = [target for target in TARGETS if target.what == what]
    return target.verdict(rows)


def test_targets_of_shapes_come_from_their_rows(tmp_path):
    rows = Rows(tmp_path / "rows", MACHINE)
    worst = "downtime of the worst shape, default mode, of tmpfs + tar + restore"
    assert verdict(rows, worst).value is None
    sparse = "sparse, 65,536 single pages"
    in_place = {"all memory in place": {"ppmr": [1.0], "ppmr --post-copy": [0.5]}}
    rows.add(
        shape_row(
            sparse, {"ppmr": 0.75, "ppmr --post-copy": 0.4, "tmpfs + tar": 1.5}, also=in_place
        )
    )
    threads = {"ppmr": 3.0, "plain CRIU, tmpfs": 2.0, "tmpfs + tar": 2.5}
    rows.add(shape_row("2,000 threads", threads))
    assert verdict(rows, worst).value == pytest.approx(1.2)
    assert not verdict(rows, worst).reached
    assert verdict(rows, f"{sparse}, filled by ppmr").value == pytest.approx(4 * 65536)
    assert verdict(rows, f"{sparse}, filled by ppmr --post-copy").value == pytest.approx(655360)
    assert verdict(rows, f"downtime of {sparse}, default mode").reached
    of_plain = verdict(
        rows,
        "downtime of 2,000 threads, default mode, of plain CRIU's dump and restore in tmpfs",
    )
    assert (of_plain.value, of_plain.reached) == (1.5, False)


def test_gap_is_between_the_beats_around_the_move():
    beats = [Beat(1, "source"), Beat(2, "source"), Beat(8, "target"), Beat(7, "target")]
    assert gap(beats, 5, "source", "target") == (2, 7)
    within_a_beat = [*beats, Beat(3, "target")]
    assert gap(within_a_beat, 5, "source", "target") == (3, 7)
    for wrong in ([Beat(4, "other")], [Beat(3, "target"), Beat(4, "target")], [Beat(6, "source")]):
        with pytest.raises(LabError, match="expected source and target"):
            gap([*beats, *wrong], 5, "source", "target")


def test_curve_of_slow_touches_keeps_the_slowest():
    curve = slower_than(list(range(1, 1001)))
    shares = [share for _, share in curve]
    assert curve[0] == [1e-6, 1.0] and curve[-1] == [1e-3, 1 / 1000]
    assert shares == sorted(shares, reverse=True) and len(curve) < 100
    at_least = [at for at, share in curve if share >= 0.1]
    assert at_least[-1] == pytest.approx(0.0009, rel=0.02)


def test_report_fits_a_line_to_what_grows(tmp_path):
    rows = Rows(tmp_path / "rows", MACHINE)
    for n, requests in ((2, 7.0), (4, 11.0), (8, 19.0)):
        rows.add(
            row(
                f"job growth/nodes/{n}",
                section="job growth",
                series="nodes",
                unit="s",
                parameters={"n": n},
                results={"start": [1.0], "end": [2.0]},
                facts={"requests": requests},
            )
        )
    text = report.write(rows, tmp_path)[0].read_text()
    assert "| requests | 3.00 + 2.00 n | 0 |" in text
    assert "| 2 | 1.00 | 2.00 |\n" in text  # without a ratio


def test_targets_of_jobs_come_from_their_rows(tmp_path):
    rows = Rows(tmp_path / "rows", MACHINE)
    undisturbed = "run time of LAMMPS in job nodes, of plain mpirun's"
    stalls = "evacuations that stall a ring of ranks for at most 0.3 s more than the downtime"
    assert verdict(rows, undisturbed).value is None and verdict(rows, stalls).value is None
    ways = {"plain mpirun": [60.0], "job nodes, 0 moves": [60.3], "job nodes, 3 moves": [64.5]}
    of_jobs = {"section": "jobs", "unit": "s"}
    rows.add(row("jobs/run time/LAMMPS", series="run time", results=ways, **of_jobs))
    more = {"gap - downtime": {"gap": [0.1, 0.2, 0.3, 0.4]}}
    rows.add(row("jobs/stall/ring", series="stall", also=more, **of_jobs))
    assert verdict(rows, undisturbed).reached
    moves = verdict(rows, "3 evacuations of LAMMPS, of 60 s")
    assert (moves.value, moves.reached) == (pytest.approx(0.075), False)
    assert (verdict(rows, stalls).value, verdict(rows, stalls).reached) == (0.75, False)


def test_report_contains_row_for_table_in_bench_readme(tmp_path):
    rows = Rows(
        tmp_path / "rows",
        {
            "host": "vm: 2 x CPU, 4 GiB",
            "kernel": "6.1.0-40-amd64",
            "commit": "abc",
            "effort": "full",
        },
    )
    rows.add(
        row(
            "moves/size/1024 MiB",
            section="moves",
            series="size",
            unit="s",
            results={"ppmr, lazy": [0.5], "tmpfs + tar": [2.0], "CRIU page server": [1.0]},
            facts={"source daemon, most memory (MiB)": 70.0},
        )
    )
    assert "For the table" not in report.write(rows, tmp_path)[0].read_text()
    rows.add(
        row(
            "dumps/one process/1024 MiB",
            section="dumps",
            series="one process",
            unit="s",
            results={
                "source mount, streaming": [0.6],
                "null FUSE sink": [0.2],
                "ppmr source --discard": [0.3],
                "fresh tmpfs": [0.9],
            },
            facts={"source daemon, most memory (MiB)": 77.0},
        )
    )
    assert (
        ", abc | 2 x CPU, 4 GiB, Linux 6.1.0, veth unlimited | 0.50 | 2.00 (4.0 x) | 1.00 (2.0 x) | 0.60 / 0.30 / 0.90 | 77 MiB |"
        in report.write(rows, tmp_path)[0].read_text()
    )


def test_picture_of_moves_has_few_ways_and_waits_for_all_memory():
    ways = ["Local", "ppmr, lazy", "tmpfs + tar", *(f"other {number}" for number in range(8))]
    assert drawn_ways(ways) == ways[: pictures.SERIES_MAX]
    assert drawn_ways([*ways[3:], "CRIU page server"])[-1] == "CRIU page server"
    assert drawn_values([1, 2, 3, 4, 5], 3) == [1, 3, 5]
    assert drawn_values([1, 2], 3) == [1, 2]
    moved = {"results": {"a": [1.0]}, "also": {"complete": {"a": [2.0]}}}
    assert until_complete(moved)["results"] == {"a": [2.0]}
    assert until_complete({"results": {"a": [1.0]}})["results"] == {"a": [1.0]}


def test_pictures_of_curves_have_at_most_six_ways():
    ways = ["ppmr", "ppmr --eager", "plain CRIU, tmpfs", "tmpfs + tar", "CRIU page server"]
    row = {"curves": {way: [[0.5, 1.0]] for way in [*ways, "CRIU lazy pages", "another"]}}
    assert list(drawn_curves(row)) == [*ways, "CRIU lazy pages"]
    pyplot = pictures._plots()
    if pyplot is None:
        pytest.skip("python3-matplotlib is not installed")
    for draw in (pictures.rates, pictures.latencies):
        figure = draw(pyplot, row, "a title")
        legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
        drawn = len(legends[0].get_texts()) if legends else len(figure.axes)
        assert drawn == pictures.SERIES_MAX
        pyplot.close(figure)


def test_report_has_pictures_of_the_measured_rows(tmp_path):
    pytest.importorskip("matplotlib", reason="python3-matplotlib is not installed")
    rows = Rows(tmp_path / "rows", MACHINE)
    for request in (4096, 1 << 20):
        rows.add(
            row(
                f"aggregation/writers and write size/1 x {request}",
                section="aggregation",
                series="writers and write size",
                parameters={"writers": 1, "request": request},
                results={"ppmr": [1.0, 2.0], "null sink": [3.0]},
            )
        )
    rows.add(
        row(
            "moves/size/1024 MiB",
            section="moves",
            series="size",
            unit="s",
            parameters={"size_mib": 64},
            results={"ppmr, lazy": [0.1], "Local": [1.5]},
            spans={
                "ppmr, lazy": [["dump", 0.0, 0.1], ["downtime", 0.0, 0.1]],
                "Local": [["dump", 0.0, 1.0]],
            },
        )
    )
    for series in ("first pass", "redis under load"):
        rows.add(
            row(
                f"shapes/{series}/1 GiB",
                section="shapes",
                series=series,
                unit="s",
                curves={"ppmr": [[0.1, 1.0], [0.5, 0.01]], "CRIU lazy pages": [[0.2, 1.0]]},
            )
        )
    path, word = report.write(rows, tmp_path)
    assert word == ""
    names = {file.name for file in (tmp_path / "pictures").iterdir()}
    assert names == {
        "aggregation-writes.svg",
        "moves-size.svg",
        "timeline-size-1024-MiB.svg",
        "shapes-first-pass.svg",
        "shapes-redis-under-load.svg",
    }
    for name in names:
        assert f"(pictures/{name})" in path.read_text()
        assert (tmp_path / "pictures" / name).read_text().startswith("<?xml")


def test_run_with_epochs_is_compared_with_the_run_without_epochs_of_its_round():
    effort = dataclasses.replace(EFFORTS["tiny"], job_rounds=2)
    [every] = effort.epochs_every_s
    # The machine is twice as slow in the second round.
    seconds = {None: iter([10.0, 20.0]), every: iter([11.0, 22.0])}
    found = epoch_costs.rounds(effort, lambda every: (next(seconds[every]), 3 if every else 0))
    assert found.results[epoch_costs.NONE] == [10.0, 20.0]
    assert sorted(found.facts.values()) == pytest.approx([1.1, 3])


def test_pauses_of_a_full_run_are_judged_by_the_targets_of_epochs(tmp_path):
    rows = Rows(tmp_path / "rows", MACHINE)
    assert all(target.verdict(rows).value is None for target in epochs.TARGETS)
    for shape in epochs.shapes(EFFORTS["full"]):
        key = f"{epochs.SECTION}/pause/{shape.name}"
        rows.add(row(key, section=epochs.SECTION, results={epochs.PPMR: [9, 0.2, 0.1]}))
    verdicts = [target.verdict(rows) for target in epochs.TARGETS]
    assert [verdict.value for verdict in verdicts] == [0.2] * 3
    assert [verdict.reached for verdict in verdicts] == [False, True, True]
    assert set(epochs.TARGETS) <= set(TARGETS)


def pictured(name, **changes):
    section, series, _ = name.split("/")
    return row(name, section=section, series=series, unit="s", **changes)


def test_stored_run_replaces_all_pictures(tmp_path):
    results = tmp_path / "results"
    for old in (results / "pictures/old.svg", results / "jobs/pictures/old.svg"):
        old.parent.mkdir(parents=True)
        old.touch()
    (results / "shapes").mkdir()  # has tables only
    (results / "shapes/report.md").write_text("of another run")
    rows = Rows(tmp_path / "rows.jsonl", MACHINE)
    rows.add(pictured("restore/from memory/eager"))
    rows.add(pictured("jobs/run time/LAMMPS"))
    rows.add(pictured("shapes/downtime/1 GiB"))
    reports = stored.store(rows, results)
    assert reports == [results / "report.md", results / "jobs/report.md"]
    assert {path.name for path in (results / "pictures").iterdir()} == {"restore-from-memory.svg"}
    assert {path.name for path in (results / "jobs/pictures").iterdir()} == {"jobs-run-time.svg"}
    kept = {path: [one["section"] for one in Rows(path.parent / "rows.jsonl")] for path in reports}
    assert list(kept.values()) == [["restore", "shapes"], ["jobs"]]
    assert (results / "shapes/report.md").read_text() == "of another run"


def test_run_of_pictures_has_what_each_picture_shows():
    bed = testbed.Testbed(EFFORTS["pictures"])
    planned = [item for chapter in CHAPTERS for item in chapter.plan(bed)]
    kept = pictures.drawn_items(planned)
    assert {(one.section, one.series) for one in kept} >= set(pictures.DRAWN)
    writers = {one.parameters["writers"] for one in kept if one.series == "links and writers"}
    assert len(writers) == pictures.SERIES_MAX // 2
    assert pictures.BESIDE_REDIS in [one.key for one in kept]
    assert sum(one.guess_seconds for one in kept) < 60 * 60


def test_stored_pictures_of_the_repository_are_all_shown_by_a_document():
    results = REPOSITORY / "bench/results"
    documents = [REPOSITORY / "README.md", *(REPOSITORY / "bench").rglob("*.md")]
    text = "".join(path.read_text() for path in documents)
    found = [path.name for path in results.rglob("*.svg")]
    assert found and [name for name in found if f"pictures/{name}" not in text] == []
