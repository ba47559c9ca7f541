"""A client that writes to redis over one connection until SIGTERM, and logs the acknowledged
writes.

    redis_client.py HOST PORT FILE

The file gets one line `NUMBER NANOSECONDS` for each acknowledged SET, and a last line that begins
with "lost" if the connection breaks.
"""
import socket
import sys
import time


def main():
    host, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with open(path, "w", buffering=1) as acknowledged, socket.create_connection(
        (host, port), timeout=30
    ) as connection:
        answers = connection.makefile("rb")
        number = 0
        try:
            while True:
                number += 1
                key, value = f"key:{number}", f"value-{number * 2654435761 % (1 << 32):08x}"
                connection.sendall(
                    f"*3\r\n$3\r\nSET\r\n${len(key)}\r\n{key}\r\n${len(value)}\r\n{value}\r\n".encode()
                )
                answer = answers.readline()
                if answer != b"+OK\r\n":
                    raise OSError(f"redis answered {answer!r}")
                acknowledged.write(f"{number} {time.time_ns()}\n")
        except OSError as error:
            acknowledged.write(f"lost after {number}: {error}\n")


if __name__ == "__main__":
    main()
