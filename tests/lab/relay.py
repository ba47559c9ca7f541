"""A relay between a source and a target. It records the bytes that pass, and can cut the
connections.
"""
import socket
import threading


class Relay:
    """Forwards connections to `address` to a port of this machine.

    with Relay(target_port) as relay:
        relay.hellos()      the first message of each client, at most a data hello
        relay.recorded()    all bytes, both directions
        relay.cut()         ends the open connections
    """

    def __init__(self, port):
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._lock = threading.Lock()
        self._passed, self._pairs, self._threads = [], [], []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _accept(self):
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._port), timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._pairs.append((near, far))
                for start, end in ((near, far), (far, near)):
                    passed = bytearray()
                    self._passed.append((start is near, passed))
                    thread = threading.Thread(
                        target=self._forward, args=(start, end, passed), daemon=True
                    )
                    self._threads.append(thread)
                    thread.start()

    @staticmethod
    def _forward(start, end, passed):
        try:
            while message := start.recv(1 << 16):
                if len(passed) < 1 << 20:
                    passed += message
                end.sendall(message)
        except OSError:
            pass
        for side in (start, end):
            try:
                side.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def hellos(self):
        hello_bytes = 12 + 60 + 4  # length of a hello, see docs/protocol.md
        with self._lock:
            return [bytes(passed[:hello_bytes]) for by_client, passed in self._passed if by_client]

    def recorded(self):
        with self._lock:
            return b"".join(bytes(passed) for _, passed in self._passed)

    def cut(self):
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for side in pair:
                try:
                    side.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        self._acceptor.join(timeout=5)
        for thread in self._threads:
            thread.join(timeout=5)
