"""Protocol between the host and the agent in a machine: one TCP connection per request, in frames
of type, length, payload.

    host -> guest   REQUEST  {"token": ..., "do": "run", "argv": [...], ...}, then for a command
                             STDIN (empty: end of input), SIGNAL, WINDOW
    guest -> host   PID, then STDOUT and STDERR as they are written, then EXIT; or ANSWER or FAILED

Closing the connection before EXIT kills the command and its process group.
"""
import json
import struct

AGENT_PORT = 1
CHUNK = 1 << 16
LENGTH_MAX = 1 << 24

REQUEST, STDIN, SIGNAL, WINDOW = b"R", b"I", b"S", b"W"
PID, STDOUT, STDERR, EXIT, ANSWER, FAILED = b"P", b"O", b"E", b"X", b"A", b"F"

_HEADER = struct.Struct("!cI")


def send(connection, kind, payload=b""):
    connection.sendall(_HEADER.pack(kind, len(payload)) + payload)


def send_json(connection, kind, value):
    send(connection, kind, json.dumps(value).encode())


def receive(connection):
    """Returns (type, payload), or None when the peer has closed the connection."""
    header = _receive_exactly(connection, _HEADER.size)
    if header is None:
        return None
    kind, length = _HEADER.unpack(header)
    if length > LENGTH_MAX:
        raise ValueError(f"frame of {length} bytes, at most {LENGTH_MAX} are allowed")
    payload = _receive_exactly(connection, length)
    return None if payload is None else (kind, payload)


def _receive_exactly(connection, length):
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(length - len(parts), 1 << 18))
        if not part:
            return None
        parts += part
    return bytes(parts)
