"""An address that moves with its server between nodes, and a third node for the clients."""


class MovingAddress:
    """
    moving = MovingAddress(lab, source, target)
    ... a server on source listens at moving.address, clients on moving.third connect to it
    moving.leave()            the target has the address, too; the clients' packets are dropped
    ... the server moves
    moving.arrive()           packets go to the target
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
        self._route_to(source)

    def leave(self):
        self._route_to(None)  # the clients do not receive what the source's kernel sends
        self._target.run(["ip", "address", "add", f"{self.address}/32", "dev", "lo"])

    def arrive(self):
        self._route_to(self._target)

    def _route_to(self, node):
        where = (
            [f"{self.address}/32", "via", self._near[node], "src", self.client_address]
            if node
            else ["blackhole", f"{self.address}/32"]
        )
        self.third.run(["ip", "route", "replace", *where])
