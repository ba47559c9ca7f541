"""Jobs that leave a host: `ppmr job run`, `evacuate` and `status` with agents on several hosts."""

import fcntl
import json
import re
import shutil
import signal
import struct
import time

import pytest

from lab import lammps
from lab.job_hosts import AS_ROOT, SOCKET, JobHosts
from lab.node import wait_until
from lab.pace import patience
from lab.programs import REPOSITORY
from lab.tracking import tracks_writes

MOVED, STAYED = 0, 11


@pytest.fixture
def make_hosts(lab, need_command):
    need_command("runc")
    opened = []

    def make(count, **options):
        opened.append(JobHosts(lab, count, **options))
        return opened[-1]

    yield make
    for hosts in opened:
        hosts.close()


def place_of(hosts, node, at="h1"):
    [job] = hosts.status(at)
    return next(each["host"] for each in job["nodes"] if each["name"] == node)


def states(hosts, at="h1"):
    [job] = hosts.status(at)
    return {host["name"]: host["state"] for host in job["hosts"]}


def rounds_of_last_move(hosts, name):
    """Returns the bytes of each round of private memory, from the last move of a node off this
    host."""
    node, directory = hosts.nodes[name], hosts.state_directory(name)
    records = []
    for one in node.names(directory):
        if one.endswith(".source"):
            versions = [int(v[:-5]) for v in node.names(directory / one) if v.endswith(".json")]
            records.append(json.loads(node.read_text(directory / one / f"{max(versions)}.json")))
    last = max(records, key=lambda record: record["history"][0][1])
    return [bytes_ for _, bytes_ in last["trees"][0]["rounds"]]


def test_job_leaves_its_host_and_loses_no_output(make_hosts):
    hosts = make_hosts(3)
    job = hosts.start_count()
    job.await_lines(5)
    [move] = hosts.evacuate("h1", at="h2")
    assert move["ok"] and move["to"] == "h3" and 0 < move["downtime_s"] < 20
    assert bool(rounds_of_last_move(hosts, "h1")) == tracks_writes()
    assert states(hosts) == {"h1": "out", "h2": "ready", "h3": "ready"}
    assert place_of(hosts, "h1") == "h3"
    assert hosts.containers("h1") == []
    job.end_count()
    hosts.await_clean()


def test_job_that_wants_rdma_uses_tcp_where_there_is_no_device(make_hosts):
    hosts = make_hosts(3)
    words = ["--rdma", "--spares", "1", "--slots", "1", "--", "sh", "-c", 'echo "$UCX_TLS"']
    job = hosts.run(words)
    assert job.wait() == 0, job.error_text()
    first = job.error_text().splitlines()[0]
    assert first.startswith("ppmr job run: ranks use TCP, not RDMA: "), first
    assert "it has no RDMA device" in first
    assert job.output() == ["tcp,posix,self"]
    hosts.await_clean()


def test_mpi_job_computes_the_same_result_while_two_hosts_are_evacuated(make_hosts, need_command):
    need_command("lmp")
    hosts = make_hosts(5)
    (hosts.lab.home / "in.melt").write_text(lammps.melt(steps=1500))
    words = ["--spares", "2", "--slots", "2", "--", "mpirun", "-n", "6"]
    words += ["lmp", "-in", "in.melt", "-log", "none"]

    def run(*evacuated):
        job = hosts.run(words, environment=AS_ROOT)
        job.await_lines(30)
        moves = [hosts.evacuate(host) for host in evacuated]
        assert job.wait(200) == 0, job.error_text()
        assert [move["ok"] for [move] in moves] == [True] * len(evacuated)
        steps = [line for line in job.output() if re.match(r" +\d+ +-?\d+\.\d+ ", line)]
        assert len(steps) == 151
        return steps, job.longest_silence(), [move["downtime_s"] for [move] in moves]

    undisturbed, _, _ = run()
    disturbed, silence, downtimes = run("h2", "h1")  # mpirun is on h1
    assert disturbed == undisturbed
    # This is not the downtime that users see: bench/ measures that on a quiet machine.
    assert silence <= max(downtimes) + 5
    hosts.await_clean()


@pytest.mark.parametrize(
    "ranks, evacuated",
    [
        (4, "h1"),  # with mpiexec
        (4, "h2"),
        pytest.param(2, "h1", marks=pytest.mark.long),
        pytest.param(2, "h2", marks=pytest.mark.long),
        pytest.param(8, "h1", marks=pytest.mark.long),
        pytest.param(8, "h2", marks=pytest.mark.long),
    ],
)
def test_mpich_job_continues_after_an_evacuation(make_hosts, need_command, ranks, evacuated):
    need_command("mpiexec.hydra")
    hosts, rounds = make_hosts(3), 200
    # A directory that job nodes can read.
    shutil.copy(REPOSITORY / "tests/workloads/mpich_sums.py", hosts.lab.home)
    program = ["/usr/bin/python3", hosts.lab.home / "mpich_sums.py", rounds]
    words = ["--spares", "1", "--slots", ranks // 2, "--", "mpiexec.hydra", "-n", ranks, *program]
    job = hosts.run([str(word) for word in words])
    job.await_lines(30)
    [move] = hosts.evacuate(evacuated)
    assert move["ok"] and move["to"] == "h3"
    assert job.wait() == 0, job.error_text()
    of_all = ranks * (ranks + 1) // 2
    assert job.output() == [f"{number} {number * of_all}" for number in range(rounds)]
    hosts.await_clean()


MPI = {"openmpi": "mpirun", "mpich": "mpiexec.hydra"}


@pytest.mark.parametrize(
    "mib, library",
    [
        (96, "openmpi"),
        (96, "mpich"),
        pytest.param(1536, "openmpi", marks=pytest.mark.long),
        pytest.param(1536, "mpich", marks=pytest.mark.long),
    ],
)
def test_shared_window_of_mpi_is_whole_after_an_evacuation(make_hosts, need_command, mib, library):
    need_command(MPI[library])
    hosts = make_hosts(3)
    home = hosts.lab.home
    shutil.copy(REPOSITORY / "tests/workloads/mpi_shared_window.py", home)
    program = ["/usr/bin/python3", home / "mpi_shared_window.py", library, mib]
    words = ["--spares", "1", "--slots", "2", "--", MPI[library], "-n", "4", *program]
    job = hosts.run([str(word) for word in words], environment=AS_ROOT)
    job.await_lines(30)
    [move] = hosts.evacuate("h2")
    assert move["ok"] and move["to"] == "h3", move
    rounds = len(job.lines)
    job.await_lines(rounds + 30)
    silence = job.longest_silence()
    (home / "end").touch()
    assert job.wait() == 0, job.error_text()
    *numbers, first, second, third, fourth = job.output()
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert sorted([first, second, third, fourth]) == [
        f"rank {rank}: {mib << 20} bytes compared, 0 words wrong" for rank in range(4)
    ]
    # The window is copied while the ranks run; they stand still for what they have written since.
    print(f"window of {mib} MiB: {silence:.2f} s without a line, {move['downtime_s']:.2f} s down")
    hosts.await_clean()


def test_job_writes_its_locked_hdf5_file_after_an_evacuation(make_hosts):
    h5py = pytest.importorskip("h5py", reason="python3-h5py is missing")
    hosts = make_hosts(3)
    home = hosts.lab.home
    shutil.copy(REPOSITORY / "tests/workloads/hdf5_writer.py", home)
    program = f"/usr/bin/python3 {home}/hdf5_writer.py rows.h5"
    remote = f"/run/ppmr/rsh h2 'cd {home}; exec {program}'"
    job = hosts.run(["--spares", "1", "--slots", "1", "--", "sh", "-c", remote])
    job.await_lines(20)

    def refuse_a_second_writer():
        with pytest.raises(BlockingIOError, match="unable to lock file"):
            h5py.File(home / "rows.h5", "r+")

    refuse_a_second_writer()
    [move] = hosts.evacuate("h2")
    assert move["ok"] and move["to"] == "h3", move
    job.await_lines(len(job.lines) + 20)
    refuse_a_second_writer()
    print(f"{job.longest_silence():.2f} s without a line, {move['downtime_s']:.2f} s down")
    (home / "end").touch()
    assert job.wait() == 0, job.error_text()
    rows = len(job.lines)
    assert job.output() == [str(number) for number in range(1, rows + 1)]
    with h5py.File(home / "rows.h5", "r") as file:
        found = file["rows"][:]
    assert found.shape == (rows, 1000)
    assert found.ravel().tolist() == list(range(rows * 1000))
    hosts.await_clean()


def test_root_of_a_moved_node_grants_no_writes_and_no_privileges(make_hosts):
    hosts = make_hosts(2)
    show = "awk '$5 == \"/\" {print $6}' /proc/self/mountinfo"
    script = f"{show}; until [ -e moved ]; do sleep 0.05; done; {show}"
    job = hosts.run(["--spares", "1", "--", "sh", "-c", script])
    job.await_lines(1)
    [move] = hosts.evacuate("h1")
    assert move["ok"], move
    (hosts.lab.home / "moved").touch()
    assert job.wait() == 0
    for options in job.output():
        assert {"ro", "nosuid"} <= set(options.split(","))
    assert len(job.output()) == 2


def test_node_stays_when_no_spare_is_left(make_hosts):
    hosts = make_hosts(2)
    job = hosts.start_count(words=("--slots", "1"))
    job.await_lines(5)
    [move] = hosts.evacuate("h2", check=False)
    assert not move["ok"] and "no spare host left" in move["error"]
    assert hosts.command("h1", "evacuate", "h2", check=False).returncode == STAYED
    assert states(hosts) == {"h1": "ready", "h2": "ready"}
    job.end_count()


def test_evacuation_to_a_host_that_is_no_spare_is_refused(make_hosts):
    hosts = make_hosts(3)
    job = hosts.start_count()
    job.await_lines(5)
    for wrong in ("h2", "h1", "nowhere"):
        [move] = hosts.evacuate("h1", "--to", wrong, check=False)
        assert not move["ok"] and "is not a spare" in move["error"]
    [move] = hosts.evacuate("h1", "--to", "h3")
    assert move["ok"]
    job.end_count()


def test_all_processes_of_a_job_end_with_its_launcher(make_hosts):
    hosts = make_hosts(3)
    job = hosts.start_count()
    job.await_lines(5)
    assert len(hosts.leftovers()) == 2
    job.signal(signal.SIGKILL)
    hosts.await_clean()


def test_exit_code_signal_and_standard_input_pass_through(make_hosts):
    hosts = make_hosts(1)
    assert hosts.run(["--", "sh", "-c", "kill -9 $$"]).wait() == 128 + 9
    assert hosts.run(["--", "no-such-program"]).wait() == 127
    job = hosts.run(
        ["--", "sh", "-c", "trap 'echo caught; exit 5' TERM; echo ready; read x"], stdin=-1
    )
    job.await_lines(1)
    job.signal(signal.SIGTERM)
    assert job.wait() == 5 and job.output() == ["ready", "caught"]
    echo = hosts.run(["--", "sh", "-c", "cat; echo end"], stdin=-1)
    echo.process.stdin.write("one\ntwo\n")
    echo.process.stdin.close()
    assert echo.wait() == 0 and echo.output() == ["one", "two", "end"]
    hosts.await_clean()


def test_nodes_know_the_names_and_addresses_of_all_nodes_in_their_order(make_hosts):
    hosts = make_hosts(2)
    script = "cat /run/ppmr/hosts.openmpi /run/ppmr/hosts.hydra /etc/hosts"
    script += "; /usr/sbin/ip -o neighbour show nud permanent"
    job = hosts.run(["--hosts", "h2,h1", "--slots", "3", "--", "sh", "-c", script])
    assert job.wait() == 0, job.error_text()
    *lines, neighbour, other = job.output()
    assert lines[:5] == ["h2 slots=3", "h1 slots=3", "h2:3", "h1:3", "127.0.0.1 localhost"]
    addresses = dict(reversed(line.split()) for line in lines[5:])
    assert list(addresses) == ["h2", "h1"]
    assert {neighbour.split()[0], other.split()[0]} == set(addresses.values())


def test_large_output_arrives_complete(make_hosts):
    hosts = make_hosts(3)
    script = "seq 1 150000; until [ -e moved ]; do sleep 0.05; done; seq 150001 300000"
    job = hosts.run(["--spares", "1", "--", "sh", "-c", script])
    job.await_lines(1)
    [move] = hosts.evacuate("h1")
    assert move["ok"], move
    (hosts.lab.home / "moved").touch()
    assert job.wait() == 0
    assert job.output() == [str(number) for number in range(1, 300_001)]


def test_job_continues_without_agents_and_new_agents_can_evacuate_it(make_hosts):
    hosts = make_hosts(3)
    job = hosts.start_count()
    job.await_lines(5)
    for name in hosts.names:
        hosts.kill_agent(name)
    job.await_lines(len(job.lines) + 10)
    for name in hosts.names:
        hosts.start_agent(name)
    [move] = hosts.evacuate("h2")
    assert move["ok"]
    job.end_count()
    hosts.await_clean()


@pytest.mark.parametrize(
    "role, state, kills_migrate, moves",
    [
        pytest.param("source", "frozen", False, True, marks=pytest.mark.long),
        ("source", "frozen", True, False),
        ("source", "committed", False, True),
        pytest.param("source", "committed", True, True, marks=pytest.mark.long),
        ("target", "ready", False, True),
    ],
)
def test_new_agent_concludes_a_move_whose_agent_was_killed(
    make_hosts, lab, role, state, kills_migrate, moves
):
    pauses = lab.directory / "pauses"
    pauses.write_text("")
    hosts = make_hosts(3, environment={"PPMR_PAUSE_FILE": str(pauses)})
    job = hosts.start_count()
    job.await_lines(5)
    pauses.write_text(f"{role}:{state}")
    evacuation = hosts.nodes["h1"].popen([hosts.ppmr, "job", "evacuate", "h2"])
    at = "h2" if role == "source" else "h3"

    def paused():
        directory = hosts.nodes[at].host_path(hosts.state_directory(at))
        return list(directory.glob(f"*.{role}/paused-{state}"))

    wait_until(paused, 30, "the move to pause")
    hosts.kill_agent("h2")
    evacuation.wait(20)
    if kills_migrate:
        hosts.nodes["h2"].run(["pkill", "-KILL", "-f", "ppmr migrate"])
    pauses.write_text("")
    hosts.start_agent("h2")
    if not kills_migrate:  # the new agent must not conclude a migration that still runs
        assert (
            hosts.nodes["h1"].run([hosts.ppmr, "job", "evacuate", "h2"], check=False).returncode
            == STAYED
        )
        assert "moving" in states(hosts).values()
    for marker in paused():
        marker.unlink()
    wait_until(
        lambda: "moving" not in states(hosts).values(), 60, "the move to be settled", interval=0.2
    )
    assert (place_of(hosts, "h2") == "h3") == moves
    job.end_count()
    hosts.await_clean()


@pytest.mark.long
def test_move_of_a_node_may_take_longer_than_ten_minutes(make_hosts, lab):
    """An agent once killed a move that took longer, with CRIU inside."""
    pauses = lab.directory / "pauses"
    pauses.write_text("source:preparing")
    hosts = make_hosts(3, environment={"PPMR_PAUSE_FILE": str(pauses)})
    job = hosts.start_count()
    job.await_lines(5)
    source, directory = hosts.nodes["h2"], hosts.state_directory("h2")
    evacuation = hosts.nodes["h1"].popen([hosts.ppmr, "job", "evacuate", "h2"])
    [marker] = wait_until(
        lambda: list(source.host_path(directory).glob("*.source/paused-preparing")), 30, "the move"
    )
    steer = [hosts.ppmr, "migrate", "--state-dir", directory]
    migration = marker.parent.name.removesuffix(".source")
    source.run([*steer, "--pause", migration])
    pauses.write_text("")
    marker.unlink()
    time.sleep(620)  # longer than the limit was
    assert evacuation.poll() is None and "moving" in states(hosts).values()
    source.run([*steer, "--resume", migration])
    assert evacuation.wait(60) == MOVED and place_of(hosts, "h2") == "h3"
    job.await_lines(len(job.output()) + 20)


def test_evacuated_host_takes_no_node_until_it_is_returned(make_hosts):
    hosts = make_hosts(3)
    job = hosts.start_count()
    job.await_lines(5)
    done = hosts.command("h1", "evacuate", "h3")  # has no node: it is only a spare
    assert "has no job nodes" in done.stdout and "ppmr job return h3" in done.stdout
    evacuation = json.loads(
        hosts.command("h1", "evacuate", "h2", "--json", check=False).stdout.splitlines()[-1]
    )
    [move] = evacuation["moves"]
    assert not evacuation["ok"] and "h3 is out (evacuated)" in move["error"]
    assert states(hosts) == {"h1": "ready", "h2": "ready", "h3": "out"}
    outside = hosts.run(["--hosts", "h3", "--", "true"])
    assert outside.wait() == 1 and "ppmr job return h3" in outside.error_text()
    hosts.command("h1", "return", "h3")
    [move] = hosts.evacuate("h2")
    assert move["to"] == "h3"
    # A host that its node has left becomes a spare of the running job again.
    hosts.command("h2", "return", "h2")
    wait_until(lambda: states(hosts)["h2"] == "spare", 15, "h2 to be a spare", interval=0.2)
    [move] = hosts.evacuate("h3")
    assert move["to"] == "h2"
    assert states(hosts) == {"h1": "ready", "h2": "ready", "h3": "out"}
    job.end_count()


def test_dead_spares_are_passed_over_and_a_dead_host_is_lost(make_hosts):
    hosts = make_hosts(7)
    job = hosts.start_count(words=("--spares", "5", "--slots", "1"))
    job.await_lines(5)
    for dead in ("h3", "h4", "h5", "h6"):
        hosts.links[dead].set_up(False)
    began = time.monotonic()
    [move] = hosts.evacuate("h2")
    assert move["ok"] and move["to"] == "h7"
    assert time.monotonic() - began < patience(20)  # a connection to one of them takes that long
    hosts.links["h7"].set_up(False)
    wait_until(lambda: states(hosts)["h7"] == "lost", 10, "h7 to be lost", interval=0.2)
    [record] = hosts.status()
    assert [node["state"] for node in record["nodes"]] == ["ready", "lost"]
    began = time.monotonic()
    done = hosts.command("h1", "evacuate", "h7", check=False)
    assert done.returncode == 1 and "host h7 does not answer" in done.stderr
    assert time.monotonic() - began < patience(10)
    hosts.links["h7"].set_up(True)
    wait_until(lambda: states(hosts)["h7"] == "ready", 15, "h7 to answer", interval=0.2)


def test_spare_whose_agent_is_away_is_inactive_until_the_agent_is_back(make_hosts):
    hosts = make_hosts(4)
    job = hosts.start_count(words=("--spares", "2", "--slots", "1"))
    job.await_lines(5)
    hosts.kill_agent("h3")
    [move] = hosts.evacuate("h2")
    assert move["ok"] and move["to"] == "h4"
    assert states(hosts) == {"h1": "ready", "h2": "out", "h3": "inactive", "h4": "ready"}
    hosts.start_agent("h3")
    wait_until(lambda: states(hosts)["h3"] == "spare", 15, "h3 to answer", interval=0.2)


def await_undecided(hosts):
    """Waits until a move from h2 to h3 is complete at both hosts and waits for the decision.
    Returns the file whose removal lets the move go on."""
    source, target = [
        hosts.nodes[name].host_path(hosts.state_directory(name)) for name in ("h2", "h3")
    ]

    def is_ready(record):
        newest = max(record.glob("[0-9]*.json"), key=lambda path: int(path.stem))
        return '"ready"' in newest.read_text()

    wait_until(lambda: list(source.glob("*.source/paused-sealed")), 30, "the sealed images")
    wait_until(lambda: any(map(is_ready, target.glob("*.target"))), 30, "the copy at the spare")
    [paused] = source.glob("*.source/paused-sealed")
    return paused


def test_move_in_progress_is_cancelled(make_hosts, lab):
    pauses = lab.directory / "pauses"
    pauses.write_text("source:sealed")
    hosts = make_hosts(3, environment={"PPMR_PAUSE_FILE": str(pauses)})
    job = hosts.start_count()
    job.await_lines(5)
    nothing = hosts.command("h1", "evacuate", "h2", "--cancel")
    assert "no job node that you may move leaves host h2" in nothing.stdout
    evacuation = hosts.nodes["h1"].popen([hosts.ppmr, "job", "evacuate", "h2"])
    paused = await_undecided(hosts)
    done = hosts.command("h1", "evacuate", "h2", "--cancel")
    assert "stays: its move is cancelled" in done.stdout
    pauses.write_text("")
    paused.unlink()
    assert evacuation.wait(patience(60)) == STAYED
    assert states(hosts) == {"h1": "ready", "h2": "ready", "h3": "spare"}
    job.end_count()


@pytest.mark.parametrize(
    "decides", [pytest.param("the operator", marks=pytest.mark.long), "the end of the job"]
)
def test_node_whose_host_lost_power_in_its_move_runs_at_the_spare_or_is_removed(
    make_hosts, lab, decides
):
    pauses = lab.directory / "pauses"
    pauses.write_text("source:sealed")
    hosts = make_hosts(3, environment={"PPMR_PAUSE_FILE": str(pauses)})
    words = ("--hosts", "h2,h1,h3", "--spares", "1", "--slots", "1")
    job = hosts.start_count(words=words)
    job.await_lines(5)
    evacuation = hosts.nodes["h1"].popen([hosts.ppmr, "job", "evacuate", "h2"], stderr=-3)
    paused = await_undecided(hosts)
    hosts.links["h2"].set_up(False)
    hosts.kill_agent("h2")
    hosts.nodes["h2"].run(["pkill", "-KILL", "ppmr"])  # also process 1 of the job node
    assert evacuation.wait(patience(60)) == 1  # TCP notices that the host is gone
    pauses.write_text("")
    if decides == "the operator":
        migration = paused.parent.name.removesuffix(".source")
        resolve = [hosts.ppmr, "migrate", "--state-dir", hosts.state_directory("h3")]
        hosts.nodes["h3"].run([*resolve, "--resolve", migration, "--run-here"], input="h2\n")
        wait_until(lambda: place_of(hosts, "h2") == "h3", 60, "the home to know", interval=0.2)
        job.end_count()
    else:
        job.signal(signal.SIGKILL)
    wait_until(lambda: "h3" not in hosts.leftovers(), 60, "h3 to be clean", interval=0.2)


# Locks a file, as HDF5 does, and accepts a connection late, as an MPI rank that computes does.
LOCKING_SERVER = """
import fcntl, os, socket, time
locked = open("locked", "w")
fcntl.flock(locked, fcntl.LOCK_EX)
listener = socket.create_server(("", 9000))
open("listens", "w").close()
while not os.path.exists("accept"): time.sleep(0.05)
connection, _ = listener.accept()
connection.sendall(connection.recv(100).upper())
while not os.path.exists("end"): time.sleep(0.05)
"""
EARLY_CLIENT = """
import os, socket, time
while not os.path.exists("listens"): time.sleep(0.05)
connection = socket.create_connection(("h2", 9000))
connection.sendall(b"early")
print("connected", flush=True)
print(connection.recv(100).decode(), flush=True)
while not os.path.exists("end"): time.sleep(0.05)
"""


def test_node_waits_for_an_accept_and_keeps_its_lock_on_a_shared_file(make_hosts):
    hosts = make_hosts(3)
    home = hosts.lab.home
    (home / "server.py").write_text(LOCKING_SERVER)
    (home / "client.py").write_text(EARLY_CLIENT)
    server = f"/run/ppmr/rsh h2 'cd {home}; exec /usr/bin/python3 server.py'"
    script = f"{server} & /usr/bin/python3 client.py; wait"
    job = hosts.run(["--spares", "1", "--slots", "1", "--", "sh", "-c", script])
    job.await_lines(1)
    evacuation = hosts.nodes["h1"].popen([hosts.ppmr, "job", "evacuate", "h2"])
    waits = "waits until its program accepts the connections to port 9000"
    wait_until(lambda: waits in hosts.agent_log("h2"), 20, "the host to wait")
    (home / "accept").touch()
    assert evacuation.wait(patience(60)) == MOVED
    with open(home / "locked") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (home / "end").touch()
    assert job.wait() == 0, job.error_text()
    assert job.output() == ["connected", "EARLY"]


def test_job_that_lost_a_node_ends_with_a_message(make_hosts):
    hosts = make_hosts(2)
    job = hosts.start_count(words=("--slots", "1"))
    job.await_lines(5)
    hosts.nodes["h2"].run(["runc", "kill", hosts.containers("h2")[0], "KILL"])
    assert job.wait() == 1
    assert "node h2 on host h2 was lost" in job.error_text()
    hosts.await_clean()


def test_job_whose_host_does_not_answer_ends_with_a_message(make_hosts):
    hosts = make_hosts(2, agent_options=["--host-timeout", "6"])
    job = hosts.start_count(words=("--slots", "1"))
    job.await_lines(5)
    hosts.links["h2"].set_up(False)
    assert job.wait() == 1
    assert "host h2 does not answer" in job.error_text()
    # The host removes the files and containers of the job by itself, because the home does not
    # answer.
    hosts.await_clean()


def test_two_hosts_are_evacuated_at_once(make_hosts):
    hosts = make_hosts(4)
    job = hosts.start_count(words=("--spares", "2", "--slots", "1"))
    job.await_lines(5)
    running = [
        hosts.nodes["h1"].popen([hosts.ppmr, "job", "evacuate", host]) for host in ("h1", "h2")
    ]
    assert [each.wait(60) for each in running] == [MOVED, MOVED]
    assert states(hosts) == {"h1": "out", "h2": "out", "h3": "ready", "h4": "ready"}
    job.end_count()
    hosts.await_clean()


def test_host_under_another_name_is_refused(make_hosts):
    hosts = make_hosts(2)
    job = hosts.run(["--hosts", "10.78.0.2", "--", "true"])
    assert job.wait() == 1
    assert "serves the host h2: use that name" in job.error_text()
    hosts.await_clean()


def test_dry_run_names_the_hosts_that_cannot_have_job_nodes(make_hosts):
    hosts = make_hosts(2)
    done = hosts.command("h1", "run", "--hosts", "h1,h2", "--dry-run")
    assert done.stdout.splitlines() == [f"{name}: can have job nodes" for name in ("h1", "h2")]
    hosts.kill_agent("h2")
    done = hosts.command("h1", "run", "--hosts", "h1,h2", "--dry-run", check=False)
    assert done.returncode == 1 and "h2: " in done.stdout and "refused" in done.stdout


# ---- Requests from other programs ----------------------------------------------------------------

HOOKS = "/run/ppmr-job/hooks"


def await_result(hosts, name, host):
    path = hosts.nodes[host].host_path(f"{HOOKS}/{name}.result")
    wait_until(path.exists, 60, f"the result of {name}")
    wait_until(lambda: not path.with_suffix(".request").exists(), 10, "the request to be removed")
    return json.loads(path.read_text())


def test_request_file_evacuates_its_host_and_gets_a_result(make_hosts):
    hosts = make_hosts(3)
    job = hosts.start_count()
    job.await_lines(5)
    node = hosts.nodes["h2"]
    node.run(["sh", "-c", f"echo '[' >{HOOKS}/broken.request"])
    assert "malformed request" in await_result(hosts, "broken", "h2")["error"]
    node.run(["touch", f"{HOOKS}/drain.request"])
    [move] = await_result(hosts, "drain", "h2")["moves"]
    assert move["ok"] and (move["from"], move["to"]) == ("h2", "h3")
    job.end_count()


def test_health_check_requests_an_evacuation_and_then_drains_the_host(make_hosts, lab):
    hosts = make_hosts(3)
    job = hosts.start_count()
    job.await_lines(5)
    drain, called = lab.home / "drain", lab.home / "scontrol-called"
    programs = lab.home / "bin"
    programs.mkdir()
    for name in ("scontrol", "logger"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{called}\n')
        (programs / name).chmod(0o755)
    check = ["env", f"PATH={programs}:/usr/bin:/bin", f"PPMR_DRAIN_FILE={drain}"]
    check += ["SLURMD_NODENAME=slurm-h2", f"PPMR_EDAC={lab.home}/edac"]
    check += [f"PPMR_THERMAL={lab.home}/thermal", str(REPOSITORY / "jobs/slurm/health_check")]
    hosts.nodes["h2"].run(check)
    assert not called.exists() and place_of(hosts, "h2") == "h2"
    counters = lab.home / "edac/mc0"
    counters.mkdir(parents=True)
    (counters / "ue_count").write_text("1\n")
    hosts.nodes["h2"].run(check)
    [move] = await_result(hosts, "health", "h2")["moves"]
    assert move["ok"] and place_of(hosts, "h2") == "h3"
    hosts.nodes["h2"].run(check)
    requested, drained = called.read_text().splitlines()
    assert requested.startswith("logger") and "uncorrected memory errors" in requested
    assert drained.startswith("scontrol update NodeName=slurm-h2 State=drain Reason=ppmr: uncorr")
    job.end_count()


# ---- Users ---------------------------------------------------------------------------------------

ASK = f"""
import json, socket, sys
agent = socket.socket(socket.AF_UNIX)
agent.connect({SOCKET!r})
agent.sendall(sys.stdin.buffer.read())
print(agent.makefile().readline())
"""


def ask_as_nobody(hosts, request, host="h1"):
    done = hosts.nodes[host].run(
        [
            "setpriv",
            "--reuid=nobody",
            "--regid=nogroup",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            ASK,
        ],
        input=json.dumps(request) + "\n",
    )
    return json.loads(done.stdout)


def test_user_cannot_see_move_or_end_the_job_of_another_user(make_hosts):
    hosts = make_hosts(3)
    job = hosts.start_count()
    job.await_lines(5)
    [record] = hosts.status()
    assert "token" not in json.dumps(record)
    assert ask_as_nobody(hosts, {"op": "status"})["jobs"] == []
    assert ask_as_nobody(hosts, {"op": "evacuate", "host": "h1"})["evacuation"]["moves"] == []
    assert ask_as_nobody(hosts, {"op": "evacuate", "host": "h2"})["evacuation"]["moves"] == []
    refused = ask_as_nobody(hosts, {"op": "end", "job": record["job"]})
    assert not refused["ok"] and "another user" in refused["error"]
    job.end_count()


@pytest.mark.parametrize("op", ["join", "leave", "arrived", "reserve", "settle", "place", "hello"])
def test_user_cannot_make_the_requests_of_agents(make_hosts, op):
    hosts = make_hosts(1)
    spec = {"job": "00000000", "index": 0, "name": "h1", "address": "10.0.1.9", "home": "h1"}
    spec |= {"token": "00", "uid": 0, "gid": 0, "groups": [], "hosts": ""}
    request = {"op": op, "spec": spec, "expected": False, "container": "x", "job": "00000000"}
    answer = ask_as_nobody(hosts, request)
    assert not answer["ok"] and "unknown request" in answer["error"]
    assert not hosts.leftovers()


def test_processes_of_a_job_have_the_rights_of_their_user_only(make_hosts):
    hosts = make_hosts(1)
    node = hosts.nodes["h1"]
    node.run(["cp", hosts.ppmr, "/run/ppmr-copy"])
    script = "id -u; id -g; cat /etc/shadow; echo x >/usr/x; ls -A /run; grep -E 'CapEff|NoNewPrivs' /proc/self/status"
    done = node.run(
        [
            *("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"),
            *("env", "--chdir=/", "/run/ppmr-copy", "job", "run", "--hosts", "h1"),
            *("--", "sh", "-c", script),
        ],
        check=False,
    )
    assert done.stdout.split() == [
        *("65534", "65534", "ppmr", "ppmr-program"),
        *("CapEff:", "0000000000000000", "NoNewPrivs:", "1"),
    ]
    assert "/etc/shadow: Permission denied" in done.stderr
    assert "Read-only file system" in done.stderr


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_job_node_refuses_commands_without_the_token_of_its_job(make_hosts):
    hosts = make_hosts(1)
    script = "/run/ppmr/rsh h1 echo allowed; exec /usr/bin/python3 -c '{}'"
    # A request with a token of the right length: token, directory, nothing about a resumption,
    # number of arguments, argument.
    fields = (b"0" * 32, b"/", b"", b"", b"", b"", b"1", b"id")
    request = b"".join(field + b"\0" for field in fields)
    header = struct.pack(">BQI", 1, 0, len(request))
    frame = header + struct.pack(">I", crc32c(header + request)) + request
    stranger = (
        'import socket; s=socket.create_connection(("h1",7474));'
        f's.sendall(bytes.fromhex("{frame.hex()}")); print(s.recv(1000)[17:].decode())'
    )
    job = hosts.run(["--", "sh", "-c", script.format(stranger)])
    assert job.wait() == 0, job.error_text()
    refused = "start a command: the client does not have the token of this job"
    assert job.output() == ["allowed", refused]


def test_host_admits_only_the_users_that_its_program_admits(make_hosts):
    hosts = make_hosts(1, agent_options=["--admit", "/usr/bin/false"])
    job = hosts.run(["--", "true"])
    assert job.wait() == 1
    assert "may not have job nodes on this host" in job.error_text()
    hosts.await_clean()
