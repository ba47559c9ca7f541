"""A TCP conversation that shows whether a peer was reset, lost bytes or stalled.

conversation_over_tcp.py ask ADDRESS PORT       sends 1, 2, 3 ... and waits for each answer
conversation_over_tcp.py answer ADDRESS PORT    checks them; after each prints the number and the
                                                longest silence so far, in seconds
"""
import socket
import sys
import time


def ask(address):
    with socket.create_connection(address) as peer:
        number = 0
        while True:
            number += 1
            peer.sendall(b"%d\n" % number)
            if peer.recv(2) != b".\n":
                sys.exit(f"no answer to {number}")
            time.sleep(0.005)


def answer(address):
    listener = socket.create_server(address)
    peer, _ = listener.accept()
    expected, longest, last = 1, 0.0, time.monotonic()
    with peer.makefile("rwb", buffering=0) as stream:
        for line in stream:
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            if int(line) != expected:
                sys.exit(f"{line} instead of {expected}")
            print(expected, round(longest, 3), flush=True)
            expected += 1
            stream.write(b".\n")
    print("closed", flush=True)


role, host, port = sys.argv[1:]
{"ask": ask, "answer": answer}[role]((host, int(port)))
