"""Talks with a server over one connection, and never opens another one.

    talker.py ADDRESS PORT OUTPUT STEPS

STEPS is JSON: [[bytes that it sends, bytes that end the answer], ...], in hexadecimal digits. The
last step is repeated. Each repetition writes a line; "lost" and the reason if the connection ends.
"""
import json
import socket
import sys
import time

PATIENCE_S = 120


def main():
    address, port, output, steps = sys.argv[1:]
    steps = [[bytes.fromhex(words) for words in step] for step in json.loads(steps)]
    count, received = 0, b""
    with open(output, "w", buffering=1) as lines:
        try:
            server = socket.create_connection((address, int(port)), timeout=PATIENCE_S)
            while True:
                sent, end = steps[min(count, len(steps) - 1)]
                server.sendall(sent)
                while end not in received:
                    more = server.recv(65536)
                    if not more:
                        raise OSError("the server has closed the connection")
                    received += more
                received = b""
                count += 1
                print(count, file=lines)
                time.sleep(0.02)
        except OSError as error:
            print(f"lost after {count}: {error}", file=lines)


main()
