"""An ordinary user's MPI job leaves a machine for the other one: ppmr's stream uses RDMA, the job's
network is that of docs/jobs.md."""
import shutil

import pytest

from lab.programs import REPOSITORY
from vm.job_machines import JobMachines

ROUNDS = 800  # the job runs longer than a move between emulated machines takes


@pytest.mark.parametrize(
    "network",
    [
        pytest.param("vxlan", marks=pytest.mark.long),
        pytest.param("vxlan without multicast", marks=pytest.mark.long),
        pytest.param("interface", marks=pytest.mark.long),
    ],
)
def test_users_mpi_job_leaves_its_machine(machines, need_command, network):
    need_command("runc")
    with JobMachines(machines, network) as hosts:
        shutil.copy(REPOSITORY / "tests/workloads/mpi_sums.py", hosts.home)
        program = ["/usr/bin/python3", str(hosts.home / "mpi_sums.py"), str(ROUNDS)]
        job = hosts.run_as_user(
            ["--spares", "1", "--slots", "1", "--", "mpirun", "-n", "2", *program]
        )
        job.await_lines(20, timeout=180)
        [move] = hosts.evacuate("h1")  # with mpirun
        assert move["ok"] and move["to"] == "h3", (move, hosts.agent_log("h1"))
        [record] = hosts.status()
        assert [node["host"] for node in record["nodes"]] == ["h3", "h2"]
        assert record["uid"] == 65534
        assert job.wait(300) == 0, job.error_text()
        assert job.output() == [f"{number} {number * 3}" for number in range(ROUNDS)]
        hosts.await_clean()


@pytest.mark.long
def test_ranks_that_talk_over_rdma_leave_their_machine(machines, need_command):
    need_command("runc")
    with JobMachines(machines, "vxlan") as hosts:
        shutil.copy(REPOSITORY / "tests/workloads/mpi_sums.py", hosts.home)
        program = ["/usr/bin/python3", str(hosts.home / "mpi_sums.py"), str(ROUNDS)]
        job = hosts.run_as_user(
            ["--rdma", "--spares", "1", "--slots", "1", "--", "mpirun", "-n", "2", *program]
        )
        job.await_lines(20, timeout=180)
        assert "ranks use RDMA" in job.error_text()
        [move] = hosts.evacuate("h1")
        assert move["ok"] and move["to"] == "h3", (move, hosts.agent_log("h1"))
        assert job.wait(300) == 0, job.error_text()
        assert job.output() == [f"{number} {number * 3}" for number in range(ROUNDS)]
        hosts.await_clean()
