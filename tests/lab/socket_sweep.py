"""A program that finds by trying which options sockets have, instead of by a list: for each kind of
socket, each level and each number it looks for a value that can be set and read again, keeps the
socket, and prints all of these values again and again.

    sweep = SocketSweep(node, directory)
    before = sweep.seen()                   # {"udp SOL_SOCKET 8": value in hexadecimal digits}
    after = sweep.seen_after(sweep.count())
"""
from .portrait import Portrait

# Left out: SO_INCOMING_CPU and TCP_QUICKACK, which the traffic sets; SO_BINDTODEVICE and its twin
# SO_BINDTOIFINDEX; TCP_REPAIR and its relatives, which a dump itself uses; UDP_CORK, with which
# CRIU dumps no socket.
PROGRAM = r'''
import json, resource, socket, sys, time
KINDS = {
    "tcp": (2, 1, 0), "tcp6": (10, 1, 0), "udp": (2, 2, 0), "udp6": (10, 2, 0),
    "raw": (2, 3, 1), "raw6": (10, 3, 58), "unix": (1, 1, 0), "unix datagram": (1, 2, 0),
    "packet": (17, 3, 0), "netlink": (16, 3, 0),
}
LEVELS = {"SOL_SOCKET": 1, "IP": 0, "IPV6": 41, "TCP": 6, "UDP": 17, "RAW": 255, "ICMPV6": 58,
          "PACKET": 263, "NETLINK": 270}
LEFT_OUT = {(1, 49), (1, 25), (1, 62), (6, 12), (6, 19), (6, 20), (6, 21), (6, 22), (6, 29), (17, 1)}
VALUES = (1, 0, 2, 3, 7, 30, 100, 1000, 5000, 70000)
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
kept = {}
def look(made, level, number): return made.getsockopt(level, number, 64)
def can_be_changed(made, level, number):
    try: usual = look(made, level, number)
    except OSError: return False
    for value in VALUES:
        try: made.setsockopt(level, number, value)
        except OSError: continue
        if look(made, level, number) != usual: return True
    return False
for kind, words in KINDS.items():
    made = socket.socket(*words)
    for name, level in LEVELS.items():
        for number in range(128):
            if (level, number) in LEFT_OUT or not can_be_changed(made, level, number): continue
            kept[f"{kind} {name} {number}"] = made, level, number
            made = socket.socket(*words)
    made.close()
while True:
    line = json.dumps({name: look(*option).hex() for name, option in kept.items()})
    with open(sys.argv[1], "a") as out: out.write(line + "\n")
    time.sleep(0.05)
'''


class SocketSweep(Portrait):
    source = PROGRAM
