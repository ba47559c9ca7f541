"""A container moves with its own address and its connections: its port is attached on one node at
most."""
import json
import signal

import pytest

from lab.node import wait_until

MOVED, ABORTED = 0, 11
WORKLOAD = "tests/workloads/conversation_over_tcp.py"
BRIDGE, PORT, NAMESPACE = "jobs", "job-port", "/run/netns/job"
ADDRESS, PEER, LISTENER = "10.88.0.10", "10.88.0.1", 5555
BUNDLE = "/run/job"  # a directory that is private to a node


class Job:
    """A container with an address on the bridge of its node. It exchanges messages with a peer on a
    third node.
    """

    def __init__(self, lab, migrations, cgroup, repository):
        self.migrations, self.lab = migrations, lab
        self.source, self.target = migrations.source_at, migrations.target_at
        self.program = ["/usr/bin/python3", str(repository / WORKLOAD)]
        self.log = lab.home / "conversation"
        self._cgroup = cgroup
        self._make_switch()
        for node in (self.source, self.target):
            self._make_port(node)
        self.source.run(["ip", "link", "set", PORT, "master", BRIDGE])
        self.peer = self.third.popen(
            [*self.program, "answer", PEER, LISTENER], stdout=self.log.open("w")
        )
        self.third.await_listener(LISTENER, self.peer)
        self.source.run(["sh", "-c", f"runc run -d -b {BUNDLE} job </dev/null >/dev/null 2>&1"])
        self.goes_on()

    def _make_switch(self):
        self.third = self.lab.node("third")
        for node in (self.third, self.source, self.target):
            node.run(["ip", "link", "add", BRIDGE, "type", "bridge"])
            node.run(["ip", "link", "set", BRIDGE, "up"])
        for node in (self.source, self.target):
            (_, here, _), (_, there, _) = self.lab.join(node, self.third).ends
            node.run(["ip", "link", "set", here, "master", BRIDGE])
            self.third.run(["ip", "link", "set", there, "master", BRIDGE])
        # If a bridge had the address of one of its ports, its address would change when ports come
        # and go.
        self.third.run(["ip", "link", "set", BRIDGE, "address", "02:00:00:00:00:01"])
        self.third.run(["ip", "address", "add", f"{PEER}/24", "dev", BRIDGE])

    def _make_port(self, node):
        node.run(
            [
                "sh",
                "-ec",
                f"""mkdir -p {BUNDLE}/root /run/netns
                mount --bind / {BUNDLE}/root
                mount -o remount,bind,ro {BUNDLE}/root
                ip netns add job
                ip link add {PORT} type veth peer name eth0 netns job
                ip -n job link set eth0 address 02:00:00:00:00:10 up
                ip -n job link set lo up
                ip -n job address add {ADDRESS}/24 dev eth0
                ip link set {PORT} up
                runc spec --bundle {BUNDLE}""",
            ]
        )
        path = node.host_path(f"{BUNDLE}/config.json")
        config = json.loads(path.read_text())
        config["process"].update(terminal=False, args=[*self.program, "ask", PEER, str(LISTENER)])
        config["root"] = {"path": f"{BUNDLE}/root", "readonly": True}
        config["annotations"] = {"ppmr.port": PORT, "ppmr.bridge": BRIDGE}
        config["linux"]["cgroupsPath"] = f"/{self._cgroup}"
        for namespace in config["linux"]["namespaces"]:
            if namespace["type"] == "network":
                namespace["path"] = NAMESPACE
        path.write_text(json.dumps(config))

    def attached(self):
        """Returns the nodes on which the port is attached."""
        return [
            node.name
            for node in (self.source, self.target)
            if f"master {BRIDGE}" in node.run(["ip", "link", "show", PORT], check=False).stdout
        ]

    def said(self):
        lines = self.log.read_text().splitlines()
        assert "closed" not in lines, "the peer's connection was closed"
        return int(lines[-1].split()[0]) if lines else 0

    def longest_silence(self):
        return float(self.log.read_text().splitlines()[-1].split()[1])

    def goes_on(self):
        wanted = self.said() + 50
        wait_until(lambda: self.said() >= wanted, 20, "the conversation to go on")

    def check_at(self, node, other):
        self.goes_on()
        assert self.attached() == [node.name]
        state = json.loads(node.run(["runc", "state", "job"]).stdout)
        assert state["status"] == "running" and node.alive(state["pid"])
        wait_until(
            lambda: other.run(["runc", "state", "job"], check=False).returncode != 0,
            10,
            f"runc on {other.name} to remove the container",
        )

    def check_moved(self):
        self.check_at(self.target, self.source)

    def check_stayed(self):
        self.check_at(self.source, self.target)

    def start_migrate(self):
        return self.migrations.start_migrate(
            options=["--runc", "job"], criu_options=["--tcp-established"]
        )

    def close(self):
        for node in (self.source, self.target):
            node.run(["runc", "delete", "--force", "job"], check=False)
        self.peer.kill()
        self.peer.wait()


@pytest.fixture
def pauses(lab):
    path = lab.directory / "pauses"
    path.touch()
    return path


@pytest.fixture
def job(lab, own_cgroup, make_migrations, need_command, pauses, pytestconfig):
    need_command("runc")
    migrations = make_migrations(environment={"PPMR_PAUSE_FILE": str(pauses)})
    job = Job(lab, migrations, own_cgroup, pytestconfig.rootpath)
    yield job
    job.close()


def pause_at(job, pauses, *points):
    pauses.write_text(" ".join(f"{role}:{state}" for role, state in points))
    running = job.start_migrate()
    for role, state in points:
        job.migrations.wait_until_paused(role, state, running)
    return running


def test_container_moves_with_its_connection(job):
    done = job.start_migrate().wait().ok()
    job.check_moved()
    assert job.longest_silence() <= done.summary["trees"][0]["downtime_s"] + 1.5


def test_no_bridge_port_is_attached_while_both_nodes_have_the_container(job, pauses):
    running = pause_at(job, pauses, ("source", "sealed"), ("target", "ready"))
    assert job.attached() == []
    for role, state in (("target", "ready"), ("source", "sealed")):
        job.migrations.go_on(role, state)
    assert running.wait().code == MOVED
    job.check_moved()


def test_container_keeps_its_connection_when_migration_is_aborted(job, pauses):
    running = pause_at(job, pauses, ("source", "frozen"))
    running.signal(signal.SIGINT)
    job.migrations.go_on("source", "frozen")
    assert running.wait().code == ABORTED
    job.check_stayed()


def test_container_keeps_its_connection_when_relay_is_killed(job, pauses):
    running = pause_at(job, pauses, ("source", "frozen"))
    assert job.attached() == []
    job.source.run(["pkill", "-9", "-f", "migration-relay"])
    job.migrations.go_on("source", "frozen")
    assert running.wait().code == ABORTED
    job.check_stayed()


def test_container_keeps_its_connection_when_criu_is_killed(job, pauses):
    running = pause_at(job, pauses, ("source", "frozen"))
    job.source.run(["pkill", "-9", "-f", "criu: dump"])
    job.migrations.go_on("source", "frozen")
    assert running.wait().code == ABORTED
    job.check_stayed()


def test_recover_moves_container_and_bridge_port_after_source_tools_were_killed(job, pauses):
    running = pause_at(job, pauses, ("source", "committed"))
    job.source.run(
        ["pkill", "-9", "-f", "ppmr migrate |runc checkpoint|migration-relay|criu: dump"]
    )
    running.kill()
    job.migrations.recover()
    job.check_moved()


def test_target_without_bridge_port_is_refused_before_any_change(job):
    job.target.run(["ip", "link", "delete", PORT])
    done = job.start_migrate().wait()
    assert done.code == ABORTED
    assert f"the target lacks the network interface {PORT}, which" in done.output
    assert job.attached() == [job.source.name]
    job.goes_on()
