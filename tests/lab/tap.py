"""An attacker between a source and a target: records what passes, and may flip bits of the pages on
their way.

Runs as a program on a node: tap.py LISTEN_ADDRESS PORT ADDRESS PORT DIRECTORY. Each direction of
each connection is recorded in a file of DIRECTORY. While DIRECTORY/flip contains a number, so many
payloads of read responses get one wrong bit each; the program counts it down.
"""

import os
import random
import select
import signal
import socket
import struct
import sys
import threading
from pathlib import Path

from .migrations import Migrations
from .pace import patience

HELLO_BYTES = 12 + 60 + 4  # length of the hello of a data connection: docs/protocol.md
RESPONSE = struct.Struct("<IIII")  # fields: id, generation, length, crc


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
        self._tap.wait(timeout=patience(5))


class Tap:
    def __init__(self, directory):
        self._directory, self._lock, self._number = directory, threading.Lock(), 0

    def serve(self, listen, to):
        server = socket.create_server(listen)
        while True:
            near, _ = server.accept()
            try:
                far = socket.create_connection(to, timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            threading.Thread(target=self._connection, args=(near, far), daemon=True).start()

    def _connection(self, near, far):
        select.select([near], [], [])
        first = near.recv(1, socket.MSG_PEEK)
        with self._lock:
            self._number += 1
            number = self._number
        # A plain-text hello begins with P; TLS begins with another byte.
        carries_payload = first == b"P"
        outwards = self._responses if carries_payload else self._bytes
        back = threading.Thread(
            target=self._forward, args=(self._bytes, far, near, f"{number}-back"), daemon=True
        )
        back.start()
        self._forward(outwards, near, far, f"{number}-out")
        back.join()

    def _forward(self, messages, start, end, name):
        with open(self._directory / f"recording-{name}", "wb", buffering=0) as recording:
            try:
                for message in messages(start):
                    recording.write(message)
                    end.sendall(message)
            except (OSError, EOFError):
                pass
        for side in (start, end):
            try:
                side.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    @staticmethod
    def _bytes(start):
        while message := start.recv(1 << 20):
            yield message

    def _responses(self, start):
        """Handles the bytes that a source sends over a data connection: its hello, then read
        responses.
        """
        yield read(start, HELLO_BYTES)
        while True:
            header = read(start, RESPONSE.size)
            yield header
            payload = read(start, RESPONSE.unpack(header)[2])
            if self._takes_a_flip():
                bit = random.randrange(len(payload) * 8)
                payload[bit // 8] ^= 1 << bit % 8
            yield payload

    def _takes_a_flip(self):
        with self._lock:
            path = self._directory / "flip"
            left = int(path.read_text())
            if left > 0:
                path.write_text(str(left - 1))
            return left > 0


def read(start, count):
    got, view = 0, memoryview(content := bytearray(count))
    while got < count:
        more = start.recv_into(view[got:])
        if more == 0:
            raise EOFError
        got += more
    return content


def main():
    address, port, to_address, to_port, directory = sys.argv[1:]
    (Path(directory) / "flip").write_text("0")
    Tap(Path(directory)).serve((address, int(port)), (to_address, int(to_port)))


if __name__ == "__main__":
    main()
