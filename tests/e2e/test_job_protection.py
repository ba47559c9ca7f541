"""Jobs that lose a host without warning, and go on from their last epoch."""

import re

import pytest

from lab import lammps
from lab.job_hosts import AS_ROOT, JobHosts
from lab.node import wait_until


@pytest.fixture
def make_hosts(lab, need_command):
    need_command("runc")
    opened = []

    def make(count, fence="/bin/true", **options):
        words = [*(["--fence", fence] if fence else []), *options.pop("agent_options", [])]
        opened.append(JobHosts(lab, count, agent_options=words, **options))
        return opened[-1]

    yield make
    for hosts in opened:
        hosts.close()


def protection(hosts):
    [job] = hosts.status()
    return job["protection"]


def await_epoch(hosts, number, timeout=90):
    wait_until(
        lambda: protection(hosts)["agreed"] >= number, timeout, f"epoch {number}", interval=0.2
    )


def await_rollback(hosts, count=1, timeout=90):
    wait_until(
        lambda: protection(hosts)["rollbacks"] >= count, timeout, f"rollback {count}", interval=0.2
    )


def start_count(hosts, spares=1):
    words = ["--spares", str(spares), "--slots", "1", "--protect", "5s"]
    job = hosts.start_count(words)
    job.await_lines(1)
    return job


def place_of(hosts, node):
    [job] = hosts.status()
    return next(each["host"] for each in job["nodes"] if each["name"] == node)


def test_job_goes_on_without_the_host_that_died(make_hosts):
    hosts = make_hosts(3)
    job = start_count(hosts)
    await_epoch(hosts, 2)
    hosts.lose("h2")
    await_rollback(hosts)
    [status] = hosts.status()
    states = {host["name"]: host["state"] for host in status["hosts"]}
    assert states == {"h1": "ready", "h2": "inactive", "h3": "ready"}
    assert place_of(hosts, "h2") == "h3"
    shown = hosts.command("h1", "status").stdout
    line = r"epoch \d+ is .* old: .*, pause \d+ ms; one each 5.0 s; rolled back once"
    assert re.search(line, shown), shown
    kept = protection(hosts)["agreed"]
    await_epoch(hosts, kept + 1)
    job.end_count()


def test_node_whose_processes_have_ended_is_rolled_back_with_the_others(make_hosts):
    hosts = make_hosts(2)
    job = start_count(hosts, spares=0)
    await_epoch(hosts, 1)
    hosts.nodes["h2"].run(["runc", "kill", hosts.containers("h2")[0], "KILL"])
    await_rollback(hosts)
    assert place_of(hosts, "h2") == "h2"
    job.end_count()
    hosts.await_clean()
    for node in hosts.nodes.values():
        assert node.run(["ls", "/run/ppmr/epochs"]).stdout == "", "the epochs end with the job"


def test_job_ends_if_the_fence_does_not_say_that_the_host_is_dead(make_hosts):
    hosts = make_hosts(3, fence="/bin/false", agent_options=["--host-timeout", "12"])
    job = start_count(hosts)
    await_epoch(hosts, 1)
    hosts.lose("h2")
    assert job.wait(90) == 1
    assert "h2 does not answer" in job.error_text()
    assert "does not confirm that the host is dead" in job.error_text()


def test_interval_follows_from_the_pause_and_the_failures_of_all_hosts(make_hosts):
    hosts = make_hosts(2)
    wrong = hosts.run(["--protect", "auto", "--", "true"])
    assert wrong.wait() == 2 and "--protect auto needs --mtbf TIME" in wrong.error_text()
    wrong = hosts.run(["--protect", "5s", "--mtbf", "30d", "--", "true"])
    assert wrong.wait() == 2 and "--mtbf needs --protect auto" in wrong.error_text()
    words = ["--slots", "1", "--protect", "auto", "--mtbf", "30d"]
    job = hosts.start_count(words)
    job.await_lines(1)
    await_epoch(hosts, 1)
    chosen = protection(hosts)
    best_ms = (2 * chosen["pause_ms"] * 30 * 86_400_000 / 2) ** 0.5
    assert abs(chosen["every_ms"] - best_ms) <= 500 and chosen["every_ms"] > 30_000
    shown = hosts.command("h1", "status").stdout
    line = r"; one each .*, for this pause and 2 hosts, each of which fails"
    assert re.search(line, shown), shown
    job.end_count()


def test_job_without_a_second_host_cannot_be_protected(make_hosts):
    hosts = make_hosts(1)
    job = hosts.run(["--protect", "5s", "--", "true"])
    assert job.wait() == 1
    assert "a protected job needs two hosts, or a spare" in job.error_text()


def test_evacuation_and_epochs_take_turns(make_hosts):
    hosts = make_hosts(4)
    job = start_count(hosts, spares=2)
    await_epoch(hosts, 1)
    [move] = hosts.evacuate("h2")
    assert move["ok"], move
    place, kept = place_of(hosts, "h2"), protection(hosts)["agreed"]
    assert place in ("h3", "h4")
    await_epoch(hosts, kept + 1)
    hosts.lose(place)
    await_rollback(hosts)
    job.end_count()


def test_mpi_job_computes_the_same_result_although_a_host_dies(make_hosts, need_command):
    need_command("lmp")
    hosts = make_hosts(4)
    (hosts.lab.home / "in.melt").write_text(lammps.melt(steps=1500))
    command = ["--", "mpirun", "-n", "6", "lmp", "-in", "in.melt", "-log", "none"]

    def rows(job):
        return [line for line in job.output() if re.match(r" +\d+ +-?\d+\.\d+ ", line)]

    undisturbed = hosts.run(["--spares", "1", "--slots", "2", *command], environment=AS_ROOT)
    assert undisturbed.wait(300) == 0, undisturbed.error_text()
    words = ["--spares", "1", "--slots", "2", "--protect", "5s"]
    job = hosts.run([*words, *command], environment=AS_ROOT)
    job.await_lines(1)
    await_epoch(hosts, 1)
    hosts.lose("h2")
    assert job.wait(300) == 0, job.error_text()
    assert len(rows(job)) == 151 and rows(job) == rows(undisturbed)


def test_host_that_answers_again_costs_no_work(make_hosts):
    hosts = make_hosts(3, fence="/bin/false")
    job = start_count(hosts)
    await_epoch(hosts, 1)
    hosts.links["h2"].set_up(False)
    wait_until(
        lambda: "does not answer" in protection(hosts)["rolling_back"], 60, "the loss", interval=0.2
    )
    hosts.links["h2"].set_up(True)
    wait_until(lambda: not protection(hosts)["rolling_back"], 60, "an answer", interval=0.2)
    assert protection(hosts)["rollbacks"] == 0
    job.end_count()
