"""`--metrics` of both daemons: the pages that a scraper gets, and the values that Prometheus
stores.
"""
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.parse

import pytest

from lab.criu import IS_A_SUPERVISORS, criu_that
from lab.node import wait_until
from lab.ppmr import find_ppmr
from lab.programs import REPOSITORY
from lab.workers import check_moved, check_stayed, start_workers, take_pid

SOURCE, TARGET, RELAY, PROMETHEUS = 9440, 9441, 9442, 9443
ABORTED = 11
EXAMPLES = REPOSITORY / "docs/metrics"

# Prints the answers to URLs as a JSON list of [code, text].
FETCH = """
import json, sys, urllib.error, urllib.request
answers = []
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            answers.append([answer.status, answer.read().decode()])
    except urllib.error.HTTPError as error:
        answers.append([error.code, error.read().decode()])
    except OSError as error:
        answers.append([0, str(error)])
print(json.dumps(answers))
"""

# A proxy on the target, as for a Prometheus elsewhere: passes connections to the target's metrics.
PROXY = """
import asyncio, sys
async def copy(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()
async def serve(reader, writer):
    up_reader, up_writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(copy(reader, up_writer), copy(up_reader, writer), return_exceptions=True)
async def main():
    server = await asyncio.start_server(serve, sys.argv[1], int(sys.argv[3]))
    await server.serve_forever()
asyncio.run(main())
"""


def fetch(node, *urls):
    return json.loads(node.run([sys.executable, "-c", FETCH, *urls]).stdout)


def scrape(node, port):
    ((code, text),) = fetch(node, f"http://127.0.0.1:{port}/metrics")
    assert code == 200, text
    return text


def values(text):
    """{'name{label="value"}': number} of a page."""
    return {
        series: float(number)
        for series, number in re.findall(r"^([a-z]\S*(?:\{.*\})?) (\S+)$", text, re.M)
    }


def names(text):
    return set(re.findall(r"^# TYPE (\S+) ", text, re.M))


def without_clocks(page):
    """Returns the page without the values that change by themselves between two requests."""
    clocks = ("ppmr_uptime_seconds", "ppmr_peer_silence_seconds")
    return {series: number for series, number in page.items() if series not in clocks}


METRICS = {
    "source_options": ["--metrics", f"127.0.0.1:{SOURCE}"],
    "target_options": ["--metrics", f"127.0.0.1:{TARGET}"],
}


@pytest.fixture
def watched(make_migrations):
    return make_migrations(**METRICS)


def move(lab, nodes, watched):
    (worker,) = start_workers(lab, nodes, 1)
    done = watched.migrate(worker.pid).ok()
    check_moved(worker, nodes)
    worker.end()
    return done.summary["trees"][0]


def settled(nodes):
    """Returns the pages of both daemons after the restart is complete and the values no longer
    change.
    """

    def look():
        pages = [values(scrape(nodes.source, SOURCE)), values(scrape(nodes.target, TARGET))]
        complete = pages[1]['ppmr_restarts_total{result="complete"}'] == 1
        closed = pages[1]["ppmr_agents"] == 0
        return pages if complete and closed else None

    return wait_until(look, 20, "the end of the restart", interval=0.25)


def check_against_status(status, page):
    both = {
        "ppmr_transferred_bytes_total": status["bytes"],
        "ppmr_wire_bytes_total": status["wire_bytes"],
        "ppmr_chunks_total": status["chunks"],
        "ppmr_stalls_total": status["stalls"],
        'ppmr_sessions{transport="tcp",state="connected"}': len(status["peers"]),
    }
    if status["role"] == "source":
        both |= {
            'ppmr_pool_slots{state="free"}': status["pool"]["free"],
            'ppmr_pool_slots{state="used"}': status["pool"]["in_use"],
            "ppmr_pool_wait_seconds_total": status["pool"]["wait_time_us"] / 1e6,
            "ppmr_reconnections_total": status["reconnections"],
            "ppmr_inline_chunks_total": status["inline_chunks"],
            'ppmr_migrations_total{result="moved"}': status["migrations"]["moved"],
        }
    else:
        both |= {
            "ppmr_store_limit_bytes": status["store"]["limit_bytes"],
            "ppmr_store_used_bytes": status["store"]["used_bytes"],
            "ppmr_retransmitted_chunks_total": status["pulled_again"],
            'ppmr_integrity_failures_total{check="aes-256-gcm"}': status["aead_failures"],
            'ppmr_restarts_total{result="running"}': status["restarts"]["running"],
        }
    shown = {series: page[series] for series in both}
    assert shown == pytest.approx(both, rel=1e-6)


def test_metrics_equal_the_status_and_the_result_of_the_migration(lab, nodes, watched):
    tree = move(lab, nodes, watched)
    source, target = settled(nodes)
    check_against_status(watched.source.status(), source)
    check_against_status(watched.target.status(), target)
    confinement = watched.target.status()["confinement"]
    assert confinement["seccomp"] and confinement["uid"] != 0, "the target kept its rights"
    assert source["ppmr_transferred_bytes_total"] >= tree["bytes"] > 0
    for phase in ("downtime", "dump", "seal", "restart"):
        metric = f"ppmr_migration_{phase}_seconds"
        assert source[f"{metric}_count"] == 1
        assert source[f"{metric}_sum"] == pytest.approx(tree[f"{phase}_s"], rel=1e-3)
    assert target["ppmr_restart_seconds_count"] == 1
    assert 0 < target["ppmr_restart_seconds_sum"] < tree["downtime_s"] + 1
    assert target["ppmr_page_fault_seconds_count"] > 0
    # A target removes the session of a source that has ended, but keeps the counts of the session.
    watched.source.stop()
    gone = wait_until(
        lambda: (
            (page := values(scrape(nodes.target, TARGET)))
            and page['ppmr_sessions{transport="tcp",state="connected"}'] == 0
            and not watched.target.status()["peers"]
            and page
        ),
        20,
        "the end of the session",
        interval=0.25,
    )
    for series in target:
        if re.search(r"_(total|count|sum|bucket)\b", series):
            assert gone[series] >= target[series], series


def test_aborted_migration_is_counted_and_refused_migration_is_not(
    lab, nodes, make_migrations, tmp_path
):
    broken = criu_that(tmp_path, f"{IS_A_SUPERVISORS} && exit 1")
    watched = make_migrations(environment={"PPMR_CRIU": str(broken)}, **METRICS)
    (worker,) = start_workers(lab, nodes, 1, size_mib=8)
    take_pid(nodes.target, worker.pid)
    assert watched.migrate(worker.pid).code == ABORTED
    nodes.target.signal(worker.pid, signal.SIGKILL)
    nodes.target.await_end(worker.pid)
    before = values(scrape(nodes.source, SOURCE))
    assert before['ppmr_migrations_total{result="stayed"}'] == 0
    assert watched.migrate(worker.pid).code == ABORTED
    check_stayed(worker, nodes)
    worker.end()

    def counted():
        source, target = (scrape(nodes.source, SOURCE), scrape(nodes.target, TARGET))
        return (
            values(source)['ppmr_migrations_total{result="stayed"}'] == 1
            and values(source)["ppmr_migration_dump_seconds_count"] == 1
            and values(source)["ppmr_migration_downtime_seconds_count"] == 0
            and values(target)['ppmr_restarts_total{result="failed"}'] == 1
        )

    wait_until(counted, 10, "the result in the metrics", interval=0.25)


def write_checkpoint(nodes, watched, name):
    directory = watched.out / name
    nodes.source.run(["mkdir", directory])
    nodes.source.run(["dd", "if=/dev/urandom", f"of={directory}/file", "bs=1M", "count=4"])
    nodes.source.run([find_ppmr(), "commit", directory])


def test_counters_of_a_source_survive_the_end_of_a_session(nodes, make_migrations):
    source_options = [*METRICS["source_options"], "--peer-timeout", "1"]
    watched = make_migrations(**{**METRICS, "source_options": source_options})
    write_checkpoint(nodes, watched, "one")
    before = values(scrape(nodes.source, SOURCE))
    assert before["ppmr_transferred_bytes_total"] >= 4 << 20
    watched.target.kill()
    wait_until(
        lambda: values(scrape(nodes.source, SOURCE))[
            'ppmr_sessions{transport="tcp",state="failed"}'
        ],
        20,
        "the session to fail",
        interval=0.25,
    )
    watched.restart_dead()
    write_checkpoint(nodes, watched, "two")
    after = wait_until(
        lambda: (page := values(scrape(nodes.source, SOURCE)))
        and page['ppmr_sessions{transport="tcp",state="connected"}']
        and page,
        10,
        "a new session",
        interval=0.25,
    )
    assert after["ppmr_transferred_bytes_total"] >= before["ppmr_transferred_bytes_total"] + (
        4 << 20
    )
    assert after["ppmr_chunks_total"] > before["ppmr_chunks_total"]


def test_documentation_lists_exactly_the_scraped_metrics(nodes, watched):
    source, target = scrape(nodes.source, SOURCE), scrape(nodes.target, TARGET)
    chapter = (
        (REPOSITORY / "docs/operations.md").read_text().split("## Metrics")[1].split("\n## ")[0]
    )
    rows = re.findall(r"^\| `(ppmr_\w+)` \| (\w+) \| (\w+) \|", chapter, re.M)
    listed = {
        role: {name for name, daemon, _ in rows if daemon in (role, "both")}
        for role in ("source", "target")
    }
    end = {"ppmr_credentials_expiry_seconds": "gauge"}  # these daemons have a shared key
    assert listed == {"source": names(source) | set(end), "target": names(target) | set(end)}
    kinds = end | dict(re.findall(r"^# TYPE (\S+) (\S+)$", source + target, re.M))
    assert {name: kind for name, _, kind in rows} == kinds


def test_metrics_are_off_by_default_and_refuse_addresses_that_others_reach(ppmr, nodes, mounts):
    ((code, _),) = fetch(nodes.source, f"http://127.0.0.1:{SOURCE}/metrics")
    assert code == 0
    for role, words in (("source", ["--discard"]), ("target", ["--listen", "127.0.0.1:7440"])):
        for address in ("0.0.0.0:9440", "unix:/run/ppmr/metrics"):
            done = subprocess.run(
                [ppmr, role, "/mnt", *words, "--metrics", address, "--check"],
                capture_output=True,
                text=True,
                timeout=30,
            )
            assert done.returncode == 2
            assert "use 127.0.0.1:" in done.stderr


def test_scrapers_that_stall_do_not_stop_others_for_long(nodes, watched):
    stall = (
        "import socket, sys, time\n"
        f"sockets = [socket.create_connection(('127.0.0.1', {TARGET})) for _ in range(12)]\n"
        "print('connected', flush=True)\n"
        "time.sleep(60)\n"
    )
    stalling = nodes.target.popen(
        [sys.executable, "-c", stall], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert b"connected" in stalling.stdout.readline()
        status = watched.target.status()
        assert status["ok"]
        threads = nodes.target.run(["ls", f"/proc/{status['pid']}/task"]).stdout.split()
        assert len(threads) < 64
    finally:
        stalling.kill()
        stalling.wait()
    assert "ppmr_build_info" in scrape(nodes.target, TARGET)


def test_alert_rules_are_correct_and_fire():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool (package prometheus)")
    for words in (
        ["check", "rules", EXAMPLES / "alerts.yml"],
        ["check", "config", "--syntax-only", EXAMPLES / "prometheus.yml"],
        ["test", "rules", REPOSITORY / "tests/metrics/alerts_test.yml"],
    ):
        done = subprocess.run([promtool, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def dashboard_queries():
    dashboard = json.loads((EXAMPLES / "dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_prometheus_scrapes_both_daemons_and_the_dashboard_has_data(lab, nodes, watched):
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus")
    pages = [scrape(nodes.source, SOURCE), scrape(nodes.target, TARGET)]
    for page in pages:
        linted = subprocess.run(
            ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=30
        )
        assert linted.returncode == 0, linted.stdout + linted.stderr

    home = lab.directory / "prometheus"
    home.mkdir()
    config = (EXAMPLES / "prometheus.yml").read_text()
    remote = f"{nodes.target.address}:{RELAY}"
    for example, here in (
        ("15s", "1s"),
        ("- alerts.yml", f"- {EXAMPLES}/alerts.yml"),
        (f'["127.0.0.1:{TARGET}"]', f'["{remote}"]'),
    ):
        assert example in config
        config = config.replace(example, here)
    assert f'["127.0.0.1:{SOURCE}"]' in config
    (home / "prometheus.yml").write_text(config)
    web = f"127.0.0.1:{PROMETHEUS}"
    relay = nodes.target.popen(
        [sys.executable, "-c", PROXY, nodes.target.address, str(TARGET), str(RELAY)]
    )
    with open(home / "log", "wb") as log:
        prometheus = nodes.source.popen(
            [
                "prometheus",
                f"--config.file={home}/prometheus.yml",
                f"--storage.tsdb.path={home}/data",
                f"--web.listen-address={web}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:

        def query(*expressions):
            answers = fetch(
                nodes.source,
                *[
                    f"http://{web}/api/v1/query?query={urllib.parse.quote(expression)}"
                    for expression in expressions
                ],
            )
            if any(code != 200 for code, _ in answers):
                return None
            return [json.loads(text)["data"]["result"] for _, text in answers]

        def number_of(result):
            return [float(series["value"][1]) for series in result]

        wait_until(
            lambda: (up := query("up")) and sorted(number_of(up[0])) == [1, 1],
            20,
            "Prometheus to scrape both daemons",
            interval=0.25,
        )
        move(lab, nodes, watched)
        settled(nodes)
        queries = dashboard_queries()

        def empty():
            results = query(*queries)
            return [
                text
                for text, result in zip(queries, results)
                if not [number for number in number_of(result) if number == number]
            ]

        wait_until(lambda: not empty(), 20, "data for each query of the dashboard", interval=0.5)
        (moved,) = query('ppmr_migrations_total{result="moved"}')
        assert number_of(moved) == [1]
        ((code, rules),) = fetch(nodes.source, f"http://{web}/api/v1/rules")
        assert code == 200
        loaded = [rule for group in json.loads(rules)["data"]["groups"] for rule in group["rules"]]
        rules_of_file = re.findall(r"^ +- alert:", (EXAMPLES / "alerts.yml").read_text(), re.M)
        assert len(loaded) == len(rules_of_file) > 0
        assert all(rule["health"] != "err" for rule in loaded)
        assert query("ALERTS") == [[]]
    finally:
        for process in (prometheus, relay):
            process.kill()
            process.wait()
