"""RDMA for real: the verbs mover between the two machines of tests/vm, whose devices are software but whose verbs are the kernel's."""
import contextlib
import itertools
import json
import os
import threading
import time

import pytest

from lab.node import LabError, wait_until
from lab.ppmr import Mounts, PpmrMove, find_ppmr
from lab.programs import SteadyWorker, check_continuity

MIB = 1 << 20
INLINE_MAX = 16 << 10  # what a small chunk may carry in its announcement
PEER_TIMEOUT = 6
ROCE_PORT = 4791  # of UDP, for RoCE v2
_numbers = itertools.count(1)

# One process, and no copy more than needed: the machines are slow.
WRITER = """
import hashlib, os, sys
digest, block = hashlib.blake2b(), bytearray(os.urandom(1 << 20))
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for number in range(int(sys.argv[2])):
    block[:8] = number.to_bytes(8, "little")
    digest.update(block)
    if os.write(file, block) != len(block):
        raise OSError("a short write")
os.fsync(file)
os.close(file)
print(digest.hexdigest())
"""
READER = """
import hashlib, os, sys
digest, file = hashlib.blake2b(), os.open(sys.argv[1], os.O_RDONLY)
while block := os.read(file, 1 << 20):
    digest.update(block)
print(digest.hexdigest())
"""


class Pair(Mounts):
    """The source on machine a, the target on b, small enough for both."""

    def __init__(self, machines, source_options=(), target_options=()):
        both = [
            "--peer-timeout",
            PEER_TIMEOUT,
            "--insecure",
        ]  # the pairing by keys has its own tests
        super().__init__(
            machines.a,
            machines.b,
            "/tmp/verbs",
            ["--pool-size", "16MiB", *both, *source_options],
            ["--memory-limit", "768MiB", "--pool-size", "192MiB", *both, *target_options],
            name=f"pair{next(_numbers)}",
        )
        for _ in range(4):  # a worker takes a slot when it has received its first request
            self.source_at.run(["ls", "-l", self.out])
        self.slots_of_the_receive_loop = self.source.status()["pool"]["in_use"]

    def mount_source_again(self):
        self.source.stop()
        self.restart_dead()

    def transports(self):
        return [daemon.status()["peers"][0]["transport"] for daemon in (self.source, self.target)]

    def rdma(self):
        return self.target.status()["rdma"]

    def assert_all_given_back(self):
        """At the source: slots, but for those that wait for requests; regions."""
        status = self.source.status()
        assert (
            status["pool"]["in_use"] <= self.slots_of_the_receive_loop
            and status["rdma"]["registered_regions"] == 0
        ), status

    def write(self, name, size_mib, check=True, timeout=300):
        """Writes bytes that are everywhere different, and returns their digest; None if that failed and need not succeed."""
        done = self.source_at.run(
            ["/usr/bin/python3", "-SEc", WRITER, self.out / name, size_mib],
            timeout=timeout,
            check=check,
        )
        return done.stdout.strip() if done.returncode == 0 else None

    def digest(self, name, timeout=300):
        return self.target_at.run(
            ["/usr/bin/python3", "-SEc", READER, self.in_ / name], timeout=timeout
        ).stdout.strip()

    def move(self, name, size_mib):
        assert self.write(name, size_mib) == self.digest(name)

    def drop(self, name):
        self.commit(name)
        self.remove(name)

    def under_way(self, size_mib=64):
        """A writer in the background, once bytes flow: (thread, where its digest will be)."""
        result, before = {}, self.rdma()["bytes_read"]
        thread = threading.Thread(
            target=lambda: result.update(digest=self.write("file", size_mib, check=False)),
            daemon=True,
        )
        thread.start()
        wait_until(
            lambda: self.rdma()["bytes_read"] > before + 4 * MIB, 60, "bytes to flow", interval=0.02
        )
        return thread, result


@pytest.fixture
def pair(machines):
    made = []

    def make(source_options=(), target_options=()):
        made.append(Pair(machines, source_options, target_options))
        return made[-1]

    yield make
    machines.make_whole()
    for one in made:
        one.close()


def resources(node):
    """What the kernel holds for RDMA: queue pairs, completion queues, regions, protection domains, identifiers."""
    shown = json.loads(node.run(["rdma", "-j", "resource", "show"]).stdout)
    return {
        key: count
        for key, count in next(entry for entry in shown if entry["ifname"] == "rxe0").items()
        if key in ("qp", "cq", "mr", "pd", "cm_id", "ctx")
    }


def memory_of(node, pid):
    """KiB of each kind, from /proc/PID/status."""
    lines = (
        line.split()
        for line in node.read_text(f"/proc/{pid}/status").splitlines()
        if line.startswith("Vm")
    )
    return {words[0].rstrip(":"): int(words[1]) for words in lines}


def test_devices_are_shown_with_what_matters(machines):
    said = [
        json.loads(line)
        for line in machines.a.run([find_ppmr(), "devices", "--json"]).stdout.splitlines()
    ]
    assert len(said) == 1 and said[0]["device"] == "rxe0" and said[0]["usable"], said
    assert (
        said[0]["state"] == "active"
        and said[0]["link_layer"] == "Ethernet"
        and said[0]["addresses"] == [machines.a.address]
    )
    assert said[0]["max_qp_rd_atom"] > 0 and said[0]["max_sge_rd"] > 0 and said[0]["gids"]
    assert "can be used" in machines.a.run([find_ppmr(), "devices"]).stdout


def test_a_large_file_travels_by_reads_and_what_is_registered_stays_the_same(pair):
    both = pair()
    assert both.transports() == ["verbs", "verbs"], (both.source.output(), both.target.output())
    assert "come over verbs, not tcp" in both.target.output() and "rxe0" in both.target.output()
    both.move("large", 512)
    both.await_ready()  # the reserve is filled up again in a quiet moment, and registered
    rdma = both.rdma()
    assert (
        rdma["bytes_read"] >= 512 * MIB - INLINE_MAX
        and rdma["reads_posted"] >= 512
        and rdma["strange_completions"] == 0
    )
    assert rdma["connections_made"] == rdma["connections"] == 2
    assert rdma["registered_bytes"] <= 768 * MIB and rdma["registered_bytes"] % (64 * MIB) == 0
    source = both.source.status()["rdma"]
    both.drop("large")
    both.move("another", 64)
    after = both.rdma()
    assert (after["registered_bytes"], after["registered_regions"]) == (
        rdma["registered_bytes"],
        rdma["registered_regions"],
    )
    assert both.source.status()["rdma"] == source


def test_each_side_may_ask_for_tcp(pair):
    both = pair(["--transport", "tcp"])
    assert both.transports() == ["tcp", "tcp"]
    assert "the source has --transport tcp" in both.target.output()
    both.move("file", 4)
    assert both.rdma()["bytes_read"] == 0


def test_verbs_only_against_tcp_only_fails_at_once_and_says_why(pair):
    with pytest.raises(LabError, match="--transport verbs, but the target has --transport tcp"):
        pair(["--transport", "verbs"], ["--transport", "tcp"])


def test_a_device_that_is_not_there_is_named(pair):
    with pytest.raises(LabError, match="'mlx5_7'.*there are: rxe0"):
        pair(target_options=["--device", "mlx5_7"])


# ---- Processes ------------------------------------------------------------------------------------------------------------------


def move_workers(machines, both, names, size_mib):
    workers = [
        SteadyWorker(machines.a, machines.home / name, size_mib, threads=2) for name in names
    ]
    moves = [PpmrMove(machines.a, machines.b, both, lazily=False) for _ in names]
    failures = []
    for move, name in zip(moves, names):
        move.prepare(name)

    def run(worker, move):
        try:
            move.move(worker)
            move.finish()
        except Exception as error:  # pylint: disable=broad-except
            failures.append(f"{move.label}: {error}")

    threads = [threading.Thread(target=run, args=each) for each in zip(workers, moves)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert not failures, failures
        for worker in workers:
            check_continuity(worker.lines())
            audit = worker.audit()
            assert audit["digest"] == audit["expected"], audit
    finally:
        for worker, move in zip(workers, moves):
            worker.end()
            move.clean()


def test_a_process_dumped_on_one_machine_goes_on_on_the_other(machines, pair):
    both = pair(["--transport", "verbs"])
    move_workers(machines, both, ["single"], 48)
    assert both.rdma()["bytes_read"] >= 40 * MIB


def test_several_processes_move_at_once(machines, pair):
    both = pair(["--transport", "verbs", "--streams", "4"])
    move_workers(machines, both, ["first", "second", "third"], 16)
    assert both.rdma()["connections_made"] == 4


# ---- Trouble --------------------------------------------------------------------------------------------------------------------


def test_a_link_that_is_cut_for_less_than_the_time_out_costs_nothing(machines, pair):
    both = pair(["--transport", "verbs"])
    thread, result = both.under_way()
    machines.cut_link()
    time.sleep(PEER_TIMEOUT / 2)
    machines.restore_link()
    thread.join(timeout=240)
    assert result["digest"] and result["digest"] == both.digest("file")
    assert both.transports() == ["verbs", "verbs"]


def test_a_link_that_stays_cut_fails_both_sides_and_gives_all_back(machines, pair):
    idle = [resources(node) for node in machines.nodes]
    both = pair()
    thread, result = both.under_way()
    machines.cut_link()
    thread.join(timeout=120)
    assert result["digest"] is None  # EIO
    done = machines.b.run(["cat", both.in_ / "file"], check=False, timeout=60, text=False)
    assert done.returncode != 0 and b"Input/output error" in done.stderr
    both.assert_all_given_back()
    wait_until(lambda: both.rdma()["connections"] == 0, 30, "the target's connections to end")
    machines.restore_link()
    both.move("again", 4)  # a new session
    both.close()
    assert [resources(node) for node in machines.nodes] == idle


@contextlib.contextmanager
def without_rdma_packets(node):
    """Packets of RoCE v2 are dropped where they arrive, those of TCP are not: queue pairs get no answers, until they are in the error state."""
    node.run(["tc", "qdisc", "add", "dev", "link0", "ingress"])
    try:
        node.run(
            [
                "tc",
                "filter",
                "add",
                "dev",
                "link0",
                "parent",
                "ffff:",
                "protocol",
                "ip",
                "u32",
                "match",
                "ip",
                "protocol",
                17,
                "0xff",
                "match",
                "ip",
                "dport",
                ROCE_PORT,
                "0xffff",
                "action",
                "drop",
            ]
        )
        yield
    finally:
        node.run(["tc", "qdisc", "del", "dev", "link0", "ingress"], check=False)


def test_queue_pairs_in_the_error_state_mean_tcp_until_there_are_new_ones(machines, pair):
    both = pair()
    thread, result = both.under_way(384)
    with without_rdma_packets(machines.b):
        thread.join(timeout=240)
        assert result["digest"] and result["digest"] == both.digest("file")
        assert both.transports() == ["tcp", "tcp"], both.target.output()
    before = both.rdma()["bytes_read"]
    wait_until(
        lambda: both.transports() == ["verbs", "verbs"],
        60,
        "the stream to return to verbs",
        interval=0.2,
    )
    both.move("again", 16)
    assert both.rdma()["bytes_read"] >= before + 16 * MIB - INLINE_MAX


@pytest.fixture
def second_rail(machines):
    """A second device on each machine, rxe1, on the other cable."""
    for number, node in enumerate(machines.nodes, start=1):
        node.run(["sh", "-ec", SECOND_RAIL, "rail", f"10.79.0.{number}/24"])
    yield
    for node in machines.nodes:
        node.run(
            [
                "sh",
                "-c",
                "rdma link delete rxe1; ip address flush dev link1; ip link set link1 down",
            ],
            check=False,
        )


SECOND_RAIL = """
ip link set link1 qlen 10000
echo 0 >/proc/sys/net/ipv6/conf/link1/accept_dad
ip address add "$1" dev link1
ip link set link1 up
rdma link add rxe1 type rxe netdev link1
"""


def packets_received(node, device):
    return int(node.read_text(f"/sys/class/infiniband/{device}/ports/1/hw_counters/rcvd_pkts"))


def test_two_rails_are_used_together_and_one_that_is_lost_leaves_the_other(
    machines, pair, second_rail
):
    both = pair(["--device", "rxe0,rxe1"], ["--device", "rxe0,rxe1"])
    assert both.transports() == ["verbs", "verbs"], both.target.output()
    assert both.rdma()["rails"] == 2
    devices = ("rxe0", "rxe1")
    before = [packets_received(machines.b, device) for device in devices]
    # One rail would carry all that these machines write; so the first is made slower than they are.
    machines.a.run(
        [
            "tc",
            "qdisc",
            "replace",
            "dev",
            "link0",
            "root",
            "tbf",
            "rate",
            "100mbit",
            "burst",
            "1mb",
            "limit",
            "64mb",
        ]
    )
    try:
        both.move("together", 96)
    finally:
        machines.a.run(["tc", "qdisc", "delete", "dev", "link0", "root"])
    carried = [packets_received(machines.b, device) - was for device, was in zip(devices, before)]
    assert min(carried) > 0.1 * sum(carried), f"packets of rxe0 and rxe1: {carried}"
    both.drop("together")
    thread, result = both.under_way(96)
    machines.b.run(["rdma", "link", "delete", "rxe1"], timeout=30)
    thread.join(timeout=240)
    assert result["digest"] and result["digest"] == both.digest("file")
    assert both.transports() == ["verbs", "verbs"] and "rxe1 lost" in both.target.output()


def test_a_device_that_is_removed_in_the_middle_means_tcp(machines, pair):
    both = pair()
    thread, result = both.under_way()
    machines.b.run(["rdma", "link", "delete", "rxe0"], timeout=30)
    try:
        thread.join(timeout=240)
        assert result["digest"] and result["digest"] == both.digest("file")
        assert both.transports() == ["tcp", "tcp"]
        assert "rxe0 lost" in both.target.output()
    finally:
        machines.b.run(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "link0"])


FILES_MAX = 50  # half a MiB each, at the target at the same time: what is stored is registered

# In the machine itself: every command from outside would cost as much as a whole cycle.
CYCLES = """
out=$1 count=$2 first=$3
shift 3
for number in $(seq "$first" $((first + count - 1))); do
  "$@" || exit
  dd if=/dev/urandom of="$out/file-$number" bs=256K count=2 conv=fsync status=none || exit
  fusermount3 -u "$out" || exit
done
"""


def test_cycles_of_connect_transfer_and_disconnect_leave_nothing_behind(machines, pair):
    """$PPMR_CYCLES of them (25)."""
    count = int(os.environ.get("PPMR_CYCLES", "25"))
    idle = [resources(node) for node in machines.nodes]
    both = pair(["--transport", "verbs"])
    target = both.target.status()["pid"]
    both.await_ready()
    both.source.stop()

    def cycle(count, first):
        source = [
            find_ppmr(),
            "source",
            both.out,
            "--target",
            both.address,
            "--insecure",
            "--transport",
            "verbs",
            "--pool-size",
            "8MiB",
            "--peer-timeout",
            PEER_TIMEOUT,
        ]
        machines.a.run(
            ["sh", "-c", CYCLES, "cycles", both.out, count, first, *source], timeout=60 + 10 * count
        )
        wait_until(
            lambda: both.target.status()["peers"] == [] and both.rdma()["connections"] == 0,
            30,
            "the last session to end",
            interval=0.1,
        )
        machines.b.run(["sh", "-c", 'rm -f "$0"/file-*', both.in_])

    def held():
        rdma, memory = both.rdma(), memory_of(machines.b, target)
        return {
            "fds": len(machines.b.names(f"/proc/{target}/fd")),
            "threads": len(machines.b.names(f"/proc/{target}/task")),
            "pinned": memory["VmPin"],
            "locked": memory["VmLck"],
            "registered": (rdma["registered_bytes"], rdma["registered_regions"]),
            "at a": resources(machines.a),
            "at b": resources(machines.b),
        }

    def resident_kib():
        """Without the files, which stay, and the memory that is kept touched for more of them."""
        both.await_ready()
        store = both.target.status()["store"]
        return (
            memory_of(machines.b, target)["VmRSS"]
            - (store["used_bytes"] + store["ready_bytes"]) // 1024
        )

    cycle(3, 1)  # what is made once is there now
    before, resident = held(), resident_kib()
    assert (
        before["pinned"] * 1024 >= before["registered"][0] > 0
    ), "what is registered is pinned, and would be seen"
    assert before["at a"] == idle[0], "the source has taken all with it"
    for done in range(0, count, FILES_MAX):
        cycle(min(FILES_MAX, count - done), 4 + done)
    assert held() == before
    assert resident_kib() - resident < 4096 + 16 * count, "KiB: not a session's worth each"
    status = both.target.status()
    assert (
        status["rdma"]["connections_made"] >= 2 * (count + 3)
        and status["rdma"]["bytes_read"] >= (count + 3) * MIB // 2 - INLINE_MAX
    )
    both.close()
    assert [resources(node) for node in machines.nodes] == idle


def test_a_node_that_dies_is_an_error_at_the_other(machines, pair):
    both = pair(["--transport", "verbs"])
    thread, result = both.under_way()
    machines.b.kill()
    thread.join(timeout=120)
    assert result["digest"] is None
    both.assert_all_given_back()
