"""Connection attempts from strangers, who have no key: silent ones, noise, the beginning of TLS,
plain text.

    python3 -m lab.strangers HOST PORT COUNT PER_SECOND ADDRESS...
        from these addresses; prints how many connected
"""
import collections
import json
import re
import socket
import sys
import threading
import time

HELD = 600  # number of silent connections at one time
WORKERS = 8
OPENINGS = (
    b"",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"PPMR" + bytes(60),
    b"",
)


class Strangers:
    """A node with its own link to the target and with eight addresses."""

    def __init__(self, lab, target):
        self.node, self._target = lab.node("strangers"), target
        link = lab.join(target, self.node)
        (_, _, gateway), (_, interface, address) = link.ends
        self._addresses = [f"{address.rsplit('.', 1)[0]}.{number}" for number in range(101, 109)]
        for one in self._addresses:
            self.node.run(["ip", "address", "add", f"{one}/24", "dev", interface])
        self.node.run(["ip", "route", "add", target.address, "via", gateway])

    def flood(self, port, count, per_second):
        """Returns the process. Its output is {"attempts", "connected", "seconds"}."""
        return self.node.popen(
            [
                sys.executable,
                __file__,
                self._target.address,
                str(port),
                str(count),
                str(per_second),
                *self._addresses,
            ],
            stdout=-1,
            text=True,
        )


def threads_of(daemon):
    with open(f"/proc/{daemon.host_pid}/status") as status:
        return int(re.search(r"Threads:\s+(\d+)", status.read()).group(1))


def result(process, timeout):
    out, _ = process.communicate(timeout=timeout)
    return json.loads(out)


def main():
    host, port, count, per_second = (
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    addresses, began = sys.argv[5:], time.monotonic()
    held, connected, lock = collections.deque(), [0], threading.Lock()

    def attempt(number):
        stranger = socket.socket()
        stranger.settimeout(2)
        try:
            stranger.bind((addresses[number % len(addresses)], 0))
            stranger.connect((host, port))
            stranger.sendall(OPENINGS[number % len(OPENINGS)])
        except OSError:
            return stranger.close()
        with lock:
            connected[0] += 1
            held.append(stranger)
            late = held.popleft() if len(held) > HELD else None
        if late:
            late.close()

    def work(first):
        for number in range(first, count, WORKERS):
            time.sleep(max(0, began + number / per_second - time.monotonic()))
            attempt(number)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    print(json.dumps({"attempts": count, "connected": connected[0], "seconds": seconds}))


if __name__ == "__main__":
    main()
