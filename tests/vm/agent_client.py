"""The host's side of the agent (protocol.py): runs commands and small requests in a machine."""
import json
import socket
import subprocess
import threading
import time
from pathlib import Path

from lab.node import LabError
from lab.pace import patience

from . import protocol
from .protocol import ANSWER, EXIT, FAILED, PID, REQUEST, STDERR, STDIN, STDOUT


class NotRunning(LabError):
    """The machine does not answer."""


def _os_error(what, failure):
    """The agent's error, with the type it would have had here: FileNotFoundError,
    ProcessLookupError, ..."""
    return OSError(failure["errno"], f"{what}: {failure['message']}")


class Agent:
    """The agent of the machine in `directory`. agent.json there holds the port and the token; every
    boot writes it anew."""

    def __init__(self, directory):
        self._file = Path(directory) / "agent.json"
        self.name = Path(directory).name

    def connect(self, request, timeout=10):
        """Connects, sends the request and returns the connection."""
        try:
            agent = json.loads(self._file.read_text())
            connection = socket.create_connection(("127.0.0.1", agent["port"]), timeout=timeout)
        except (OSError, ValueError) as error:
            raise NotRunning(f"machine {self.name} is not running: {error}") from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol.send_json(connection, REQUEST, {"token": agent["token"], **request})
        return connection

    def ask(self, what, timeout=10, **words):
        """Returns the agent's answer to one of `guest_agent.REQUESTS`."""
        try:
            with self.connect({"do": what, **words}, timeout) as connection:
                frame = protocol.receive(connection)
        except OSError as error:
            raise NotRunning(f"machine {self.name} does not answer '{what}': {error}") from None
        if frame is None:
            raise NotRunning(f"machine {self.name} closed the connection at '{what}'")
        kind, payload = frame
        if kind == FAILED:
            raise _os_error(f"on {self.name}: {what} {words}", json.loads(payload))
        assert kind == ANSWER, kind
        return json.loads(payload)

    def set_clock(self):
        """Sets the machine's CLOCK_REALTIME to the host's; returns the largest possible difference
        in seconds."""
        best = None
        for _ in range(5):
            began = time.time_ns()
            self.ask("set_clock", host_ns=began)
            best = min(best or 1e9, (time.time_ns() - began) / 1e9)
        return best

    def run(self, argv, timeout, stdin=None, env=None, cwd=None):
        """Runs a command to its end. Kills it in the machine and raises subprocess.TimeoutExpired
        after patience(timeout)."""
        timeout = patience(timeout)
        deadline = time.monotonic() + timeout
        out = {STDOUT: [], STDERR: []}

        def late():
            return subprocess.TimeoutExpired(
                argv, timeout, b"".join(out[STDOUT]), b"".join(out[STDERR])
            )

        with self.connect(
            {"do": "run", "argv": argv, "stdin": stdin is not None, "env": env or {}, "cwd": cwd}
        ) as connection:
            if stdin is not None:
                threading.Thread(target=_feed, args=(connection, stdin), daemon=True).start()
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise late()
                connection.settimeout(left)
                try:
                    frame = protocol.receive(connection)
                except TimeoutError:
                    raise late() from None
                except OSError as error:
                    raise NotRunning(
                        f"machine {self.name} ended while '{' '.join(argv)}' ran: {error}"
                    ) from None
                if frame is None:
                    raise NotRunning(f"machine {self.name} ended while '{' '.join(argv)}' ran")
                kind, payload = frame
                if kind == EXIT:
                    return subprocess.CompletedProcess(
                        argv, json.loads(payload), b"".join(out[STDOUT]), b"".join(out[STDERR])
                    )
                if kind == FAILED:
                    raise _os_error(
                        f"on {self.name}: cannot start '{' '.join(argv)}'",
                        json.loads(payload),
                    )
                if kind != PID:
                    out[kind].append(payload)


def _feed(connection, data):
    try:
        for at in range(0, len(data), protocol.CHUNK):
            protocol.send(connection, STDIN, data[at : at + protocol.CHUNK])
        protocol.send(connection, STDIN)
    except OSError:
        pass  # the thread that reads the connection reports the error
