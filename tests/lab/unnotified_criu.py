"""CRIU behind somebody who takes out of its request that it shall notify whoever asks: `unnotified_criu.py CRIU swrk NUMBER`.

So nothing holds it any more after a dump or a restore: how the kill matrix makes the protocol wrong.
"""
import os
import socket
import sys

MESSAGE_MAX_BYTES = 1 << 20
# criu_req.opts { images_dir_fd: -1, notify_scripts: false }: parts of a message that come again are merged, the last one counts (rpc.proto of CRIU).
NO_NOTIFICATIONS = b"\x12\x0d\x08" + b"\xff" * 9 + b"\x01\x60\x00"

criu, number = sys.argv[1], int(sys.argv[3])
asker = socket.socket(fileno=number)
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
child = os.fork()
if child == 0:
    if os.fork() == 0:  # no child of CRIU's, which waits for all that it has
        theirs.close()
        ours.send(asker.recv(MESSAGE_MAX_BYTES) + NO_NOTIFICATIONS)
        asker.send(ours.recv(MESSAGE_MAX_BYTES))
    os._exit(0)
os.waitpid(child, 0)
ours.close()
os.dup2(theirs.fileno(), number)
os.execv(criu, [criu, "swrk", str(number)])
