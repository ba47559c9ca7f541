#!/usr/bin/python3
"""Measures a TCP connection before and after moves of the server that sends.

    tests/throughput.py [--moves 3] [--seconds 3]

As root. The client on a third node receives over links of 400 Mbit/s, so what differs is what the
connection adds to the bytes: a segment of 524 bytes instead of 1448 costs 7%. Prints the rate and
the MSS before and after each move. Exit 0 only if the last rate is within 3% of the first.
"""
import argparse
import signal
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lab.migrations import Migrations  # noqa: E402
from lab.moving_address import MovingAddress  # noqa: E402
from lab.node import Lab, wait_until  # noqa: E402

PORT, ALLOWED = 7090, 0.03
RATE = ["rate", "400mbit", "burst", "128kb", "latency", "50ms"]
OPTIONS = ["--tcp-established", "--network-lock", "skip"]
SERVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
connection, _ = listener.accept()
connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
block = bytes(1 << 18)
while True:
    connection.sendall(block)
    with open(sys.argv[3], "w") as mss: print(connection.getsockopt(6, 2), file=mss)
"""
CLIENT = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
received, begin = 0, time.monotonic()
while True:
    more = len(connection.recv(1 << 18))
    if not more: sys.exit("the connection has ended")
    received += more
    now = time.monotonic()
    if now - begin >= 0.25:
        print(int(received / (now - begin)), flush=True)
        received, begin = 0, now
"""


class Connection:
    def __init__(self, lab, node, moving):
        self.mss_file, self.log = lab.home / "mss", lab.home / "rates"
        python = ["/usr/bin/python3", "-SEc"]
        words = [SERVER, moving.address, PORT, self.mss_file]
        self.pid = node.spawn([*python, *words], log=lab.home / "server")
        wait_until(lambda: node.listens(PORT), 10, "the server to listen")
        moving.third.spawn([*python, CLIENT, moving.address, PORT], log=self.log)

    def rates(self):
        return [int(line) for line in self.log.read_text().splitlines() if line.isdigit()]

    def measure(self, count):
        """Returns the rate in bytes per second, and the MSS. The rate is the upper quartile,
        because a busy machine makes some intervals slow, but none faster than the link."""
        before = len(self.rates()) + 4  # without those in which the connection gets going
        wait_until(lambda: len(self.rates()) >= before + count, 60, "the connection to go on")
        mss = wait_until(lambda: self.mss_file.read_text().strip(), 10, "the MSS")
        return statistics.quantiles(self.rates()[before:])[2], int(mss)


def limit(node):
    shown = node.run(["ip", "-o", "link"]).stdout
    [device] = [word.split("@")[0] for word in shown.split() if word.startswith("to-third@")]
    node.run(["tc", "qdisc", "add", "dev", device, "root", "tbf", *RATE])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    arguments = parser.parse_args()
    count = max(8, round(arguments.seconds / 0.25))
    with Lab() as lab:
        nodes = lab.pair()
        moving = MovingAddress(lab, nodes.source, nodes.target)
        there, back = nodes.source, nodes.target
        for node in (there, back):
            limit(node)
        directory = lab.directory / "private"
        with Migrations(there, back, directory, name="there") as forth, Migrations(
            back, there, directory, name="back"
        ) as home:
            connection = Connection(lab, there, moving)
            first, mss = connection.measure(count)
            print(f"before   {first / 1e6:6.2f} MB/s  MSS {mss}", flush=True)
            last = first
            for number in range(arguments.moves):
                way = home if number % 2 else forth
                moving.leave_to(way.target_at)
                way.migrate(connection.pid, criu_options=OPTIONS).ok()
                moving.arrive_at(way.target_at)
                last, mss = connection.measure(count)
                change = 100 * (last / first - 1)
                print(f"move {number + 1}   {last / 1e6:6.2f} MB/s  MSS {mss}  {change:+.1f}%", flush=True)
            way.target_at.signal(connection.pid, signal.SIGKILL)
    sys.exit(0 if abs(last / first - 1) <= ALLOWED else 1)


if __name__ == "__main__":
    main()
