"""A relay between a source and a target. It records what passes, can change pages, and can cut the
connections."""
import select
import socket
import struct
import threading

HELLO_BYTES = 12 + 60 + 4  # of a data connection: docs/protocol.md
RESPONSE = struct.Struct("<IIII")  # id, generation, length, crc
RECORDED_MAX = 1 << 20


class Memory:
    """Keeps the beginning of what is written to it."""

    def __init__(self, _):
        self.bytes = bytearray()

    def write(self, message):
        if len(self.bytes) < RECORDED_MAX:
            self.bytes += message

    def close(self):
        pass


class Relay:
    """Forwards connections to `address` to a port.

    with Relay(("127.0.0.1", target_port)) as relay:
        relay.hellos()      the first message of each client, at most a data hello
        relay.recorded()    the beginning of each connection, both directions
        relay.cut()         ends the open connections

    `record(name)`: makes the file in which one direction of a connection is recorded, instead of
    memory. `change(payload)`: may change the payload of a read response on its way from the source.
    """

    def __init__(self, to, listen=("127.0.0.1", 0), record=Memory, change=None):
        self._to, self._record, self._change = to, record, change
        self._server = socket.create_server(listen)
        self.address = "{}:{}".format(*self._server.getsockname())
        self._lock = threading.Lock()
        self._recordings, self._pairs, self._threads = [], [], []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def wait(self):
        """Waits until the program is killed."""
        self._acceptor.join()

    def _accept(self):
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._to, timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                number = len(self._pairs) + 1
                self._pairs.append((near, far))
                outwards = self._responses if self._change else received
                for messages, start, end, way in (
                    (outwards, near, far, "out"),
                    (received, far, near, "back"),
                ):
                    recording = self._record(f"{number}-{way}")
                    self._recordings.append((start is near, recording))
                    thread = threading.Thread(
                        target=self._forward, args=(messages, start, end, recording), daemon=True
                    )
                    self._threads.append(thread)
                    thread.start()

    @staticmethod
    def _forward(messages, start, end, recording):
        try:
            for message in messages(start):
                recording.write(message)
                end.sendall(message)
        except (OSError, EOFError):
            pass
        recording.close()
        shut_down(start, end)

    def _responses(self, start):
        """What a source sends over a data connection: its hello, then read responses."""
        select.select([start], [], [])
        if start.recv(1, socket.MSG_PEEK) != b"P":  # a plain-text hello; TLS begins otherwise
            yield from received(start)
            return
        yield read(start, HELLO_BYTES)
        while True:
            header = read(start, RESPONSE.size)
            yield header
            payload = read(start, RESPONSE.unpack(header)[2])
            self._change(payload)
            yield payload

    def hellos(self):
        with self._lock:
            return [
                bytes(made.bytes[:HELLO_BYTES]) for by_client, made in self._recordings if by_client
            ]

    def recorded(self):
        with self._lock:
            return b"".join(bytes(made.bytes) for _, made in self._recordings)

    def cut(self):
        with self._lock:
            for pair in self._pairs:
                shut_down(*pair)

    def close(self):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        self._acceptor.join(timeout=5)
        for thread in self._threads:
            thread.join(timeout=5)


def shut_down(*sockets):
    for one in sockets:
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def received(start):
    while message := start.recv(1 << 20):
        yield message


def read(start, count):
    got, view = 0, memoryview(content := bytearray(count))
    while got < count:
        more = start.recv_into(view[got:])
        if more == 0:
            raise EOFError
        got += more
    return content
