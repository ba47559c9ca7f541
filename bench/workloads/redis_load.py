"""A client that keeps redis busy over a few connections, and knows each value that it must read.

    redis_load.py fill HOST PORT KEYS VALUE_BYTES                       writes all keys
    redis_load.py load HOST PORT KEYS VALUE_BYTES CONNECTIONS FILE
        reads and writes random keys until SIGTERM

Each connection has one request under way: four of five read, the fifth writes. FILE gets a line
`FIRST_NS LAST_NS COUNT` for the answers of each 10 ms in which there was one, and at the end the
line `done`, or `failed: REASON` if an answer is wrong or a connection breaks.
"""
import random
import selectors
import signal
import socket
import sys
import time

BIN_NS = 10_000_000
BATCH = 256
WRITES = 0.2


def value(key, generation, size):
    return (b"%d:%d:" % (key, generation)).ljust(size, b"~")


def set_command(key, content):
    name = b"key:%d" % key
    return b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (
        len(name),
        name,
        len(content),
        content,
    )


def get_command(key):
    name = b"key:%d" % key
    return b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(name), name)


def fill(address, keys, size):
    with socket.create_connection(address, timeout=60) as connection:
        answers = connection.makefile("rb")
        for first in range(0, keys, BATCH):
            batch = range(first, min(keys, first + BATCH))
            connection.sendall(b"".join(set_command(key, value(key, 0, size)) for key in batch))
            for _ in batch:
                if answers.readline() != b"+OK\r\n":
                    raise OSError("redis refused a key")


class Connection:
    """One request at a time, on keys that no other connection uses."""

    def __init__(self, address, keys, size):
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._keys, self._size = keys, size
        self._generations = {}
        self._received = bytearray()

    def ask(self):
        self._key = random.choice(self._keys)
        generation = self._generations.get(self._key, 0)
        if random.random() < WRITES:
            self._generations[self._key] = generation + 1
            self.socket.sendall(
                set_command(self._key, value(self._key, generation + 1, self._size))
            )
            self._expected = b"+OK\r\n"
        else:
            self.socket.sendall(get_command(self._key))
            content = value(self._key, generation, self._size)
            self._expected = b"$%d\r\n%s\r\n" % (self._size, content)

    def answered(self):
        """Receives the bytes that have arrived. Returns whether the answer is complete."""
        received = self.socket.recv(1 << 16)
        if not received:
            raise OSError("redis closed a connection")
        self._received += received
        if len(self._received) < len(self._expected):
            return False
        if self._received != self._expected:
            raise OSError(f"wrong answer for key {self._key}: {bytes(self._received[:60])}")
        self._received.clear()
        return True


def load(address, keys, size, count, file):
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    waiting = selectors.DefaultSelector()
    for number in range(count):
        connection = Connection(address, range(number, keys, count), size)
        connection.ask()
        waiting.register(connection.socket, selectors.EVENT_READ, connection)
    first = last = answers = 0
    while not stopped:
        for ready, _ in waiting.select(0.05):
            if not ready.data.answered():
                continue
            now = time.time_ns()
            if answers and now // BIN_NS != first // BIN_NS:
                file.write(f"{first} {last} {answers}\n")
                answers = 0
            if not answers:
                first = now
            last, answers = now, answers + 1
            ready.data.ask()
    file.write(f"{first} {last} {answers}\n")


def main():
    host, port, keys, size = sys.argv[2], *map(int, sys.argv[3:6])
    if sys.argv[1] == "fill":
        fill((host, port), keys, size)
        return
    with open(sys.argv[7], "w", buffering=1) as file:
        try:
            load((host, port), keys, size, int(sys.argv[6]), file)
            file.write("done\n")
        except OSError as error:
            file.write(f"failed: {error}\n")


if __name__ == "__main__":
    main()
