"""An attacker between a source and a target: records what passes, and may flip bits of the pages on
their way.

Runs as a program on a node: tap.py LISTEN_ADDRESS PORT ADDRESS PORT DIRECTORY. Each direction of
each connection is recorded in a file of DIRECTORY. While DIRECTORY/flip contains a number, so many
payloads of read responses get one wrong bit each; the program counts it down.
"""

import os
import random
import signal
import sys
import threading
from pathlib import Path

from .migrations import Migrations
from .relay import Relay


class TappedMigrations(Migrations):
    """Both mounts; the source reaches the target through a tap, which runs on the target's node.

    with TappedMigrations(nodes.source, nodes.target, lab.directory / "private") as migrations:
        migrations.flip(3)            # one bit in each of the next three payloads
        migrations.recorded(b"text")  # how often this passed; and how many bytes passed in all
    """

    def reach_target(self):
        self.recordings = self.target_at.scratch("tap")
        port = self.port + 1000
        self._tap = self.target_at.popen(
            [
                sys.executable,
                "-m",
                "lab.tap",
                self.target_at.address,
                port,
                self.target_at.address,
                self.port,
                self.recordings,
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parents[1]),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
        self.target_at.await_listener(port, self._tap)
        return f"{self.target_at.address}:{port}"

    def flip(self, count):
        path = self.target_at.host_path(self.recordings) / "flip"
        path.with_suffix(".new").write_text(str(count))
        path.with_suffix(".new").rename(path)

    def flips_left(self):
        return int((self.target_at.host_path(self.recordings) / "flip").read_text())

    def recorded(self, text):
        found = passed = 0
        for path in self.target_at.host_path(self.recordings).glob("recording-*"):
            content = path.read_bytes()
            found += content.count(text)
            passed += len(content)
        return found, passed

    def close(self):
        super().close()
        if self._tap.poll() is None:
            self.target_at.signal_process(self._tap, signal.SIGKILL)
        self._tap.wait(timeout=5)


class Flips:
    """Flips a bit of a payload while the file says so."""

    def __init__(self, path):
        self._path, self._lock = path, threading.Lock()
        path.write_text("0")

    def __call__(self, payload):
        with self._lock:
            left = int(self._path.read_text())
            if left > 0:
                self._path.write_text(str(left - 1))
        if left > 0:
            bit = random.randrange(len(payload) * 8)
            payload[bit // 8] ^= 1 << bit % 8


def main():
    address, port, to_address, to_port, place = sys.argv[1:]
    directory = Path(place)

    def record(name):
        return open(directory / f"recording-{name}", "wb", buffering=0)

    flips = Flips(directory / "flip")
    Relay((to_address, int(to_port)), (address, int(port)), record, flips).wait()


if __name__ == "__main__":
    main()
