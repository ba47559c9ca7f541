"""The verbs mover between the two machines of tests/vm: emulated RDMA devices, the kernel's
verbs."""
import contextlib
import itertools
import json
import threading
import time

import pytest

from lab.node import LabError, wait_until
from lab.ppmr import Mounts, PpmrMove, find_ppmr
from lab.programs import SteadyWorker, check_continuity

MIB = 1 << 20
INLINE_MAX = 16 << 10  # the largest inline chunk
PEER_TIMEOUT = 6
ROCE_PORT = 4791  # the UDP port of RoCE v2
_numbers = itertools.count(1)

# One process that copies its data rarely, because the machines are slow.
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
    """The source on machine a, the target on b, with little memory."""

    def __init__(self, machines, source_options=(), target_options=()):
        both = [
            "--peer-timeout",
            PEER_TIMEOUT,
            "--insecure",
        ]  # other tests use keys
        super().__init__(
            machines.a,
            machines.b,
            "/tmp/verbs",
            ["--pool-size", "16MiB", *both, *source_options],
            ["--memory-limit", "768MiB", "--pool-size", "192MiB", *both, *target_options],
            name=f"pair{next(_numbers)}",
        )
        for _ in range(4):  # each worker takes a slot with its first request
            self.source_at.run(["ls", "-l", self.out])
        self.slots_of_the_receive_loop = self.source.status()["pool"]["in_use"]

    def mount_source_again(self):
        self.source.stop()
        self.restart_dead()

    def transports(self):
        return [daemon.status()["peers"][0]["transport"] for daemon in (self.source, self.target)]

    def rdma(self):
        return self.target.status()["rdma"]

    def assert_all_returned(self):
        """Waits until the source has returned its regions, and its slots except those of the
        receive loop.
        """
        status = self.source.status()
        assert (
            status["pool"]["in_use"] <= self.slots_of_the_receive_loop
            and status["rdma"]["registered_regions"] == 0
        ), status

    def write(self, name, size_mib, check=True, timeout=300):
        """Writes bytes that differ everywhere and returns their digest; None on failure without
        `check`."""
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

    def start_write(self, size_mib=64):
        """Starts a writer in the background and waits until bytes arrive: (thread, {"digest": ...}
        at its end)."""
        result, before = {}, self.rdma()["bytes_read"]
        thread = threading.Thread(
            target=lambda: result.update(digest=self.write("file", size_mib, check=False)),
            daemon=True,
        )
        thread.start()
        wait_until(
            lambda: self.rdma()["bytes_read"] > before + 4 * MIB,
            60,
            "bytes to arrive",
            interval=0.02,
        )
        return thread, result


@pytest.fixture
def pair(machines):
    made = []

    def make(source_options=(), target_options=()):
        made.append(Pair(machines, source_options, target_options))
        return made[-1]

    yield make
    machines.repair()
    for one in made:
        one.close()


def resources(node):
    """The kernel's RDMA objects: queue pairs, completion queues, regions, protection domains,
    identifiers."""
    shown = json.loads(node.run(["rdma", "-j", "resource", "show"]).stdout)
    return {
        key: count
        for key, count in next(entry for entry in shown if entry["ifname"] == "rxe0").items()
        if key in ("qp", "cq", "mr", "pd", "cm_id", "ctx")
    }


def memory_of(node, pid):
    """Returns the KiB of each kind in /proc/PID/status."""
    lines = (
        line.split()
        for line in node.read_text(f"/proc/{pid}/status").splitlines()
        if line.startswith("Vm")
    )
    return {words[0].rstrip(":"): int(words[1]) for words in lines}


def test_devices_command_shows_the_device(machines):
    shown = [
        json.loads(line)
        for line in machines.a.run([find_ppmr(), "devices", "--json"]).stdout.splitlines()
    ]
    assert len(shown) == 1 and shown[0]["device"] == "rxe0" and shown[0]["usable"], shown
    assert (
        shown[0]["state"] == "active"
        and shown[0]["link_layer"] == "Ethernet"
        and shown[0]["addresses"] == [machines.a.address]
    )
    assert shown[0]["max_qp_rd_atom"] > 0 and shown[0]["max_sge_rd"] > 0 and shown[0]["gids"]
    assert "can be used" in machines.a.run([find_ppmr(), "devices"]).stdout


def test_large_file_is_read_by_rdma_and_registered_memory_stays_constant(pair, long):
    size_mib = 512 if long else 256  # more than the target's reserve
    both = pair()
    assert both.transports() == ["verbs", "verbs"], (both.source.output(), both.target.output())
    assert "transport verbs, not tcp" in both.target.output() and "rxe0" in both.target.output()
    both.move("large", size_mib)
    both.await_ready()  # the target refills its reserve and registers it in the background
    rdma = both.rdma()
    assert (
        rdma["bytes_read"] >= size_mib * MIB - INLINE_MAX
        and rdma["reads_posted"] >= size_mib
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


def test_source_can_request_tcp(pair):
    both = pair(["--transport", "tcp"])
    assert both.transports() == ["tcp", "tcp"]
    assert "the source has --transport tcp" in both.target.output()
    both.move("file", 4)
    assert both.rdma()["bytes_read"] == 0


def test_tcp_only_target_refuses_verbs_only_source_and_names_the_reason(pair):
    with pytest.raises(LabError, match="--transport verbs, but the target has --transport tcp"):
        pair(["--transport", "verbs"], ["--transport", "tcp"])


def test_error_names_the_missing_rdma_device(pair):
    with pytest.raises(LabError, match="'mlx5_7'.*this machine has: rxe0"):
        pair(target_options=["--device", "mlx5_7"])


# ---- Processes ----


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


def test_process_moves_over_rdma(machines, pair):
    both = pair(["--transport", "verbs"])
    move_workers(machines, both, ["single"], 48)
    assert both.rdma()["bytes_read"] >= 40 * MIB


@pytest.mark.long
def test_several_processes_move_over_rdma_at_once(machines, pair):
    both = pair(["--transport", "verbs", "--streams", "4"])
    move_workers(machines, both, ["first", "second", "third"], 16)
    assert both.rdma()["connections_made"] == 4


# ---- Faults ----


def test_link_cut_shorter_than_peer_timeout_loses_no_bytes(machines, pair):
    both = pair(["--transport", "verbs"])
    thread, result = both.start_write()
    machines.cut_link()
    time.sleep(PEER_TIMEOUT / 2)  # the length of the cut
    machines.restore_link()
    thread.join(timeout=240)
    assert result["digest"] and result["digest"] == both.digest("file")
    assert both.transports() == ["verbs", "verbs"]


@pytest.mark.long
def test_link_cut_longer_than_peer_timeout_fails_both_sides_and_leaks_nothing(machines, pair):
    idle = [resources(node) for node in machines.nodes]
    both = pair()
    thread, result = both.start_write()
    machines.cut_link()
    thread.join(timeout=120)
    assert result["digest"] is None  # the writer got EIO
    done = machines.b.run(["cat", both.in_ / "file"], check=False, timeout=60, text=False)
    assert done.returncode != 0 and b"Input/output error" in done.stderr
    both.assert_all_returned()
    wait_until(lambda: both.rdma()["connections"] == 0, 30, "the target's connections to end")
    machines.restore_link()
    both.move("again", 4)  # in a new session
    both.close()
    assert [resources(node) for node in machines.nodes] == idle


@contextlib.contextmanager
def without_rdma_packets(node):
    """Drops arriving RoCE v2 packets, but not TCP: queue pairs get no answers and enter the error
    state."""
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


def test_session_uses_tcp_after_queue_pair_errors_and_next_session_uses_verbs(machines, pair):
    both = pair()
    thread, result = both.start_write(384)
    with without_rdma_packets(machines.b):
        thread.join(timeout=240)
        assert result["digest"] and result["digest"] == both.digest("file")
        assert both.transports() == ["tcp", "tcp"], both.target.output()
    before = both.rdma()["bytes_read"]
    both.mount_source_again()  # opens a new session
    assert both.transports() == ["verbs", "verbs"], both.target.output()
    both.move("again", 16)
    assert both.rdma()["bytes_read"] >= before + 16 * MIB - INLINE_MAX


@pytest.fixture
def second_rail(machines):
    """A second device on each machine, rxe1, on the second link."""
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


def test_two_rails_share_the_load_and_session_survives_loss_of_one(machines, pair, second_rail):
    both = pair(["--device", "rxe0,rxe1"], ["--device", "rxe0,rxe1"])
    assert both.transports() == ["verbs", "verbs"], both.target.output()
    assert both.rdma()["rails"] == 2
    # One rail could carry everything that these machines write, so limit the first to a third.
    started = time.monotonic()
    both.move("alone", 32)
    rate_kbit = int(32 * MIB * 8 / 1000 / (time.monotonic() - started) / 3)
    both.drop("alone")
    limit = ["tbf", "rate", f"{rate_kbit}kbit", "burst", "1mb", "limit", "64mb"]
    machines.a.run(["tc", "qdisc", "replace", "dev", "link0", "root", *limit])
    devices = ("rxe0", "rxe1")
    before = [packets_received(machines.b, device) for device in devices]
    try:
        both.move("together", 96)
    finally:
        machines.a.run(["tc", "qdisc", "delete", "dev", "link0", "root"])
    carried = [packets_received(machines.b, device) - was for device, was in zip(devices, before)]
    assert min(carried) > 0.1 * sum(carried), f"packets of rxe0 and rxe1: {carried}"
    both.drop("together")
    thread, result = both.start_write(96)
    machines.b.run(["rdma", "link", "delete", "rxe1"], timeout=30)
    thread.join(timeout=240)
    assert result["digest"] and result["digest"] == both.digest("file")
    assert both.transports() == ["verbs", "verbs"] and "rxe1 lost" in both.target.output()


@pytest.mark.long
def test_session_uses_tcp_after_its_device_was_removed(machines, pair):
    both = pair()
    thread, result = both.start_write()
    machines.b.run(["rdma", "link", "delete", "rxe0"], timeout=30)
    try:
        thread.join(timeout=240)
        assert result["digest"] and result["digest"] == both.digest("file")
        assert both.transports() == ["tcp", "tcp"]
        assert "rxe0 lost" in both.target.output()
    finally:
        machines.b.run(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "link0"])


FILES_MAX = (
    50  # half a MiB each, at the target at the same time, because stored bytes are registered
)

# Runs in the machine, because a command from outside takes as long as a whole cycle.
CYCLES = """
out=$1 count=$2 first=$3
shift 3
for number in $(seq "$first" $((first + count - 1))); do
  "$@" || exit
  dd if=/dev/urandom of="$out/file-$number" bs=256K count=2 conv=fsync status=none || exit
  fusermount3 -u "$out" || exit
done
"""


@pytest.mark.long
def test_cycles_of_connect_transfer_and_disconnect_leak_nothing(machines, pair, long):
    count = 100 if long else 12
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
        """Returns the memory of the target without that of the stored files and the reserve."""
        both.await_ready()
        store = both.target.status()["store"]
        return (
            memory_of(machines.b, target)["VmRSS"]
            - (store["used_bytes"] + store["ready_bytes"]) // 1024
        )

    cycle(3, 1)  # so that the daemon allocates everything that it allocates once
    before, resident = held(), resident_kib()
    assert (
        before["pinned"] * 1024 >= before["registered"][0] > 0
    ), "registered memory is not counted as pinned"
    assert before["at a"] == idle[0], "the source has left RDMA objects"
    for done in range(0, count, FILES_MAX):
        cycle(min(FILES_MAX, count - done), 4 + done)
    assert held() == before
    assert (
        resident_kib() - resident < 4096 + 16 * count
    ), "the target's memory grows with each session"
    status = both.target.status()
    assert (
        status["rdma"]["connections_made"] >= 2 * (count + 3)
        and status["rdma"]["bytes_read"] >= (count + 3) * MIB // 2 - INLINE_MAX
    )
    both.close()
    assert [resources(node) for node in machines.nodes] == idle


@pytest.mark.long
def test_write_fails_at_source_when_target_machine_dies(machines, pair):
    both = pair(["--transport", "verbs"])
    thread, result = both.start_write()
    machines.b.kill()
    thread.join(timeout=120)
    assert result["digest"] is None
    both.assert_all_returned()
