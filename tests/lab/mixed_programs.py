"""Programs of many kinds, some of which can move and some not, for rehearsals.

    program = MixedProgram(lab, node, random, number)    draws a kind, and starts it
    program.lines()                                      the nodes on which it wrote them

Each writes a line with the name of its node every 10 ms. A kind names what may go wrong with a move
of such a program; whether it does is for the rehearsal to say, so no kind has an expected outcome.
"""
from .node import wait_until

COMMON = """
import ctypes, ctypes.util, errno, mmap, os, select, signal, socket, struct, sys, threading, time
call = ctypes.CDLL(None, use_errno=True)
log, place = open(sys.argv[1], "a"), sys.argv[2]
def must(value):
    if value < 0: raise OSError(ctypes.get_errno(), "system call")
    return value
def open_file(name):
    return os.open(os.path.join(place, name), os.O_RDWR | os.O_CREAT, 0o600)
def pair(listener):
    client = socket.socket(listener.family)
    client.connect(listener.getsockname())
    return client, listener.accept()[0]
def listening(*address, family=socket.AF_INET):
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(*address)
    made.listen(4)
    return made
"""

WRITE = """
while True:
    print(open("/run/name-of-node").read(), file=log, flush=True)
    time.sleep(0.01)
"""

TCP = ["--tcp-established"]

# Name: what the program has, and the options for CRIU that it needs.
KINDS = {
    "plain": ("", []),
    "memory": ("kept = bytearray(os.urandom(int(sys.argv[3]) << 20))", []),
    "threads": ("[threading.Thread(target=time.sleep, args=(900,)).start() for _ in range(5)]", []),
    "children": ("for _ in range(4):\n    if os.fork() == 0: time.sleep(900)", []),
    "zombie": ("if os.fork() == 0: os._exit(0)", []),
    "pipe with data": ("kept = os.pipe(); os.write(kept[1], b'data')", []),
    "unix listener": (
        "path = os.path.join(place, 'socket-' + os.path.basename(sys.argv[1]))\n"
        "kept = listening(path, family=socket.AF_UNIX)",
        [],
    ),
    "unix pair": ("kept = socket.socketpair(); kept[0].send(b'data')", []),
    "unix backlog": (
        "kept = listening(b'\\0mixed', family=socket.AF_UNIX)\n"
        "other = socket.socket(socket.AF_UNIX); other.connect(b'\\0mixed'); other.send(b'data')",
        [],
    ),
    "tcp listener": ("kept = listening(('127.0.0.1', 7311))", []),
    "tcp connection": ("kept = pair(listening(('127.0.0.1', 7312)))", TCP),
    "tcp connection, no option": ("kept = pair(listening(('127.0.0.1', 7313)))", []),
    "tcp backlog": (
        "kept = listening(('127.0.0.1', 7314))\n"
        "other = socket.create_connection(('127.0.0.1', 7314)); other.send(b'data')",
        TCP,
    ),
    "udp": ("kept = socket.socket(type=socket.SOCK_DGRAM); kept.bind(('0.0.0.0', 7315))", []),
    "socket of an interface": (
        "kept = socket.socket(type=socket.SOCK_DGRAM)\n"
        "kept.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo')",
        [],
    ),
    "netlink": (
        "kept = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15); kept.bind((0, 1))\n"
        "threading.Thread(target=lambda: [kept.recv(9000) for _ in iter(int, 1)]).start()",
        [],
    ),
    "packet socket": ("kept = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)", []),
    "epoll": ("kept = select.epoll(); kept.register(os.pipe()[0])", []),
    "eventfd": ("kept = os.eventfd(7) if hasattr(os, 'eventfd') else 0", []),
    "pidfd of itself": ("kept = os.pidfd_open(os.getpid())", []),
    "pidfd of another": ("kept = os.pidfd_open(1)", []),
    "memfd": ("kept = os.memfd_create('kept'); os.write(kept, b'data')", []),
    "memfd_secret": ("kept = must(call.syscall(447, 0)); os.ftruncate(kept, 4096)", []),
    "io_uring": ("kept = must(call.syscall(425, 4, ctypes.create_string_buffer(120)))", []),
    "userfaultfd": ("kept = must(call.syscall(323, os.O_NONBLOCK))", []),
    "bpf map": (
        "kept = must(call.syscall(321, 0, struct.pack('<IIIII100x', 2, 4, 8, 16, 0), 120))",
        [],
    ),
    "inotify": ("kept = must(call.inotify_init()); must(call.inotify_add_watch(kept, b'/etc', 2))", []),
    "fanotify": ("kept = must(call.syscall(300, 0, 0))", []),
    "deleted file": ("kept = open_file('deleted'); os.write(kept, b'data'); os.unlink(place + '/deleted')", []),
    "file lock": ("import fcntl; kept = open_file('locked'); fcntl.flock(kept, fcntl.LOCK_EX)", []),
    "file lock with the option": (
        "import fcntl; kept = open_file('locked'); fcntl.flock(kept, fcntl.LOCK_EX)",
        ["--file-locks"],
    ),
    "shared lock with the option": (
        "import fcntl; kept = open_file('locked'); fcntl.flock(kept, fcntl.LOCK_SH)",
        ["--file-locks"],
    ),
    "file of this node": ("kept = open('/run/of-the-source')", []),
    "directory of this node": ("os.chdir('/run/directory-of-the-source')", []),
    "system V memory": (
        "kept = must(call.shmget(0, 4096, 0o1600)); call.shmat.restype = ctypes.c_void_p\n"
        "call.shmat(kept, None, 0)",
        [],
    ),
    "anonymous shared memory": ("kept = mmap.mmap(-1, 1 << 20); kept.write(b'data')", []),
    "locked memory": ("must(call.mlockall(3))", []),
    "timers": ("signal.signal(14, lambda *_: 0); signal.setitimer(signal.ITIMER_REAL, 60, 60)", []),
    "attributes": (
        "os.sched_setaffinity(0, {0}); os.nice(3); must(call.prctl(29, 12345))",
        [],
    ),
    "signal at the parent's end": ("must(call.prctl(1, 9))", []),
    "user namespace": ("must(call.unshare(0x10000000))", []),
    "mapped user namespace": (
        "must(call.unshare(0x10000000))\n"
        "for name, text in (('setgroups', 'deny'), ('uid_map', '0 0 1'), ('gid_map', '0 0 1')):\n"
        "    open('/proc/self/' + name, 'w').write(text)",
        [],
    ),
    "time namespace": (
        "must(call.unshare(0x80))\nif os.fork(): os.waitpid(-1, 0)",
        [],
    ),
    "mount namespace": ("must(call.unshare(0x20000))", []),
    "host name of its own": ("must(call.unshare(0x4000000))", []),
    "network of its own": ("must(call.unshare(0x40000000))", []),
    "child in a user namespace": (
        "if os.fork() == 0: must(call.unshare(0x10000000)); time.sleep(900)\n"
        "time.sleep(0.2)",
        [],
    ),
    "child in a mount namespace": (
        "if os.fork() == 0: must(call.unshare(0x20000)); time.sleep(900)\n"
        "time.sleep(0.2)",
        [],
    ),
    "child in a host name namespace": (
        "if os.fork() == 0: must(call.unshare(0x4000000)); time.sleep(900)\n"
        "time.sleep(0.2)",
        [],
    ),
    "child in a network namespace": (
        "if os.fork() == 0: must(call.unshare(0x40000000)); time.sleep(900)\n"
        "time.sleep(0.2)",
        [],
    ),
    "child in a IPC namespace": (
        "if os.fork() == 0: must(call.unshare(0x8000000)); time.sleep(900)\n"
        "time.sleep(0.2)",
        [],
    ),
    "child in a pid namespace": (
        "if os.fork() == 0:\n"
        "    must(call.unshare(0x20000000))\n"
        "    if os.fork() == 0: time.sleep(900)\n"
        "    time.sleep(900)\n"
        "time.sleep(0.2)",
        [],
    ),
    "child in a time namespace": (
        "if os.fork() == 0:\n"
        "    must(call.unshare(0x80))\n"
        "    if os.fork() == 0: time.sleep(900)\n"
        "    time.sleep(900)\n"
        "time.sleep(0.2)",
        [],
    ),
    "child in a control group namespace": (
        "if os.fork() == 0: must(call.unshare(0x2000000)); time.sleep(900)\n"
        "time.sleep(0.2)",
        [],
    ),
    "landlock of a thread": (
        "def confine():\n"
        "    rules = must(call.syscall(444, ctypes.byref(ctypes.c_uint64(1 << 8)), 8, 0))\n"
        "    must(call.prctl(38, 1, 0, 0, 0)); must(call.syscall(446, rules, 0)); os.close(rules)\n"
        "    time.sleep(900)\n"
        "threading.Thread(target=confine).start(); time.sleep(0.2)",
        [],
    ),
    "sealed mapping": (
        "kept = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "at = ctypes.addressof(ctypes.c_char.from_buffer(kept))\n"
        "must(call.syscall(462, ctypes.c_void_p(at), 4096, 0))",
        [],
    ),
    "segments of its own": ("must(call.syscall(154, 1, struct.pack('IIII', 0, 0, 0xfffff, 0x51), 16))", []),
    "memory of its parent": (
        "stack = ctypes.create_string_buffer(1 << 16)\n"
        "at = ctypes.c_void_p(ctypes.addressof(stack) + (1 << 16) - 64)\n"
        "wait = ctypes.cast(call.pause, ctypes.c_void_p)\n"
        "must(call.clone(wait, at, 0x100 | signal.SIGCHLD, None))",
        [],
    ),
    "message queue": ("kept = must(call.mq_open(b'/mixed', os.O_CREAT | os.O_RDWR, 0o600, None))", []),
    "name that is not UTF-8": ("kept = os.open(place.encode() + b'/caf\\xe9', os.O_RDWR | os.O_CREAT)", []),
    "lock of a process, with the option": (
        "import fcntl; kept = open_file('locked'); fcntl.lockf(kept, fcntl.LOCK_EX)",
        ["--file-locks"],
    ),
    "lease with the option": (
        "import fcntl; kept = os.open(place + '/leased', os.O_RDONLY | os.O_CREAT)\n"
        "fcntl.fcntl(kept, fcntl.F_SETLEASE, fcntl.F_RDLCK)",
        ["--file-locks"],
    ),
    "multicast": (
        "kept = socket.socket(type=socket.SOCK_DGRAM); kept.bind(('', 7316))\n"
        "kept.setsockopt(0, socket.IP_MULTICAST_IF, bytes(8) + struct.pack('i', 1))",
        [],
    ),
    "landlock": (
        "rules = must(call.syscall(444, ctypes.byref(ctypes.c_uint64(1 << 8)), 8, 0))\n"
        "must(call.prctl(38, 1, 0, 0, 0)); must(call.syscall(446, rules, 0)); os.close(rules)",
        [],
    ),
}


class MixedProgram:
    """Draws a kind with `random` and starts it on `node`."""

    def __init__(self, lab, node, random, number, kinds=None):
        self.kind = random.choice(sorted(kinds or KINDS))
        code, self.criu_options = KINDS[self.kind]
        self.size_mib = random.choice([1, 8, 32])
        self.mode = random.choice([[], [], [], ["--stop-and-copy"], ["--eager"]])
        self.node, self.log = node, lab.home / f"mixed-{number}"
        errors = lab.home / f"mixed-errors-{number}"
        self.pid = node.spawn(
            ["/usr/bin/python3", "-SEc", COMMON + code + WRITE, self.log, lab.home, self.size_mib],
            log=errors,
        )
        self.started = wait_until(
            lambda: self.lines() or not node.alive(self.pid), 20, f"{self.kind} to start"
        )
        self.started = bool(self.lines())
        self.why_not = errors.read_text()[-200:] if not self.started else ""

    def lines(self):
        return self.log.read_text().split() if self.log.exists() else []

    def goes_on_at(self, node, count=5):
        """Waits until it has written lines on this node."""
        before = len(self.lines())
        wait_until(
            lambda: self.lines()[before:].count(node.name) >= count,
            20,
            f"{self.kind} to go on at {node.name}",
        )
