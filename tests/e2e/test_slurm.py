"""Jobs under real Slurm that leave a host: allocation, steps, accounting, health check, drain."""

import json
import re
import shutil

import pytest

from lab import lammps
from lab.job_hosts import AS_ROOT, JobHosts, count_until
from lab.node import wait_until
from lab.ppmr import make_key
from lab.programs import REPOSITORY
from lab.slurm import SlurmCluster

HOSTS = 4
EXPORTS = "".join(f"export {name}={value}\n" for name, value in AS_ROOT.items())


@pytest.fixture
def slurm(lab, need_command):
    for program in ("runc", "slurmd", "slurmctld", "munged"):
        need_command(program)
    [_, key] = make_key(lab.home / "keep-key", lab.node("keys"))
    options = ["--slurm", "--keep-key", key]
    with JobHosts(lab, HOSTS, agent_options=options, control_groups=True) as hosts:
        with SlurmCluster(hosts) as cluster:
            yield cluster


def submit(slurm, command, options="--spares 1", **limits):
    run = f"{slurm.hosts.ppmr} job run {options} -- {command}; echo ended with $?"
    return slurm.submit(EXPORTS + run, nodes=HOSTS, **limits)


def end_file(slurm):
    return slurm.hosts.lab.home / "end"


def counting(slurm):
    """A command that counts until end_file() exists."""
    return f"sh -c '{count_until(end_file(slurm))}'"


def numbers(output):
    return [line for line in output.splitlines() if line.isdigit()]


def await_count(slurm, jobs):
    """Waits until each job has printed another number."""
    for job in jobs:
        seen = len(numbers(slurm.output(job)))
        wait_until(
            lambda job=job, seen=seen: len(numbers(slurm.output(job))) > seen,
            400,
            f"job {job} to count on",
        )


def end_count(slurm, job):
    """Ends the command of a job that still counts. It must have printed each number once."""
    await_count(slurm, [job])
    end_file(slurm).touch()
    assert slurm.await_end(job) == "COMPLETED"
    # srun reports on the job's standard error when Slurm loses a host.
    lines = [line for line in slurm.output(job).splitlines() if not line.startswith("srun: ")]
    assert lines == [*map(str, range(len(lines) - 1)), "ended with 0"]


def await_text(slurm, job, text):
    wait_until(
        lambda: text in slurm.output(job) or "ended with" in slurm.output(job),
        90,
        f"'{text}' in the output of job {job}",
    )
    assert text in slurm.output(job)


def values_of(slurm, job):
    return lammps.values(slurm.output(job).splitlines())


def groups_of_job_nodes(slurm, host):
    """Returns the control groups of job nodes on a host, by the names of the memory controller."""
    find = ["find", "/sys/fs/cgroup/memory", "-name", "ppmr-*", "-printf", "/%P\n"]
    return slurm.hosts.nodes[host].run(find).stdout.split()


def groups_of_jobs(slurm, host):
    """Returns Slurm's control groups on a host, in all hierarchies."""
    return slurm.hosts.nodes[host].run(["find", "/sys/fs/cgroup", "-name", "job_*"]).stdout.split()


def await_no_trace(slurm):
    slurm.hosts.await_clean()
    wait_until(
        lambda: not any(groups_of_jobs(slurm, host) for host in slurm.hosts.names),
        30,
        "the control groups of the job to go",
        interval=0.2,
    )
    assert "Unable to destroy" not in "".join(slurm.log("slurmd", n) for n in slurm.hosts.names)


def test_failing_host_is_evacuated_drained_and_given_back(slurm, need_command):
    need_command("lmp")
    home = slurm.hosts.lab.home
    (home / "in.melt").write_text(lammps.melt(steps=2000))
    command = f"mpirun -n 6 lmp -in {home}/in.melt -log none"
    undisturbed = submit(slurm, command)
    assert slurm.await_end(undisturbed) == "COMPLETED", slurm.output(undisturbed)
    await_no_trace(slurm)

    job = submit(slurm, command)
    wait_until(lambda: len(values_of(slurm, job)) >= 20, 60, "20 lines of values")
    slurm.report_failing("h2")
    wait_until(lambda: slurm.node_states()["h2"] == "drained", 60, "h2 to be drained", 0.2)
    # The job continues: its node moved, and then the job released the host.
    assert slurm.job(job)["JobState"] == "RUNNING"
    assert slurm.job(job)["NodeList"] == "h[1,3-4]"
    [record] = slurm.hosts.status()
    assert record["allocation"] == job
    assert [node["host"] for node in record["nodes"]] == ["h1", "h4", "h3"]
    [group] = groups_of_job_nodes(slurm, "h4")
    assert f"/job_{job}/step_" in group
    assert groups_of_job_nodes(slurm, "h2") == []
    assert slurm.await_end(job) == "COMPLETED"
    assert len(values_of(slurm, undisturbed)) == 201
    assert values_of(slurm, job) == values_of(slurm, undisturbed)
    await_no_trace(slurm)


def test_slurm_accounts_a_node_on_the_host_to_which_it_moved(slurm):
    # Rank 1, alone on h2, takes 200 MB.
    taker = "import time; held = bytearray(b'x') * 200_000_000; print('held', flush=True)\n"
    taker += "while True: sum(range(100_000))\n"
    path = slurm.hosts.lab.home / "taker.py"
    path.write_text(taker)
    command = (
        f'mpirun -n 2 sh -c "[ $OMPI_COMM_WORLD_RANK = 0 ] || exec python3 {path}; sleep 1000"'
    )
    job = submit(slurm, command.replace("$", "\\$"), tasks_per_node=1)
    await_text(slurm, job, "held")

    def accounted():
        """Returns (host with the most memory, its bytes, seconds of CPU) for the whole step."""
        fields = "MaxRSSNode,MaxRSS,MaxRSSTask,AveCPU"
        words = ["sstat", "--noheader", "--parsable2", "--noconvert", f"--format={fields}"]
        [line] = slurm.command(*words, f"--jobs={job}.0").splitlines()
        host, size, *_ = line.split("|")
        return host, int(size)

    wait_until(lambda: accounted()[1] > 200_000_000, 20, "Slurm to see the memory", 0.5)
    assert accounted()[0] == "h2"
    [move] = slurm.hosts.evacuate("h2")
    assert move["ok"] and move["to"] == "h4"
    wait_until(lambda: memory_of_step(slurm, "h4", job) > 200_000_000, 20, "h4 to have it", 0.5)
    assert memory_of_step(slurm, "h2", job) < 100_000_000
    slurm.command("scancel", job)
    slurm.await_end(job)
    await_no_trace(slurm)


def memory_of_step(slurm, host, job):
    """Returns the bytes that the step uses on the host, from its control group, with which Slurm
    limits the step."""
    script = f"cat /sys/fs/cgroup/memory/slurm*/uid_0/job_{job}/step_0/memory.stat"
    stat = slurm.hosts.nodes[host].run(["sh", "-c", script]).stdout
    return int(dict(line.split() for line in stat.splitlines())["total_rss"])


def test_chosen_hosts_of_an_allocation_are_held_and_can_be_evacuated(slurm):
    job = submit(slurm, counting(slurm), "--hosts h3,h2 --spares 1")
    await_text(slurm, job, "\n10\n")
    [record] = slurm.hosts.status("h3")
    assert [host["name"] for host in record["hosts"]] == ["h3", "h2"]
    [move] = slurm.hosts.evacuate("h3", at="h3")
    assert move["ok"] and move["to"] == "h2"
    end_count(slurm, job)


def test_scancel_ends_the_job_nodes_on_all_hosts(slurm):
    job = submit(slurm, counting(slurm))
    await_text(slurm, job, "\n10\n")
    [move] = slurm.hosts.evacuate("h1")
    assert move["ok"]
    slurm.command("scancel", job)
    assert slurm.await_end(job) == "CANCELLED"
    await_no_trace(slurm)


def test_job_continues_when_slurm_loses_a_host_after_its_evacuation(slurm):
    job = submit(slurm, counting(slurm))
    await_text(slurm, job, "\n10\n")
    [move] = slurm.hosts.evacuate("h2")
    assert move["ok"]
    slurm.kill("slurmd", "h2")
    slurm.command("scontrol", "update", "NodeName=h2", "State=down", "Reason=test")
    end_count(slurm, job)
    assert slurm.node_states()["h2"].startswith("down")


def test_job_ends_when_its_step_ends_on_a_host(slurm):
    job = submit(slurm, counting(slurm))
    await_text(slurm, job, "\n10\n")
    node = slurm.hosts.nodes["h3"]
    [holder] = node.run(["pgrep", "-f", "job hold"]).stdout.split()
    node.signal(holder, 9)
    # State of the batch script, whose last command is `echo`.
    assert slurm.await_end(job) == "COMPLETED"
    assert f"the step of job {job} that held the host has ended" in slurm.output(job)
    await_no_trace(slurm)


def test_ordinary_user_has_job_nodes_on_all_hosts(slurm, lab):
    # Evacuations of users' jobs are in test_vm_jobs.py: CRIU may not dump other users' processes on
    # every machine.
    program, directory = "/run/ppmr-copy", lab.home / "of-user"
    for node in slurm.hosts.nodes.values():
        node.run(["cp", slurm.hosts.ppmr, program])
    directory.mkdir()
    shutil.chown(directory, "nobody")
    lab.directory.chmod(0o711)  # so that the user can read the configuration of Slurm
    lab.home.chmod(0o755)
    others = "".join(f"/run/ppmr/rsh {host} id -u; " for host in ("h2", "h3"))
    job = slurm.submit(
        f"{program} job run --spares 1 -- sh -c 'id -u; {others}'; echo ended with $?",
        nodes=HOSTS,
        options=["--uid=nobody", "--gid=nogroup", f"--output={directory}/out"],
        directory=directory,
    )
    assert slurm.await_end(job) == "COMPLETED"
    output = (directory / "out").read_text()
    assert output.splitlines() == ["65534"] * 3 + ["ended with 0"]
    await_no_trace(slurm)


def test_hosts_are_only_for_jobs_of_slurm(slurm):
    hosts = slurm.hosts
    outside = hosts.run(["--", "true"])
    assert outside.wait() == 1
    assert "in allocations of Slurm only" in outside.error_text()
    # A program that reports a host as held for a job must be in Slurm's control group of that job.
    holder = hosts.nodes["h1"].popen([hosts.ppmr, "job", "hold", "77"], stdin=-1)
    request = json.dumps({"op": "run", "hosts": ["h1"], "spares": [], "allocation": "77"})
    program = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/ppmr-job.sock'); s.sendall(b'{request}\\n'); print(s.makefile().readline())"
    answer = json.loads(hosts.nodes["h1"].run(["python3", "-c", program], timeout=60).stdout)
    assert not answer["ok"] and "is in no control group of that job" in answer["error"]
    holder.stdin.close()
    assert holder.wait(20) == 0


def check_fence(hosts, slurm, suspended):
    def fence(*words):
        command = [REPOSITORY / "jobs/slurm/slurm_fence", *words]
        return hosts.nodes["h1"].run(command, env=slurm.environment, check=False)

    def refused(*words):
        done = fence(*words)
        assert done.returncode == 1 and "slurm_fence: " in done.stderr, done
        return done.stderr

    def set_state(state):
        slurm.command("scontrol", "update", "NodeName=h2", f"State={state}", "Reason=test")

    assert "h2 is IDLE" in refused("h2")
    # Text of operators, which Slurm shows behind the state, must not count as a state.
    text = "waits for State=POWERED_DOWN by ops"
    slurm.command("scontrol", "update", "NodeName=h2", f"Reason={text}", f"Comment={text}")
    assert "h2 is IDLE" in refused("h2")
    assert "cannot ask Slurm for h9" in refused("h9")
    for wrong in ("h[1-2]", "", "h1,h2", "--all", "h2 State=POWERED_DOWN"):
        assert "is not the name of a host" in refused(wrong)
    assert "one host" in refused() and "one host" in refused("h1", "h2")
    slurm.kill("slurmd", "h2")
    set_state("down")
    assert "h2 is DOWN" in refused("h2")
    set_state("power_down")
    wait_until(suspended.exists, 60, "Slurm to power h2 off", 0.2)
    wait_until(lambda: fence("h2").returncode == 0, 60, "h2 to be off", 0.2)
    assert "powered_down" in slurm.command("sinfo", "-h", "-n", "h2", "-O", "StateComplete")
    set_state("power_up")
    wait_until(lambda: fence("h2").returncode != 0, 60, "h2 to start", 0.2)
    assert "h2 is" in refused("h2")
    slurm.kill("slurmctld", "h1")
    assert "cannot ask Slurm for h2" in refused("h2")


def test_fence_succeeds_only_if_slurm_has_powered_the_host_off(lab, need_command):
    for program in ("runc", "slurmd", "slurmctld", "munged"):
        need_command(program)
    suspended = lab.home / "suspended"
    suspend = lab.home / "suspend"
    suspend.write_text(f"#!/bin/sh\necho $1 >>{suspended}\n")
    suspend.chmod(0o755)
    power = [f"SuspendProgram={suspend}", "ResumeProgram=/bin/true", "SuspendTime=86400"]
    power += ["SuspendTimeout=3", "ResumeTimeout=600"]

    with JobHosts(lab, 2, control_groups=True) as hosts:
        with SlurmCluster(hosts, settings=power) as slurm:
            check_fence(hosts, slurm, suspended)


def script_for_the_time_limit(slurm, command, directory=None):
    """The script of docs/jobs.md, with this command. With a directory it suspends to this one, and
    does not go back into the queue itself: Slurm would let it wait for two minutes."""
    text = (REPOSITORY / "docs/jobs.md").read_text()
    [script] = re.findall(r"(    #SBATCH --nodes=4 [^\n]*--requeue.*?    exit \$code\n)", text, re.S)
    replaced = {
        r"\bppmr job": f"{slurm.hosts.ppmr} job",
        r"mpirun ./simulation": command,
    }
    if not directory:
        replaced[r"\$SLURM_SUBMIT_DIR"] = str(slurm.hosts.lab.home)
    else:
        replaced |= {r"dir=.*": f"dir={directory}", r"exec scontrol requeue.*;": "exit 75;"}
    for old, new in replaced.items():
        script, count = re.subn(old, lambda _, new=new: new, script)
        assert count, old
    return re.sub("^    ", "", script, flags=re.M)


def test_job_goes_on_in_another_allocation_after_its_time_limit(slurm):
    directory = slurm.hosts.lab.home / "suspended"
    script = script_for_the_time_limit(slurm, counting(slurm), directory)

    def submit_to(nodes):
        return slurm.submit(script, nodes=2, options=[f"--nodelist={nodes}"])

    first = submit_to("h1,h2")
    await_text(slurm, first, "\n10\n")
    slurm.command("scancel", "--batch", "--signal=TERM", first)
    assert slurm.await_end(first) == "FAILED", slurm.output(first)
    assert slurm.job(first)["ExitCode"] == "75:0", slurm.output(first)
    await_no_trace(slurm)
    second = submit_to("h3,h4")
    await_count(slurm, [second])
    end_file(slurm).touch()
    assert slurm.await_end(second) == "COMPLETED", slurm.output(second)
    printed = numbers(slurm.output(first)) + numbers(slurm.output(second))
    assert printed == [*map(str, range(len(printed)))]
    assert not directory.exists()
    await_no_trace(slurm)


@pytest.mark.long
def test_array_goes_on_from_the_queue_after_its_time_limit(slurm):
    """Both tasks share their hosts. Slurm holds each for two minutes when it is back in the
    queue."""
    script = script_for_the_time_limit(slurm, counting(slurm))
    options = ["--array=0-1", "--nodelist=h1,h2"]
    array = slurm.submit(script, nodes=2, options=options)
    tasks = [f"{array}_{number}" for number in (0, 1)]
    for task in tasks:
        await_text(slurm, task, "\n10\n")
    slurm.command("scancel", "--batch", "--signal=TERM", array)
    for task in tasks:
        wait_until(lambda task=task: slurm.job(task)["Restarts"] == "1", 400, f"{task} to restart")
    await_count(slurm, tasks)
    end_file(slurm).touch()
    for task in tasks:
        assert slurm.await_end(task, timeout=400) == "COMPLETED", slurm.output(task)
        assert slurm.job(task)["Restarts"] == "1", "it went back into the queue"
        printed = numbers(slurm.output(task))
        assert printed == [*map(str, range(len(printed)))]
    assert not list(slurm.hosts.lab.home.glob("suspended-*"))
    await_no_trace(slurm)
