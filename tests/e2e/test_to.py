"""`ppmr migrate --to HOST`: the source mount is made on demand, is used again, and ends when idle.

Each node accepts and sends, as in a cluster.
"""
import json
import signal
from contextlib import ExitStack

import pytest

from lab.checker import SHARED_CHECKER, Checker
from lab.migrations import Running
from lab.node import wait_until
from lab.ppmr import Daemon, find_ppmr, make_key
from lab.programs import check_continuity
from lab.workers import check_moved, check_stayed, pause_at, start_workers

ANY_PEER = ":7440"
SETTLED = 45  # a settler starts every 20 s


class Cluster:
    """Two nodes with a key and a target each."""

    def __init__(self, lab, nodes, stack):
        self.lab, self.nodes = lab, nodes
        both = [nodes.source, nodes.target]
        self.key = make_key(lab.directory / "private/key", *both)
        self.states = {node: node.scratch("state") for node in both}
        self.targets = {}
        for node in both:
            options = ["--listen", ANY_PEER, *self.key, "--state-dir", self.states[node]]
            target = Daemon(node, "target", "/run/ppmr/in", [*options, "--allow-root-restart"])
            stack.callback(target.kill)
            self.targets[node] = target

    def start(self, node, pid, to, options=(), environment=None):
        other = self.nodes.target if node is self.nodes.source else self.nodes.source
        other.keep_helpers_low()
        words = ["migrate", "--pid", pid, "--to", to, *self.key, "--state-dir", self.states[node]]
        ppmr = find_ppmr(environment)
        return Running(node, [ppmr, *words, "--json", *options], environment)

    def migrate(self, *arguments, **options):
        return self.start(*arguments, **options).wait()

    def sources(self, node):
        """The mount points and daemons of the sources of this node."""
        # While a daemon ends, its mount is there without an answer, and the command says so.
        shown = node.run([find_ppmr(), "status", "--json"], check=False).stdout.splitlines()
        found = [json.loads(line) for line in shown]
        return {one["mountpoint"]: one["pid"] for one in found if one.get("role") == "source"}


@pytest.fixture
def cluster(ppmr, lab, nodes):
    with ExitStack() as stack:
        yield Cluster(lab, nodes, stack)


def test_process_goes_there_and_back_without_configured_pairs(cluster, lab, nodes):
    here, there = nodes.source, nodes.target
    [worker] = start_workers(lab, nodes, 1)
    cluster.migrate(here, worker.pid, there.address).ok()
    check_moved(worker, nodes)
    assert list(cluster.sources(here)) == [f"/run/ppmr/to/{there.address}"]
    cluster.migrate(there, worker.pid, here.address).ok()
    worker.node = here
    lines = len(worker.lines())
    wait_until(lambda: len(worker.lines()) > lines + 10, 10, "the worker to go on")
    check_continuity(worker.lines())
    assert worker.lines()[-1]["node"] == here.name and not there.alive(worker.pid)


def test_shared_memory_goes_there_and_back(cluster, lab, nodes):
    checker = Checker(lab, nodes, mib=4, program=SHARED_CHECKER)
    cluster.migrate(nodes.source, checker.pid, nodes.target.address).ok()
    checker.check_runs_at(nodes.target)
    cluster.migrate(nodes.target, checker.pid, nodes.source.address).ok()
    checker.check_runs_at(nodes.source)
    checker.end()


def test_second_move_uses_the_mount_of_the_first_and_a_killed_daemon_is_replaced(
    cluster, lab, nodes
):
    here, there = nodes.source, nodes.target
    workers = start_workers(lab, nodes, 3)
    cluster.migrate(here, workers[0].pid, there.address).ok()
    [(mountpoint, pid)] = cluster.sources(here).items()
    cluster.migrate(here, workers[1].pid, there.address).ok()
    assert cluster.sources(here) == {mountpoint: pid}
    here.run(["df", mountpoint])  # the kernel keeps the attributes of the mount
    here.run(["pkill", "-KILL", "-f", f"source {mountpoint}"])
    cluster.migrate(here, workers[2].pid, there.address).ok()
    for worker in workers:
        check_moved(worker, nodes)
    [(again, other)] = cluster.sources(here).items()
    assert again == mountpoint and other != pid


def test_mount_that_has_another_key_is_named(cluster, lab, nodes):
    here, there = nodes.source, nodes.target
    workers = start_workers(lab, nodes, 2)
    cluster.migrate(here, workers[0].pid, there.address).ok()
    [mountpoint] = cluster.sources(here)
    used, cluster.key = cluster.key, make_key(lab.directory / "private/other", here)
    refused = cluster.migrate(here, workers[1].pid, there.address)
    assert refused.code == 2
    assert f"{mountpoint} is mounted already" in str(refused.events) + refused.output
    check_stayed(workers[1], nodes)
    cluster.key = used
    cluster.migrate(here, workers[1].pid, there.address).ok()


def test_moves_that_begin_at_once_share_a_mount(cluster, lab, nodes):
    workers = start_workers(lab, nodes, 4)
    moves = [cluster.start(nodes.source, one.pid, nodes.target.address) for one in workers]
    for move in moves:
        move.wait().ok()
    for worker in workers:
        check_moved(worker, nodes)
    assert len(cluster.sources(nodes.source)) == 1


@pytest.mark.parametrize(
    "to, code, words",
    [
        ("no-such-host.invalid", 4, ["no-such-host.invalid", "resolve"]),
        ("{there}:7441", 4, ["7441", "refused"]),
        ("../in", 2, ["HOST:PORT"]),
        ("", 2, ["HOST:PORT"]),
    ],
)
def test_target_that_cannot_be_reached_is_named(cluster, lab, nodes, to, code, words):
    [worker] = start_workers(lab, nodes, 1)
    done = cluster.migrate(nodes.source, worker.pid, to.format(there=nodes.target.address))
    assert done.code == code, done.output
    assert all(word in done.err for word in words), done.err
    check_stayed(worker, nodes)
    assert not cluster.sources(nodes.source)


def test_missing_key_is_named_with_its_remedy(cluster, lab, nodes):
    here = nodes.source
    if here.exists("/etc/ppmr/key") or here.exists("/etc/ppmr/to.conf"):
        pytest.skip("this machine has a key of its own")
    done = here.run(
        [find_ppmr(), "migrate", "--pid", 1, "--to", nodes.target.address, "--dry-run"], check=False
    )
    assert done.returncode == 2
    assert "ppmr keygen /etc/ppmr/key" in done.stderr


def test_target_daemon_settles_a_move_whose_mount_is_gone(cluster, lab, nodes):
    """The mount is gone after a restart of the node. Its daemon and the coordinator are killed."""
    here, there = nodes.source, nodes.target
    [worker] = start_workers(lab, nodes, 1)
    pauses = pause_at(lab, "source:frozen")
    cluster.start(here, worker.pid, there.address, environment=pauses)
    states = cluster.states[here]
    wait_until(
        lambda: list(here.host_path(states).glob("*.source/paused-frozen")), 20, "the pause"
    )
    here.run(["pkill", "-KILL", "-f", "ppmr source /run/ppmr/to|ppmr migrate "])
    here.run(["umount", "--lazy", f"/run/ppmr/to/{there.address}"])
    worker.wait_for_lines(len(worker.lines()) + 10, timeout=SETTLED)
    check_stayed(worker, nodes)


@pytest.mark.long  # a daemon stays for five minutes; here one
def test_idle_daemon_ends_and_the_next_move_starts_another(cluster, lab, nodes):
    here, there = nodes.source, nodes.target
    mountpoint = f"/run/ppmr/to/{there.address}"
    source = Daemon(
        here, "source", mountpoint,
        ["--target", f"{there.address}:7440", *cluster.key, "--idle-timeout", "60"],
    )  # fmt: skip
    [worker] = start_workers(lab, nodes, 1)
    wait_until(lambda: not source.running(), 90, "the idle daemon to end")
    assert source.process.returncode == 0 and "the mount was not used" in source.output()
    cluster.migrate(here, worker.pid, there.address).ok()
    check_moved(worker, nodes)


def test_daemon_made_on_demand_ends_at_sigterm_and_is_made_again(cluster, lab, nodes):
    here, there = nodes.source, nodes.target
    [worker] = start_workers(lab, nodes, 1)
    cluster.migrate(here, worker.pid, there.address, options=["--dry-run"]).ok()
    [(mountpoint, pid)] = cluster.sources(here).items()
    here.signal(pid, signal.SIGTERM)
    wait_until(lambda: not cluster.sources(here), 10, "the daemon to end")
    cluster.migrate(here, worker.pid, there.address).ok()
    check_moved(worker, nodes)


CERTIFICATES = """
tls-cert = {directory}/{name}.crt
tls-key = {directory}/{name}.key
tls-ca = {directory}/ca.crt
allow-peer = {peer}
"""


@pytest.fixture
def certified(ppmr, lab, nodes, authority):
    """Two nodes, `one` and `two`, without a key: each has a certificate, which its target uses, and
    which /etc/ppmr/to.conf names."""
    names = {nodes.source: "one", nodes.target: "two"}
    with ExitStack() as stack:
        for node, name in names.items():
            [peer] = set(names.values()) - {name}
            options = authority.issue(name, peer)
            make_own_etc(node)
            for other, its_name in names.items():
                node.run(["sh", "-c", f"echo {other.address} {its_name} >>/etc/hosts"])
            lines = CERTIFICATES.format(directory=authority.directory, name=name, peer=peer)
            node.run(["sh", "-c", "mkdir -p /etc/ppmr; cat >/etc/ppmr/to.conf"], input=lines)
            options += ["--listen", ANY_PEER, "--state-dir", node.scratch("state")]
            target = Daemon(node, "target", "/run/ppmr/in", [*options, "--allow-root-restart"])
            stack.callback(target.kill)
        yield names


def make_own_etc(node):
    """Lets the node change its /etc, which it shares with this machine."""
    upper, work = node.scratch("etc", tmpfs=True) / "upper", node.private / "etc/work"
    node.run(["mkdir", upper, work])
    layers = f"lowerdir=/etc,upperdir={upper},workdir={work}"
    node.run(["mount", "-t", "overlay", "-o", layers, "etc", "/etc"])


def migrate_by_name(node, pid, to, *options):
    words = ["migrate", "--pid", pid, "--to", to, "--state-dir", node.private / "state", "--json"]
    return Running(node, [find_ppmr(), *words, *options]).wait()


def set_to_conf(node, old, new):
    node.run(["sed", "-i", f"s/{old}/{new}/", "/etc/ppmr/to.conf"])


def test_process_goes_there_and_back_with_the_certificates_of_to_conf(certified, lab, nodes):
    here, there = nodes.source, nodes.target
    here.run([find_ppmr(), "config", "check"])
    [worker] = start_workers(lab, nodes, 1)
    there.keep_helpers_low()
    migrate_by_name(here, worker.pid, "two").ok()
    check_moved(worker, nodes)
    mount = json.loads(here.run([find_ppmr(), "status", "/run/ppmr/to/two", "--json"]).stdout)
    assert "tls-cert two" in json.dumps(mount)

    migrate_by_name(there, worker.pid, "one").ok()
    assert here.alive(worker.pid) and not there.alive(worker.pid)


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("allow-peer = two", "allow-peer = three", ["'two'", "--allow-peer"]),
        ("one.crt", "two.crt", ["two.crt", "one.key"]),
        ("one.crt", "none.crt", ["none.crt", "No such file"]),
        ("tls-ca", "tls-authority", ["tls-authority"]),
        ("allow-peer.*", "target = three", ["target"]),
        ("allow-peer.*", "mountpoint = \\/mnt", ["mountpoint"]),
    ],
)
def test_mistake_in_the_certificates_of_to_conf_is_named(certified, lab, nodes, old, new, words):
    [worker] = start_workers(lab, nodes, 1)
    set_to_conf(nodes.source, old, new)
    checked = nodes.source.run([find_ppmr(), "config", "check"], check=False)
    # The check asks no peer, so it cannot know whose name the certificate of the peer has.
    assert (checked.returncode == 0) == (words[0] == "'two'"), checked.stderr
    done = migrate_by_name(nodes.source, worker.pid, "two")
    assert done.code in (2, 4), done.output
    assert all(word in done.err for word in [*words, "/etc/ppmr/to.conf"]), done.err
    assert "ppmr source: " not in done.err and "ppmr: " not in done.err, done.err
    check_stayed(worker, nodes)
