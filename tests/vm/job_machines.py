"""Hosts of jobs on the two machines: h1 is machine a, h3 is machine b, and h2 is a set of
namespaces on b.

    with JobMachines(machines, "vxlan") as hosts:
        job = hosts.run_as_user(["--spares", "1", "--", "mpirun", "..."])
        hosts.evacuate("h1")

The bridge of each host is made with the commands of docs/jobs.md, in one of three ways (NETWORKS).
ppmr's own streams between h1 and h3 use RDMA.
"""
import json
import re
import signal

from lab.job_hosts import BRIDGE, RunningCommand
from lab.node import Commands, LabError, wait_until
from lab.pace import patience
from lab.ppmr import find_ppmr, make_key
from lab.programs import REPOSITORY

AS_USER = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
# The document's eth1, an interface for jobs only, is the machines' second cable.
INTERFACES = {"eth0": "link0", "eth1": "link1"}
NETWORKS = {
    "interface": "with a network interface that is reserved for jobs",
    "vxlan": "or over the existing network with VXLAN",
    "vxlan without multicast": "or, where the network has no multicast",
}
BESIDE_ADDRESS, GATEWAY = "10.79.0.2", "10.79.0.1"  # addresses of h2, and of machine b for h2


def documented_commands(network):
    """Returns the commands of docs/jobs.md that make the bridge of a host."""
    text = (REPOSITORY / "docs/jobs.md").read_text()
    introduction = re.escape(NETWORKS[network])
    paragraph = rf"^[^\n]*{introduction}(?:[^\n]+\n)*"
    found = re.search(rf"{paragraph}\n((?:    # [^\n]*\n)+)", text, re.MULTILINE)
    if not found:
        raise LabError(f"docs/jobs.md has no commands '{NETWORKS[network]}'")
    commands = re.findall(r"^    # (.*)$", found.group(1), re.MULTILINE)
    return [
        re.sub(r"\beth[01]\b", lambda name: INTERFACES[name[0]], command) for command in commands
    ]


class Beside(Commands):
    """A host made of namespaces on a machine. Its bridge is a port of the machine's."""

    def __init__(self, machine, name):
        self.machine, self.name = machine, name
        # The process has a name of its own, so that pkill and the end of the test find it.
        self.init = machine.spawn(
            [
                *("unshare", "--net", "--mount", "--uts", "--propagation", "private"),
                *("sh", "-c", f"mount -t tmpfs run /run && hostname {name} && exec sleep 100000"),
            ]
        )
        wait_until(
            lambda: "sleep" in machine.read_text(f"/proc/{self.init}/comm"), 30, f"host {name}"
        )

    def _enter(self, argv):
        namespaces = ("--mount", "--net", "--uts", "--wd=/")
        return ["nsenter", f"--target={self.init}", *namespaces, "--", *map(str, argv)]

    def command(self, argv):
        return self.machine.command(self._enter(argv))

    def popen(self, argv, **options):
        return self.machine.popen(self._enter(argv), **options)

    def run(self, argv, **options):
        return self.machine.run(self._enter(argv), **options)

    def signal_process(self, process, number):
        self.machine.signal_process(process, number)

    def end(self):
        self.machine.signal(self.init, signal.SIGKILL)
        self.machine.await_end(self.init)


class JobMachines:
    def __init__(self, machines, network):
        self.machines, self.ppmr = machines, find_ppmr()
        a, b = machines.nodes
        self.home = machines.home / f"jobs-{network.replace(' ', '-')}"
        self.home.mkdir()
        self.home.chmod(0o777)  # the user writes there
        self._make_bridges(network)
        self.beside = Beside(b, "h2")
        self.nodes = {"h1": a, "h2": self.beside, "h3": b}
        self._join_beside()
        hosts_file = self.home / "hosts"
        hosts_file.write_text(
            f"127.0.0.1 localhost\n{a.address} h1\n{BESIDE_ADDRESS} h2\n{b.address} h3\n"
        )
        self._key = make_key(self.home / "key", a)
        self.agents = {}
        for name, node in self.nodes.items():
            node.run(["mount", "--bind", hosts_file, "/etc/hosts"])
            node.run(["install", "-m", "755", self.ppmr, "/run/ppmr-of-user"])
            self._start_agent(name, node)
        for name in self.nodes:
            self._await_agent(name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _make_bridges(self, network):
        make_bridge, *use_interface = documented_commands("interface")
        ports = use_interface if network == "interface" else documented_commands(network)
        for number, node in enumerate(self.machines.nodes, start=1):
            peer = self.machines.nodes[2 - number]
            for command in [make_bridge, *ports]:
                command = command.replace("02:00:00:00:01:01", f"02:00:00:00:01:{number:02}")
                node.run(["sh", "-ec", command.replace("HOST", peer.address)])

    def _join_beside(self):
        """Adds two cables from h2 to machine b: one into the bridge, one for the agents."""
        b, beside = self.machines.b, self.beside
        mtu = b.run(["cat", f"/sys/class/net/{BRIDGE}/mtu"]).stdout.strip()
        b.run(
            [
                *("sh", "-ec"),
                f"""ip link add h2-jobs mtu {mtu} type veth peer name jobs0 mtu {mtu} netns {beside.init}
                ip link set h2-jobs master {BRIDGE} up
                ip link add h2-up type veth peer name up0 netns {beside.init}
                ip address add {GATEWAY}/24 dev h2-up
                ip link set h2-up up
                echo 1 >/proc/sys/net/ipv4/ip_forward""",
            ]
        )
        beside.run(
            [
                *("sh", "-ec"),
                f"""ip link set lo up
                ip link add {BRIDGE} address 02:00:00:00:01:03 mtu {mtu} type bridge
                ip link set {BRIDGE} up
                ip link set jobs0 master {BRIDGE} up
                ip address add {BESIDE_ADDRESS}/24 dev up0
                ip link set up0 up
                ip route add default via {GATEWAY}""",
            ]
        )
        self.machines.a.run(["ip", "route", "replace", "10.79.0.0/24", "via", b.address])

    def _start_agent(self, name, node):
        log = self.home / f"agent-{name}.log"
        # h2 has no RDMA device.
        transport = [] if name == "h2" else ["--source-option=--transport=verbs"]
        command = [
            *(self.ppmr, "job", "agent", "--host", name, "--bridge", BRIDGE, *self._key),
            *("--share", self.home, "--state-dir", "/run/job-state", *transport),
            *("--target-option=--pool-size=64MiB", "--target-option=--memory-limit=512MiB", "-f"),
        ]
        with open(log, "w") as file:
            self.agents[name] = node.popen(command, stdout=file, stderr=file)

    def agent_log(self, name):
        return (self.home / f"agent-{name}.log").read_text(errors="replace")

    def _await_agent(self, name):
        process = self.agents[name]
        ready = f"agent of host {name} ready"
        wait_until(
            lambda: ready in self.agent_log(name) or process.poll() is not None, 60, f"agent {name}"
        )
        if process.poll() is not None:
            raise LabError(f"the agent of {name} ended: {self.agent_log(name)}")

    def run_as_user(self, words):
        """Starts `ppmr job run` on h1 as an ordinary user, in `home`."""
        words = ["--hosts", ",".join(self.nodes), *words]
        environment = ["env", f"--chdir={self.home}", "OMPI_MCA_mpi_yield_when_idle=1"]
        return RunningCommand(
            self.nodes["h1"].popen(
                [*AS_USER, *environment, "/run/ppmr-of-user", "job", "run", *words],
                stdout=-1,
                stderr=-1,
                text=True,
                errors="replace",
            )
        )

    def evacuate(self, host):
        done = self.nodes["h1"].run(
            [self.ppmr, "job", "evacuate", host, "--json"], timeout=300, check=False
        )
        if not done.stdout:
            raise LabError(f"ppmr job evacuate: {done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])["moves"]

    def status(self):
        return json.loads(self.nodes["h1"].run([self.ppmr, "job", "status", "--json"]).stdout)[
            "jobs"
        ]

    def leftovers(self):
        script = "runc list -q; ls /run/ppmr-job/nodes /run/ppmr-job/records | grep -v :; ls /run/netns | grep -v agent"
        return {
            name: words
            for name, node in self.nodes.items()
            if (words := node.run(["sh", "-c", script], check=False).stdout.split())
        }

    def await_clean(self, timeout=90):
        wait_until(lambda: not self.leftovers(), timeout, "the hosts to be clean", interval=1)

    def close(self):
        for name, node in self.nodes.items():
            if (process := self.agents.get(name)) and process.poll() is None:
                node.signal_process(process, signal.SIGTERM)
                process.wait(patience(60))
            # Ends the target.
            node.run(["sh", "-c", "umount -l /run/ppmr-job/in /etc/hosts"], check=False)
        self.beside.end()
        for node in self.machines.nodes:
            script = f"for link in {BRIDGE} jobs-vxlan h2-jobs h2-up; do ip link delete $link 2>/dev/null; done; ip link set link1 nomaster down"
            node.run(["sh", "-c", script], check=False)
        self.machines.a.run(["ip", "route", "delete", "10.79.0.0/24"], check=False)
