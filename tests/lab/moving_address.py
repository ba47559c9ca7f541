"""An address that moves with its server between nodes, and a third node for the clients."""
import json
import subprocess

from .pace import patience


class MovingAddress:
    """
    moving = MovingAddress(lab, source, target)
    ... a server on source listens at moving.address, clients on moving.third connect to it
    moving.leave()            the target has the address, too; the clients' packets are dropped
    ... the server moves
    moving.arrive()           packets go to the target

    leave_to(node) and arrive_at(node) are the same for either direction.

    With put_behind(node) the clients run on that node, and `third` is their router:

    moving.share()            the target has the address, too; packets go to the source
    moving.hold()             the clients' packets wait on their node. TCP's timers there, which
                              double, then do not delay what follows
    moving.let_through()      they go where they went before
    moving.go_on(node)        they go to that node
    """

    address, client_address = "10.77.100.1", "10.77.101.1"

    def __init__(self, lab, source, target):
        self.third = lab.node("third")
        self._target, self._near = target, {}
        self.third.run(["ip", "address", "add", f"{self.client_address}/32", "dev", "lo"])
        for node in (source, target):
            self._near[node], far = (end[2] for end in lab.join(node, self.third).ends)
            node.run(["ip", "route", "add", f"{self.client_address}/32", "via", far])
        source.run(["ip", "address", "add", f"{self.address}/32", "dev", "lo"])
        self._source, self._preferred = source, ["src", self.client_address]
        self._route_to(source)

    def share_address(self):
        self._target.run(["ip", "address", "add", f"{self.address}/32", "dev", "lo"])

    def leave(self):
        self.leave_to(self._target)

    def leave_to(self, node):
        self._route_to(None)  # the clients do not receive what the other node's kernel sends
        node.run(["ip", "address", "replace", f"{self.address}/32", "dev", "lo"])

    def arrive(self):
        self.arrive_at(self._target)

    def arrive_at(self, node):
        self._route_to(node)

    def _route_to(self, node):
        where = (
            [f"{self.address}/32", "via", self._near[node], *self._preferred]
            if node
            else ["blackhole", f"{self.address}/32"]
        )
        self.third.run(["ip", "route", "replace", *where])

    def put_behind(self, lab, clients):
        """`clients` gets the clients' address, and packets wait there while the router's link
        address is unknown."""
        (_, router_end, router), (_, end, near) = lab.join(self.third, clients).ends
        link_address, own_link_address = (
            json.loads(node.run(["ip", "-j", "link", "show", "dev", interface]).stdout)[0][
                "address"
            ]
            for node, interface in ((self.third, router_end), (clients, end))
        )
        self._preferred = []
        self._route_to(self._source)
        self.third.run(["ip", "address", "del", f"{self.client_address}/32", "dev", "lo"])
        self.third.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"])
        self.third.run(["ip", "link", "set", router_end, "arp", "off"])
        to_clients = ["ip", "neigh", "replace", near, "lladdr", own_link_address]
        self.third.run([*to_clients, "dev", router_end, "nud", "permanent"])
        self.third.run(["ip", "route", "add", f"{self.client_address}/32", "via", near])
        clients.run(["ip", "address", "add", f"{self.client_address}/32", "dev", "lo"])
        # The clients' kernel keeps packets as long as it requests the router's address.
        clients.run(["sysctl", "-qw", f"net.ipv4.neigh.{end}.mcast_solicit=1000"])
        clients.run(
            ["ip", "route", "add", f"{self.address}/32", "via", router, "src", self.client_address]
        )
        self._router = f"{router} dev {end}", f"{router} lladdr {link_address} dev {end}"
        # Uses one process for all changes, because starting a process takes longer than a move's
        # first step.
        self._neighbours = clients.popen(
            ["ip", "-force", "-batch", "-"], stdin=subprocess.PIPE, text=True
        )
        self.let_through()

    def share(self):
        self._target.run(["ip", "address", "replace", f"{self.address}/32", "dev", "lo"])
        self.go_on(self._source)

    def hold(self):
        self._change(f"neigh del {self._router[0]}")

    def let_through(self):
        self._change(f"neigh replace {self._router[1]} nud permanent")

    def go_on(self, node):
        self._route_to(node)
        self.let_through()

    def _change(self, words):
        self._neighbours.stdin.write(words + "\n")
        self._neighbours.stdin.flush()

    def close(self):
        """Ends the process that put_behind started."""
        self._neighbours.stdin.close()
        self._neighbours.wait(timeout=patience(10))
