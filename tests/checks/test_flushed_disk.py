"""The disk of the power losses (vm/flushed_disk.py) keeps what was flushed, and nothing else."""
import socket
import struct

import pytest
from vm.flushed_disk import EXPORT_NAME, FLUSH, OPTION, READ, REQUEST, WRITE, FlushedDisk


class Machine:
    """A client of the disk, until it loses power."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(10)
        self._socket.connect(str(path))
        self._get(18)  # the greeting
        self._socket.sendall(struct.pack(">IQII", 0, OPTION, EXPORT_NAME, 0))
        self.size, _ = struct.unpack(">QH", self._get(10))

    def _get(self, count):
        data = self._socket.recv(count, socket.MSG_WAITALL)
        assert len(data) == count, "the disk closed the connection"
        return data

    def ask(self, kind, offset=0, length=0, data=b""):
        """Returns (error, the bytes read)."""
        request = struct.pack(">IHHQQI", REQUEST, 0, kind, 1, offset, length or len(data))
        self._socket.sendall(request + data)
        _, error, _ = struct.unpack(">IIQ", self._get(16))
        return error, self._get(length) if kind == READ and not error else b""

    def lose_power(self):
        self._socket.close()


@pytest.fixture
def disk(tmp_path):
    with FlushedDisk(b"." * 4096, tmp_path / "disk.sock") as disk:
        yield lambda: Machine(tmp_path / "disk.sock"), disk


def test_disk_loses_what_was_not_flushed(disk):
    connect, server = disk
    machine = connect()
    assert machine.size == 4096
    machine.ask(WRITE, 512, data=b"kept")
    machine.ask(FLUSH)
    machine.ask(WRITE, 514, data=b"lost")
    assert machine.ask(READ, 512, 8) == (0, b"kelost..")
    machine.lose_power()
    assert connect().ask(READ, 512, 8) == (0, b"kept....")
    assert server.dropped_bytes == 4


def test_disk_can_forget_what_was_flushed(disk):
    connect, server = disk
    machine = connect()
    machine.ask(WRITE, 512, data=b"kept")
    machine.ask(FLUSH)
    server.forgets_flushes = True
    machine.ask(WRITE, 514, data=b"lost")
    assert machine.ask(FLUSH)[0] == 0
    machine.lose_power()
    assert connect().ask(READ, 512, 8) == (0, b"kept....")


def test_disk_refuses_what_is_beyond_its_end(disk):
    connect, _ = disk
    machine = connect()
    assert machine.ask(READ, 4090, 8)[0] != 0
    assert machine.ask(WRITE, 4090, data=b"12345678")[0] != 0
    assert machine.ask(READ, 4088, 8) == (0, b"........")
