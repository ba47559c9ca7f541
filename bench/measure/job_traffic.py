"""Counts what the agents of job hosts send each other, and the broadcasts of ARP for job nodes."""
import tempfile
from dataclasses import dataclass

from lab.job_hosts import BRIDGE
from lab.node import LabError, wait_until

AGENT_PORT, TARGET_PORT = 7473, 7472

# One line per broadcast: an announcement's sender is also its target (RFC 5227).
SNIFF = f"""
import socket
listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
listener.bind(({BRIDGE!r}, 0))
print("ready", flush=True)
while True:
    arp = listener.recv(2000)[14:42]
    sender, wanted = arp[14:18], arp[24:28]
    if wanted[:2] != bytes((10, 78)):  # the hosts themselves, which share the bridge only here
        print("announcement" if sender == wanted else "question", flush=True)
"""


@dataclass(frozen=True)
class Traffic:
    """Counts requests to agents, each on a connection of its own, and the bytes of requests and
    answers with all headers."""

    requests: int = 0
    bytes: int = 0
    target_connections: int = 0  # connections to `ppmr target`
    announcements: int = 0
    questions: int = 0  # broadcasts of ARP

    def __sub__(self, other):
        return Traffic(*(getattr(self, name) - getattr(other, name) for name in vars(self)))


class TrafficCounters:
    def __init__(self, hosts):
        self._hosts = hosts
        for node in hosts.nodes.values():
            for rule in (
                ("INPUT", "--dport", AGENT_PORT, "--syn"),
                ("INPUT", "--dport", AGENT_PORT),
                ("OUTPUT", "--sport", AGENT_PORT),
                ("INPUT", "--dport", TARGET_PORT, "--syn"),
            ):
                node.run(["iptables", "-A", rule[0], "-p", "tcp", *rule[1:]])
        self._log = tempfile.NamedTemporaryFile(prefix="arp-")
        self._sniffer = hosts.switch.popen(["/usr/bin/python3", "-c", SNIFF], stdout=self._log)
        wait_until(lambda: self._lines() or self._sniffer.poll() is not None, 20, "the ARP counter")
        if self._sniffer.poll() is not None:
            raise LabError("the ARP counter ended")

    def _lines(self):
        with open(self._log.name) as file:
            return file.read().split()

    def of(self, name):
        """(requests, bytes, connections to the target) that reached one host."""
        shown = self._hosts.nodes[name].run(["iptables", "-vnxL"]).stdout
        rules = [line.split() for line in shown.splitlines() if " tcp " in line]
        if len(rules) != 4:
            raise LabError(f"host {name} does not count its traffic: {shown}")
        syns, requests, target, answers = rules
        return int(syns[0]), int(requests[1]) + int(answers[1]), int(target[0])

    def read(self):
        of_hosts = zip(*(self.of(name) for name in self._hosts.names))
        lines = self._lines()
        return Traffic(*map(sum, of_hosts), lines.count("announcement"), lines.count("question"))

    def close(self):
        self._sniffer.kill()
        self._sniffer.wait()
        self._log.close()
