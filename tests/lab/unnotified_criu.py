"""Runs `CRIU swrk NUMBER` and disables notifications in its request:
`unnotified_criu.py CRIU swrk NUMBER`.

No hook then holds CRIU after a dump or a restore. The tests of the kill matrix break the protocol
with it.
"""
import os
import socket
import sys

MESSAGE_MAX_BYTES = 1 << 20
# criu_req.opts { images_dir_fd: -1, notify_scripts: false }: protobuf merges repeated parts of a
# message, and the last value wins (CRIU's rpc.proto).
NO_NOTIFICATIONS = b"\x12\x0d\x08" + b"\xff" * 9 + b"\x01\x60\x00"

criu, number = sys.argv[1], int(sys.argv[3])
client = socket.socket(fileno=number)
relay_end, criu_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
child = os.fork()
if child == 0:
    if os.fork() == 0:  # not a child of CRIU, because CRIU waits for all its children
        criu_end.close()
        relay_end.send(client.recv(MESSAGE_MAX_BYTES) + NO_NOTIFICATIONS)
        client.send(relay_end.recv(MESSAGE_MAX_BYTES))
    os._exit(0)
os.waitpid(child, 0)
relay_end.close()
os.dup2(criu_end.fileno(), number)
os.execv(criu, [criu, "swrk", str(number)])
