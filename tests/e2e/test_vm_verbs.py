"""RDMA for real: the verbs mover between the two machines of tests/vm, whose devices are software but whose verbs are the kernel's."""
import json
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab.node import LabError, wait_until  # noqa: E402
from lab.ppmr import find_ppmr  # noqa: E402
from lab.programs import Line, chain_state, find_program  # noqa: E402
from vm.virtual_lab import VirtualLab  # noqa: E402

MIB = 1 << 20
PEER_TIMEOUT = 6
FIRST_PID = 20000  # of programs: free on both machines
CRIU = "/usr/sbin/criu"


@pytest.fixture(scope="module")
def machines():
    if not shutil.which("qemu-system-x86_64"):
        pytest.skip("RDMA IS NOT TESTED: no qemu-system-x86_64 (third_party/install)")
    with VirtualLab() as lab:
        yield lab


class Pair:
    """Both mounts: the source on machine a, the target on b. `with` ends them, whatever state they are in."""
    number = 0

    def __init__(self, machines, source_options=(), target_options=()):
        Pair.number += 1
        self.source, self.target = machines.a, machines.b
        self.out, self.in_ = f"/tmp/out-{Pair.number}", f"/tmp/in-{Pair.number}"
        self.address = f"{self.target.address}:{7500 + Pair.number}"
        both = ["--insecure", "--peer-timeout", PEER_TIMEOUT]
        self.pids = {}
        try:
            self._start(self.target, "target", self.in_, ["--listen", self.address, "--memory-limit", "768MiB", "--pool-size", "256MiB", *both, *target_options])
            self._start(self.source, "source", self.out, ["--target", self.address, "--pool-size", "16MiB", *both, *source_options])
        except BaseException:
            self.close()
            raise

    def _start(self, node, role, mountpoint, options):
        node.run(["mkdir", mountpoint])
        node.run([find_ppmr(), role, mountpoint, *options, "--log-file", f"{mountpoint}.log"])
        self.pids[role] = self.status(node, mountpoint)["pid"]

    def status(self, node=None, mountpoint=None):
        node = node or self.target
        mountpoint = mountpoint or (self.in_ if node is self.target else self.out)
        return json.loads(node.run([find_ppmr(), "status", mountpoint, "--json"], timeout=20).stdout)

    def transports(self):
        return [self.status(node)["peers"][0]["transport"] for node in (self.source, self.target)]

    def rdma(self):
        return self.status()["rdma"]

    def log(self, node):
        return node.read_text((self.in_ if node is self.target else self.out) + ".log")

    def write(self, name, size, check=True, timeout=240, rate=""):
        """Writes random bytes, and returns their digest."""
        script = f'head -c {size} /dev/urandom | tee {self.out}/{name} | sha256sum'
        done = self.source.run(["bash", "-c", f"set -o pipefail; {script}"], timeout=timeout, check=check)
        return done.stdout.split()[0] if done.returncode == 0 else None

    def digest(self, name, timeout=240):
        return self.target.run(["sha256sum", f"{self.in_}/{name}"], timeout=timeout).stdout.split()[0]

    def move(self, name, size):
        assert self.write(name, size) == self.digest(name)

    def remove(self, name):
        self.source.run([find_ppmr(), "commit", f"{self.out}/{name}"])
        self.target.run(["rm", f"{self.in_}/{name}"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def end(self, node, role, mountpoint):
        """Unmounts; the daemon has to end by itself."""
        node.run(["fusermount3", "-u", mountpoint])
        wait_until(lambda: not node.exists(f"/proc/{self.pids[role]}"), 15, f"ppmr {role} to end")

    def close(self):
        for node, role, mountpoint in ((self.source, "source", self.out), (self.target, "target", self.in_)):
            if not node.running():
                continue
            if role in self.pids:
                node.run(["sh", "-c", f"kill {self.pids[role]} 2>/dev/null; for i in $(seq 100); do [ -d /proc/{self.pids[role]} ] || exit 0; sleep 0.1; done; kill -9 {self.pids[role]}"], check=False)
            node.run(["umount", "-l", mountpoint], check=False)


@pytest.fixture
def pair(machines):
    made = []

    def make(source_options=(), target_options=()):
        made.append(Pair(machines, source_options, target_options))
        return made[-1]
    yield make
    for one in made:
        one.close()


def resources(node):
    """What the kernel holds for RDMA: queue pairs of users, regions, protection domains, identifiers."""
    shown = node.run(["rdma", "-j", "resource", "show"]).stdout
    device = next(entry for entry in json.loads(shown) if entry["ifname"] == "rxe0")
    return {key: device[key] for key in ("qp", "cq", "mr", "pd", "cm_id") if key in device}


def test_devices_are_shown_with_what_matters(machines):
    said = [json.loads(line) for line in machines.a.run([find_ppmr(), "devices", "--json"]).stdout.splitlines()]
    assert len(said) == 1 and said[0]["device"] == "rxe0" and said[0]["usable"], said
    assert said[0]["state"] == "active" and said[0]["link_layer"] == "Ethernet" and said[0]["addresses"] == [machines.a.address]
    assert said[0]["max_qp_rd_atom"] > 0 and said[0]["max_sge_rd"] > 0 and said[0]["gids"]
    assert "can be used" in machines.a.run([find_ppmr(), "devices"]).stdout


def test_a_large_file_travels_by_reads_and_registers_nothing(pair):
    both = pair()
    assert both.transports() == ["verbs", "verbs"], (both.log(both.source), both.log(both.target))
    wait_until(lambda: both.rdma()["registered_regions"] == 12 or both.status()["store"]["ready_bytes"] >= 256 * MIB, 60, "the target's memory")
    both.move("small", 3 * MIB)
    both.remove("small")
    source_before = both.status(both.source)["rdma"]
    both.move("large", 512 * MIB)
    rdma = both.rdma()
    assert rdma["bytes_read"] >= 515 * MIB - 1 and rdma["strange_completions"] == 0
    assert rdma["connections_made"] == rdma["connections"] == 2
    assert both.status(both.source)["rdma"] == source_before
    # Every byte was registered memory of the store, which is what it was.
    assert rdma["registered_bytes"] <= 768 * MIB and rdma["registered_bytes"] % (64 * MIB) == 0
    said = both.log(both.target)
    assert "come over verbs, not tcp" in said and "rxe0" in said
    # A stream through bounded memory: what is registered stays the same.
    both.remove("large")
    before = both.rdma()
    both.move("another", 256 * MIB)
    after = both.rdma()
    assert (after["registered_bytes"], after["registered_regions"]) == (before["registered_bytes"], before["registered_regions"])


def test_each_side_may_ask_for_tcp(pair):
    both = pair(["--transport", "tcp"])
    assert both.transports() == ["tcp", "tcp"]
    assert "the source has --transport tcp" in both.log(both.target)
    both.move("file", 8 * MIB)
    assert both.rdma()["bytes_read"] == 0


def test_verbs_only_against_tcp_only_fails_at_once_and_says_why(pair):
    with pytest.raises(LabError, match="--transport verbs, but the target has --transport tcp"):
        pair(["--transport", "verbs"], ["--transport", "tcp"])


def test_a_device_that_is_not_there_is_named(pair):
    with pytest.raises(LabError, match="'mlx5_7'.*there are: rxe0"):
        pair(target_options=["--device", "mlx5_7"])


# ---- Processes ------------------------------------------------------------------------------------------------------------------

class Worker:
    """A steady_worker of tests/programs in a machine; its directory is seen by both machines and here."""

    def __init__(self, machines, node, name, size_mib):
        self.directory, self.node = machines.home / name, node
        self.directory.mkdir()
        node.run(["sh", "-c", f"f=/proc/sys/kernel/ns_last_pid; read last <$f; [ $last -ge {FIRST_PID} ] || echo {FIRST_PID} >$f"])
        self.pid = node.spawn([find_program("steady_worker"), self.directory, size_mib, 2, 1], log=self.directory / "log")
        wait_until((self.directory / "ready").exists, 90, "steady_worker to get under way", interval=0.05)

    def lines(self):
        text = (self.directory / "output").read_text()
        return [Line(line) for line in text[:text.rfind("\n") + 1].splitlines()]

    def check_moved(self, machines, before):
        """It runs on machine b alone, and goes on where it was."""
        wait_until(lambda: len(self.lines()) >= before + 5, 60, "lines from the restored process", interval=0.05)
        lines = self.lines()
        assert [line["line"] for line in lines] == list(range(1, len(lines) + 1))
        for line in lines:
            for thread, (steps, state) in enumerate(zip(line["steps"], line["states"])):
                assert state == chain_state(thread, steps)
        assert not machines.a.exists(f"/proc/{self.pid}") and machines.b.exists(f"/proc/{self.pid}")
        audits = self.directory / "audits"
        seen = audits.read_text().count("\n")
        machines.b.run(["kill", "-USR1", self.pid])
        wait_until(lambda: audits.read_text().count("\n") > seen, 120, "the audit of the memory", interval=0.05)
        audit = Line(audits.read_text().splitlines()[seen])
        assert audit["digest"] == audit["expected"], audit
        machines.b.run(["kill", "-KILL", self.pid])


def move_workers(machines, both, names, size_mib):
    workers = [Worker(machines, machines.a, name, size_mib) for name in names]
    counts = [len(worker.lines()) for worker in workers]
    failures = []

    def move(worker, name):
        try:
            machines.a.run(["mkdir", f"{both.out}/{name}", f"/tmp/work-{name}"])
            machines.a.run([CRIU, "dump", "-t", worker.pid, "-D", f"{both.out}/{name}", "-W", f"/tmp/work-{name}", "-o", "dump.log"], timeout=120)
            machines.a.run([find_ppmr(), "commit", f"{both.out}/{name}"], timeout=60)
            machines.b.run(["env", f"PPMR_CRIU={CRIU}", find_ppmr(), "restart", f"{both.in_}/{name}", "--eager", "--remove"], timeout=120)
        except Exception as error:  # pylint: disable=broad-except
            failures.append(f"{name}: {error}")
    threads = [threading.Thread(target=move, args=pair) for pair in zip(workers, names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    for worker, count in zip(workers, counts):
        worker.check_moved(machines, count)


def test_a_process_dumped_on_one_machine_goes_on_on_the_other(machines, pair):
    both = pair(["--transport", "verbs"])
    move_workers(machines, both, ["single"], 48)
    assert both.rdma()["bytes_read"] >= 48 * MIB


def test_several_processes_move_at_once(machines, pair):
    both = pair(["--transport", "verbs", "--streams", "4"])
    move_workers(machines, both, ["first", "second", "third"], 16)
    assert both.rdma()["connections_made"] == 4


# ---- Trouble --------------------------------------------------------------------------------------------------------------------

def under_way(both, size=96 * MIB):
    """A writer in the background; returns (thread, its results) once bytes flow."""
    results = {}
    before = both.rdma()["bytes_read"]
    thread = threading.Thread(target=lambda: results.update(digest=both.write("file", size, check=False)))
    thread.start()
    wait_until(lambda: both.rdma()["bytes_read"] > before + 4 * MIB, 60, "bytes to flow", interval=0.02)
    return thread, results


def test_a_link_that_is_cut_for_less_than_the_time_out_costs_nothing(machines, pair):
    both = pair(["--transport", "verbs"])
    thread, results = under_way(both)
    machines.cut_link()
    time.sleep(PEER_TIMEOUT / 2)
    machines.restore_link()
    thread.join(timeout=240)
    assert results["digest"] and results["digest"] == both.digest("file")
    assert both.transports() == ["verbs", "verbs"]


def test_a_link_that_stays_cut_fails_both_sides_and_gives_all_back(machines, pair):
    idle = [resources(node) for node in (machines.a, machines.b)]
    both = pair()
    thread, results = under_way(both)
    machines.cut_link()
    try:
        thread.join(timeout=120)
        assert results["digest"] is None  # EIO
        done = both.target.run(["cat", f"{both.in_}/file"], check=False, timeout=60)
        assert done.returncode != 0 and "Input/output error" in done.stderr
        pool = both.status(both.source)["pool"]
        assert pool["free"] == pool["slots"]
        assert both.status(both.source)["rdma"]["registered_regions"] == 0
        wait_until(lambda: both.rdma()["connections"] == 0, 30, "the target's connections to end")
    finally:
        machines.restore_link()
    both.move("again", 4 * MIB)  # a new session
    both.close()
    assert [resources(node) for node in (machines.a, machines.b)] == idle


def test_a_device_that_is_removed_in_the_middle_means_tcp(machines, pair):
    both = pair()
    thread, results = under_way(both)
    machines.b.run(["rdma", "link", "delete", "rxe0"], timeout=30)
    try:
        thread.join(timeout=240)
        assert results["digest"] and results["digest"] == both.digest("file")
        assert both.transports() == ["tcp", "tcp"]
        assert "rxe0 lost" in both.log(both.target)
    finally:
        machines.b.run(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "link0"])


def test_twenty_mounts_and_sessions_leave_nothing_behind(machines, pair):
    before = [resources(node) for node in (machines.a, machines.b)]
    first = pair()
    descriptors = lambda: len(first.target.names(f"/proc/{first.pids['target']}/fd"))  # noqa: E731
    first.move("warm-up", MIB)
    first.end(first.source, "source", first.out)
    wait_until(lambda: not first.status()["peers"], 20, "the session to end")
    baseline, registered = descriptors(), first.rdma()["registered_bytes"]
    for number in range(20):
        first._start(first.source, "source", first.out + str(number), ["--target", first.address, "--insecure", "--pool-size", "8MiB", "--transport", "verbs"])
        first.source.run(["sh", "-c", f"head -c 1M /dev/urandom > {first.out}{number}/file-{number}"])
        first.end(first.source, "source", first.out + str(number))
    wait_until(lambda: not first.status()["peers"], 20, "the sessions to end")
    assert descriptors() == baseline and first.rdma()["registered_bytes"] == registered and first.rdma()["connections"] == 0
    first.end(first.target, "target", first.in_)
    assert [resources(node) for node in (machines.a, machines.b)] == before


def test_a_node_that_dies_is_an_error_at_the_other(machines, pair):  # the last: machine b comes back without its mounts
    both = pair(["--transport", "verbs"])
    thread, results = under_way(both)
    machines.b.kill()
    thread.join(timeout=120)
    assert results["digest"] is None
    assert both.status(both.source)["rdma"]["registered_regions"] == 0
    pool = both.status(both.source)["pool"]
    assert pool["free"] == pool["slots"]
    machines.b.boot()
