"""Jobs that are suspended to files, and go on on other hosts."""

import re
import subprocess

import pytest

from lab import lammps
from lab.job_hosts import AS_ROOT, JobHosts
from lab.ppmr import make_key

SUSPENDED = 75


@pytest.fixture
def make_hosts(lab, need_command):
    need_command("runc")
    opened = []

    def make(count):
        key = make_key(lab.home / "keep-key", lab.node("keys"))[-1]
        opened.append(JobHosts(lab, count, agent_options=["--keep-key", key]))
        return opened[-1]

    yield make
    for hosts in opened:
        hosts.close()


def suspend(hosts, directory, at="h1", check=True):
    return hosts.command(at, "suspend", "--keep-dir", directory, check=check)


def test_job_goes_on_on_other_hosts(make_hosts):
    hosts = make_hosts(4)
    directory = hosts.lab.home / "suspended"
    job = hosts.start_count(["--hosts", "h1,h2", "--slots", "1"])
    job.await_lines(5)
    said = suspend(hosts, directory).stdout
    assert f"it goes on with: ppmr job resume {directory}" in said
    assert job.wait() == SUSPENDED
    assert f"it was suspended in {directory}" in job.error_text()
    hosts.await_clean()
    resumed = hosts.resume(directory, ["h3", "h4"])
    resumed.end_file = job.end_file
    resumed.end_count(before=job.output())
    hosts.await_clean()
    again = hosts.resume(directory, ["h3", "h4"])
    assert again.wait() == 1
    assert f"job {status_id(said)} on host h3 since" in again.error_text()


def status_id(said):
    return re.search(r"job ([0-9a-f]{8}) is suspended", said)[1]


def test_job_goes_on_where_it_is_if_its_files_cannot_be_written(make_hosts):
    hosts = make_hosts(2)
    directory = hosts.lab.home / "suspended"
    directory.mkdir()
    hosts.nodes["h2"].run(["mount", "-t", "tmpfs", "-o", "size=64k", "small", directory])
    job = hosts.start_count(["--slots", "1"])
    job.await_lines(5)
    refused = suspend(hosts, directory, check=False)
    assert refused.returncode == 1
    assert "node h2 on host h2" in refused.stderr and "No space left" in refused.stderr
    job.end_count()
    assert list(directory.iterdir()) == [], "nothing of the suspension is left"
    hosts.await_clean()


def test_job_is_suspended_again_and_reads_and_writes_on(make_hosts):
    hosts = make_hosts(2)
    directory = hosts.lab.home / "suspended"
    echo = "while read line; do echo got $line; done"
    jobs = [hosts.run(["--slots", "1", "--", "sh", "-c", echo], stdin=subprocess.PIPE)]
    for names in (["h2", "h1"], ["h1", "h2"]):
        job = jobs[-1]
        job.process.stdin.write(f"{len(jobs)}\n")
        job.process.stdin.flush()
        job.await_lines(1)
        suspend(hosts, directory, at=job.host)
        assert job.wait() == SUSPENDED
        refused = suspend(hosts, directory, at=job.host, check=False)
        assert "no job of yours began on this host" in refused.stderr
        jobs.append(hosts.resume(directory, names, stdin=subprocess.PIPE))
    jobs[-1].process.stdin.write("3\n")
    jobs[-1].process.stdin.close()
    assert jobs[-1].wait() == 0, jobs[-1].error_text()
    assert [job.output() for job in jobs] == [["got 1"], ["got 2"], ["got 3"]]
    assert len(list(directory.iterdir())) == 4, "job, two nodes, claim: of the last suspension"


def test_mpi_job_computes_the_same_result_across_a_suspension(make_hosts, need_command):
    need_command("lmp")
    hosts = make_hosts(4)
    directory = hosts.lab.home / "suspended"
    (hosts.lab.home / "in.melt").write_text(lammps.melt(steps=2000))
    words = ["--hosts", "h1,h2", "--slots", "2"]
    words += ["--", "mpirun", "-n", "4", "lmp", "-in", "in.melt", "-log", "none"]
    undisturbed = hosts.run(words, environment=AS_ROOT)
    assert undisturbed.wait(300) == 0, undisturbed.error_text()
    job = hosts.run(words, environment=AS_ROOT)
    job.await_lines(40)
    suspend(hosts, directory)
    assert job.wait() == SUSPENDED
    resumed = hosts.resume(directory, ["h3", "h4"])
    assert resumed.wait(300) == 0, resumed.error_text()
    values = lammps.values(job.output() + resumed.output())
    assert len(values) == 201 and values == lammps.values(undisturbed.output())
