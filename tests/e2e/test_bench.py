"""The benchmark driver: tiny runs of the real thing."""
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench"))

from measure.rows import Rows  # noqa: E402
from measure.spread import spread  # noqa: E402


@pytest.mark.xdist_group("bench")
def test_tiny_run_measures_pipelined_moves_of_a_given_link(ppmr, tmp_path):
    done = bench(
        *("--tiny", "--output", tmp_path / "out", "--ppmr", ppmr),
        *("--only", "pipelined moves"),
    )
    assert done.returncode == 0, done.stderr
    [found] = Rows(tmp_path / "out/rows.jsonl")
    together, each, link = (found["results"][way][0] for way in found["results"])
    assert 0 < link < together and link < each
    assert found["also"]["frozen, mean of the processes"]["ppmr, one command"][0] < together


def test_size_and_link_can_be_chosen():
    done = bench(
        *("--list", "--size-mib", "48", "--rate", "10gbit"), *("--only", "moves", "--only", "dumps")
    )
    assert done.returncode == 0, done.stderr
    assert "moves/size/48 MiB\n" in done.stdout and "dumps/one process/48 MiB\n" in done.stdout
    assert "1024 MiB" not in done.stdout


def bench(*options):
    return subprocess.run(
        [REPOSITORY / "bench/run", *map(str, options)], capture_output=True, text=True, timeout=300
    )


@pytest.mark.xdist_group("bench")
def test_repeating_a_tiny_benchmark_run_adds_no_rows(ppmr, tmp_path):
    options = (
        "--tiny",
        "--output",
        tmp_path / "out",
        "--ppmr",
        ppmr,
        "--only",
        "ceilings",
        "--only",
        "aggregation",
        "--only",
        "network",
        "--only",
        "pipeline",
    )
    first = bench(*options)
    assert first.returncode == 0, first.stderr
    rows = Rows(tmp_path / "out/rows.jsonl")
    assert {found["section"] for found in rows} == {
        "ceilings",
        "aggregation",
        "network",
        "pipeline",
    }
    for found in rows:
        for samples in found["results"].values():
            assert spread(samples).low > 0
    assert (tmp_path / "out/report.md").exists()
    before = (tmp_path / "out/rows.jsonl").read_text()
    second = bench(*options)
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "out/rows.jsonl").read_text() == before


@pytest.mark.xdist_group("bench")
def test_tiny_run_measures_every_way_to_move(ppmr, tmp_path):
    done = bench("--tiny", "--output", tmp_path / "out", "--ppmr", ppmr, "--only", "moves")
    assert done.returncode == 0, done.stderr
    row = Rows(tmp_path / "out/rows.jsonl").get("moves/size/16 MiB")
    assert {
        "ppmr, lazy",
        "ppmr, eager",
        "tmpfs + tar",
        "tmpfs + rsync",
        "CRIU page server",
        "CRIU lazy pages",
        "Local",
        "RDMA+Local (bytes over TCP)",
    } <= set(row["results"]), row["not_measured"]
    for way, spans in row["spans"].items():
        assert all(begin <= end for _, begin, end in spans), (way, spans)
        assert row["also"]["downtime"][way][0] > 0
        assert row["also"]["complete"][way][0] >= row["results"][way][0]


@pytest.mark.xdist_group("bench")
def test_short_run_of_the_job_benchmark_succeeds(ppmr, tmp_path, need_command):
    need_command("mpirun")
    done = bench("--tiny", "--output", tmp_path / "out", "--ppmr", ppmr, "--only", "jobs")
    assert done.returncode == 0, done.stderr
    rows = Rows(tmp_path / "out/rows.jsonl")
    [of_program] = rows.of("jobs", "run time")
    assert set(of_program["results"]) == {"plain mpirun", "job nodes, 1 move"}
    assert len(of_program["also"]["downtime"]["job nodes, 1 move"]) == 1
    [stall] = rows.of("jobs", "stall")
    [gap], [downtime] = stall["results"]["gap"], stall["results"]["downtime"]
    assert gap > 0.9 * downtime > 0


def chapter_of(directory, name):
    text = (directory / "report.md").read_text()
    return text.split(f"## {name}\n", 1)[1].split("\n## ", 1)[0].splitlines()


@pytest.mark.long  # also runs the other tools, which fail on a slow machine
@pytest.mark.xdist_group("bench")
def test_tiny_run_measures_a_shape_in_every_way(ppmr, tmp_path):
    done = bench("--tiny", "--output", tmp_path / "out", "--ppmr", ppmr, "--only", "shapes")
    assert done.returncode == 0, done.stderr
    rows = Rows(tmp_path / "out/rows.jsonl")
    row = rows.get("shapes/downtime/16 MiB")
    assert set(row["results"]) == {
        "ppmr",
        "ppmr --post-copy",
        "ppmr --eager",
        "plain CRIU, tmpfs",
        "tmpfs + tar",
        "CRIU page server",
        "CRIU lazy pages",
    }, row["not_measured"]
    for way, [downtime] in row["results"].items():
        [complete] = row["also"]["all memory in place"][way]
        assert 0 < downtime <= complete < 60
        [received] = row["also"]["received by the target, MB"][way]
        assert received < 0.1 if way.startswith("plain") else received > 16
        assert row["also"]["PSS of the tree, MiB"][way][0] > 16
    assert rows.get("shapes/evacuation/2 processes of 8 MiB")["results"]["ppmr evacuate"][0] > 0
    touched = rows.get("shapes/first pass/16 MiB in random order")
    for way, [seconds] in touched["results"].items():
        [p50], [p99], [longest] = (
            touched["also"][f"touch: {name}, µs"][way] for name in ("p50", "p99", "longest")
        )
        assert 0 < p50 <= p99 <= longest <= 1e6 * seconds
        assert touched["curves"][way][0][1] == 1.0
    redis = rows.get("shapes/redis under load/16 MiB")
    assert set(redis["results"]) == set(row["results"]), redis["not_measured"]
    for way, [downtime] in redis["results"].items():
        frozen = [rate for at, rate in redis["curves"][way] if 0.1 < at < downtime - 0.1]
        served = [rate for at, rate in redis["curves"][way] if at < 0]
        assert not any(frozen) and any(served), way
    assert not any(line.startswith("- ") for line in chapter_of(tmp_path / "out", "Shapes"))


@pytest.mark.long
@pytest.mark.xdist_group("bench")
def test_growth_of_a_small_job_is_measured(ppmr, tmp_path, need_command):
    need_command("mpirun")
    need_command("iptables")
    done = bench("--tiny", "--output", tmp_path / "out", "--ppmr", ppmr, "--only", "job growth")
    assert done.returncode == 0, done.stderr
    found = Rows(tmp_path / "out/rows.jsonl").get("job growth/nodes/2")["facts"]
    # There are two nodes and three spares. The agents may also have requested the places of the
    # nodes.
    assert 5 <= found["start: requests"] <= 7
    assert found["start: ARP announcements"] == 3  # of the nodes and of the launcher's port
    assert found["evacuation: ARP announcements"] == 1


def test_wrong_options_are_refused():
    assert bench("--only", "nothing").returncode == 2
    assert "no figures here" in bench("--report", "/nonexistent").stderr
