"""A disk that keeps what was flushed, and nothing else, when its machine loses power.

    with FlushedDisk(new_file_system(64), socket_path) as disk:     serves until close()
        ...                                       QEMU's options: disk_of_qemu(socket_path)

A file as a disk would not do: what the machine has written is in this computer's page cache, and
stays there when QEMU is killed. This one is a server of the NBD protocol (fixed newstyle handshake,
simple replies). Writes are kept in memory. A flush makes all earlier writes permanent. When the
connection breaks, the server drops what was not flushed.

Nothing here reaches a real disk: the content ends with the server.

Threads: one, which serves one connection at a time. So a machine that is booted again does not read
before the writes of the killed one are dropped.
"""
import socket
import struct
import subprocess
import tempfile
import threading
from pathlib import Path

# https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
HANDSHAKE, OPTION, OPTION_REPLY = 0x4E42444D41474943, 0x49484156454F5054, 0x0003E889045565A9
FIXED_NEWSTYLE, NO_ZEROES = 1, 2
EXPORT_NAME, ABORT, GO = 1, 2, 7
ACKNOWLEDGED, INFO, UNSUPPORTED = 1, 3, 0x80000001
INFO_EXPORT = 0
HAS_FLAGS, SEND_FLUSH = 1, 4
REQUEST, REPLY = 0x25609513, 0x67446698
READ, WRITE, DISCONNECT, FLUSH = 0, 1, 2, 3
EINVAL = 22


class FlushedDisk:
    def __init__(self, image, socket_path):
        """`image`: the first content, of which the length is the disk's."""
        self._kept, self._seen = bytearray(image), bytearray(image)
        self._unflushed = []  # (offset, bytes), oldest first
        self.dropped_bytes = 0  # by all losses of power so far
        # True: acknowledges flushes and forgets them, as a disk with a volatile cache that lies.
        self.forgets_flushes = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(socket_path))
        self._listener.listen(2)
        self._connection = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for end in (self._listener, self._connection):
            try:
                if end:
                    end.shutdown(socket.SHUT_RDWR)  # wakes the thread
            except OSError:
                pass  # not connected
        self._thread.join(timeout=10)
        self._listener.close()

    def _serve(self):
        while True:
            try:
                self._connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            with self._connection:
                try:
                    if self._negotiate():
                        while self._answer():
                            pass
                except (EOFError, OSError):
                    pass  # the machine was killed
            self._lose_power()

    def _lose_power(self):
        self.dropped_bytes += sum(len(data) for _, data in self._unflushed)
        for offset, data in self._unflushed:
            end = offset + len(data)
            self._seen[offset:end] = self._kept[offset:end]
        self._unflushed.clear()

    def _keep(self):
        if self.forgets_flushes:
            return
        for at, written in self._unflushed:
            self._kept[at : at + len(written)] = written
        self._unflushed.clear()

    # -- the protocol

    def _receive(self, form):
        values = struct.unpack(form, self._receive_bytes(struct.calcsize(form)))
        return values if len(values) > 1 else values[0]

    def _receive_bytes(self, count):
        data = bytearray(count)
        view, got = memoryview(data), 0
        while got < count:
            more = self._connection.recv_into(view[got:])
            if not more:
                raise EOFError
            got += more
        return data

    def _negotiate(self):
        """Returns whether the transmission begins."""
        flags = HAS_FLAGS | SEND_FLUSH  # without FUA: QEMU then flushes after such a write
        export = struct.pack(">QH", len(self._seen), flags)
        self._connection.sendall(struct.pack(">QQH", HANDSHAKE, OPTION, FIXED_NEWSTYLE | NO_ZEROES))
        self._receive(">I")  # the client's flags
        while True:
            magic, option, length = self._receive(">QII")
            self._receive_bytes(length)
            if magic != OPTION or option == ABORT:
                return False
            if option == EXPORT_NAME:
                self._connection.sendall(export)
                return True
            if option == GO:
                self._reply_to(option, INFO, struct.pack(">H", INFO_EXPORT) + export)
                self._reply_to(option, ACKNOWLEDGED)
                return True
            self._reply_to(option, UNSUPPORTED)

    def _reply_to(self, option, kind, data=b""):
        self._connection.sendall(struct.pack(">QIII", OPTION_REPLY, option, kind, len(data)) + data)

    def _answer(self):
        """Answers one request. Returns False at the end of the connection."""
        magic, _, kind, handle, offset, length = self._receive(">IHHQQI")
        if magic != REQUEST or kind == DISCONNECT:
            return False
        data = self._receive_bytes(length) if kind == WRITE else b""
        error, answer = 0, b""
        if kind in (READ, WRITE) and offset + length > len(self._seen):
            error = EINVAL
        elif kind == READ:
            answer = self._seen[offset : offset + length]
        elif kind == WRITE:
            self._seen[offset : offset + length] = data
            self._unflushed.append((offset, data))
        elif kind == FLUSH:
            self._keep()
        else:
            error = EINVAL
        self._connection.sendall(struct.pack(">IIQ", REPLY, error, handle) + answer)
        return True


def new_file_system(mib):
    """Returns the content of a disk with an empty ext4."""
    with tempfile.NamedTemporaryFile() as image:
        image.truncate(mib << 20)
        subprocess.run(["/usr/sbin/mkfs.ext4", "-q", "-F", image.name], check=True)
        return Path(image.name).read_bytes()


def disk_of_qemu(socket_path):
    """Returns the options of a QEMU whose machine has this disk. The machine sees a volatile write
    cache, and flushes it when a program calls fsync."""
    path = str(socket_path).replace(",", ",,")
    return [
        "-blockdev",
        f"driver=nbd,node-name=disk,server.type=unix,server.path={path}",
        "-device",
        "virtio-blk-pci,drive=disk,write-cache=on",
    ]
