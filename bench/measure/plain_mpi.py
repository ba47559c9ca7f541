"""`mpirun` without job nodes: in plain network namespaces on the bridges of job hosts, with the
same MPI settings, and in control groups like those of job nodes. The kernel shares the CPUs among
groups first. So what else runs on this machine takes the same time from both.

mpirun starts its daemons through a stub that does what ssh would: it sends the command line to a
server in the other namespace.
"""
import contextlib
import os
import signal
import subprocess
from pathlib import Path

from lab.job_hosts import BRIDGE, RunningCommand
from lab.node import Commands, wait_until

NAMESPACE = "plain"
GROUPS = f"ppmr-plain-{os.getpid()}"  # beside the group of all job nodes, ppmr-job
PORT = 7400
SERVER = f"""
import json, socket, subprocess, threading
def serve(connection):
    words = json.loads(connection.makefile().readline())
    subprocess.run(["sh", "-c", " ".join(words)], stdin=-3, stdout=-3, stderr=-3)
    connection.close()
listener = socket.create_server(("", {PORT}))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
STUB = f"""#!/usr/bin/python3
import json, socket, sys
connection = socket.create_connection((sys.argv[1], {PORT}))
connection.sendall(json.dumps(sys.argv[2:]).encode() + b"\\n")
connection.recv(1)
"""
# The same settings as in jobs/cli/mpi_environment.cc.
SETTINGS = {
    "plm": "rsh",
    "ras": "^slurm",
    "plm_rsh_no_tree_spawn": "1",
    "orte_leave_session_attached": "0",
    "btl": "tcp,self,vader",
    "pml": "ob1",
    "osc": "^rdma,ucx",
    "btl_tcp_if_include": "eth0",
    "oob_tcp_if_include": "eth0",
}


class ControlGroups:
    """A control group for each node, below one group for all nodes."""

    def __init__(self, names):
        of_version_1 = Path("/sys/fs/cgroup/cpu")
        base = of_version_1 if of_version_1.is_dir() else Path("/sys/fs/cgroup")
        self.paths = [base / GROUPS, *(base / GROUPS / name for name in names)]
        for path in self.paths:
            if base != of_version_1:
                (path.parent / "cgroup.subtree_control").write_text("+cpu")
            path.mkdir(exist_ok=True)

    def close(self):
        """Ends what still runs in the groups: a server outlives the nsenter that started it."""
        for path in reversed(self.paths):
            for pid in (path / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            wait_until(lambda: self._is_removed(path), 20, f"{path} to be empty")

    @staticmethod
    def _is_removed(path):
        try:
            path.rmdir()
        except OSError:  # busy: a process is ending
            return False
        return True


class PlainNode(Commands):
    """A network namespace on a host, with a port on the host's bridge."""

    def __init__(self, host, number, group):
        self._host, self._group = host, group
        self.name, self.address = f"p{number}", f"10.78.1.{number}"
        port = f"plain{number}"
        inside = ["ip", "-n", NAMESPACE]
        for words in (
            ["ip", "netns", "add", NAMESPACE],
            ["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", NAMESPACE],
            ["ip", "link", "set", port, "master", BRIDGE, "up"],
            [*inside, "address", "add", f"{self.address}/24", "dev", "eth0"],
            [*inside, "link", "set", "eth0", "up"],
            [*inside, "link", "set", "lo", "up"],
        ):
            host.run(words)

    def command(self, argv):
        join = f'echo $$ >{self._group}/cgroup.procs && exec ip netns exec {NAMESPACE} "$@"'
        return self._host.command(["sh", "-c", join, "sh", *argv])


class PlainMpi:
    def __init__(self, hosts, names, slots):
        self._hosts = hosts
        self._groups = ControlGroups(names)
        self.nodes = [
            PlainNode(hosts.nodes[name], number, group)
            for number, (name, group) in enumerate(zip(names, self._groups.paths[1:]), start=1)
        ]
        with open(hosts.lab.home / "hosts", "a") as names_file:
            names_file.writelines(f"{node.address} {node.name}\n" for node in self.nodes)
        self._stub = hosts.lab.home / "stub"
        self._stub.write_text(STUB)
        self._stub.chmod(0o755)
        self._hostfile = hosts.lab.home / "hostfile"
        self._hostfile.write_text("".join(f"{node.name} slots={slots}\n" for node in self.nodes))
        self._servers = [node.popen(["/usr/bin/python3", "-c", SERVER]) for node in self.nodes]
        for node, server in zip(self.nodes, self._servers):
            node.await_listener(PORT, server)

    def run(self, words, environment):
        settings = {
            **SETTINGS,
            "plm_rsh_agent": self._stub,
            "orte_default_hostfile": self._hostfile,
        }
        variables = {f"OMPI_MCA_{name}": str(value) for name, value in settings.items()}
        return RunningCommand(
            self.nodes[0].popen(
                ["env", f"--chdir={self._hosts.lab.home}", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**self._hosts.environment, **environment, **variables},
            )
        )

    def close(self):
        for server in self._servers:
            server.kill()
            server.wait()
        self._groups.close()
