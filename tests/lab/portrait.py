"""A program that sets one of each kind of state that the kernel keeps for a process, and prints
again and again what it sees of it. docs/faithful.md lists which program carries which kind.

    portrait = Portrait(node, directory)
    before = portrait.seen()                # {row: value}, of what this node can have
    count = portrait.count()                # it is frozen, or has moved
    after = portrait.seen_after(count)
"""
import json
from typing import NamedTuple

from .node import wait_until


UNSEEN = "docs/faithful.md says it"


class Row(NamedTuple):
    name: str
    set: str  # what the program does first; an exception: this node has no such thing
    get: str  # an expression that is the same before and after a faithful move
    # If a move loses this state: words of the finding that names the loss, or UNSEEN. Empty: a move
    # keeps it.
    lost: str = ""


def _socket(name, family, kind, option, value):
    """A row for an option of a socket. `option`: an expression for level and name."""
    var = "s_" + "".join(char if char.isalnum() else "_" for char in name)
    made = f"{var} = socket.socket(socket.{family}, socket.{kind})"
    return Row(
        name,
        f"{made}; {var}.setsockopt({option}, {value}); {var}.getsockopt({option})",
        f"{var}.getsockopt({option})",
    )


def _tcp(name, number, value):
    return _socket(name, "AF_INET", "SOCK_STREAM", f"6, {number}", value)


def _udp(name, number, value):
    return _socket(name, "AF_INET", "SOCK_DGRAM", f"0, {number}", value)


def _any(name, number, value):
    return _socket(name, "AF_INET", "SOCK_DGRAM", f"1, {number}", value)


def _thread(name, set_words, get_words):
    """A row for a thread that is not the first one. `get_words` has {} for its id."""
    var = "t_" + "".join(char if char.isalnum() else "_" for char in name)
    got = get_words.replace("{}", var)
    return Row(f"{name} of another thread", f"{var} = in_thread(lambda: {set_words})", got)


def _prctl(name, set_words, get_word):
    return Row(
        name,
        f"must(libc.prctl({set_words}, 0, 0, 0))",
        f"libc.prctl({get_word}, 0, 0, 0, 0)",
    )


# The rows are in the order of docs/faithful.md.
ROWS = (
    Row("nice value", "os.setpriority(0, 0, 3)", "os.getpriority(0, 0)"),
    Row("limits", "resource.setrlimit(7, (700, 800))", "resource.getrlimit(7)"),
    Row("signal mask", "signal.pthread_sigmask(0, [40])", "len(signal.pthread_sigmask(0, []))"),
    Row("pending signals", "os.kill(os.getpid(), 40)", "sorted(map(int, signal.sigpending()))"),
    Row("ignored signals", "signal.signal(16, signal.SIG_IGN)", "signal.getsignal(16) == 1"),
    Row(
        "interval timer",
        "signal.setitimer(1, 5000, 7000)",
        "4000 < signal.getitimer(1)[0] < 5000 and signal.getitimer(1)[1]",
    ),
    Row("oom_score_adj", "put('oom_score_adj', '500')", "look('oom_score_adj')"),
    Row("umask", "os.umask(0o37)", "(lambda m: (os.umask(m), m)[1])(os.umask(0))"),
    Row("name of the program", "put('comm', 'odd (name) R 1')", "look('comm')"),
    Row("subreaper", "must(libc.prctl(36, 1, 0, 0, 0))", "flag(37)"),
    _prctl("transparent huge pages", "41, 1", "42"),
    _prctl("no_new_privs", "38, 1", "39"),
    _prctl("securebits", "28, 0x2f", "27"),
    Row("CPU affinity", "os.sched_setaffinity(0, {0})", "sorted(os.sched_getaffinity(0))"),
    Row("I/O priority", "must(libc.syscall(251, 1, 0, 2 << 13 | 7))", "libc.syscall(252, 1, 0)"),
    _prctl("timer slack", "29, 12345", "30"),
    Row(
        "scheduling policy",
        "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
        "os.sched_getscheduler(0)",
    ),
    Row(
        "reset of the policy on fork",
        "os.sched_setscheduler(0, os.SCHED_BATCH | 0x40000000, os.sched_param(0))",
        "os.sched_getscheduler(0) & 0x40000000",
    ),
    Row("core-dump filter", "put('coredump_filter', '0x7f')", "look('coredump_filter')"),
    Row("nice value of the session", "put('autogroup', '5')", "look('autogroup').split()[-1]"),
    # The signal is one that is ignored: CRIU alone restores this setting, and another signal would
    # kill the program at CRIU's end.
    Row("signal at the parent's end", "must(libc.prctl(1, 17, 0, 0, 0))", "flag(2)"),
    Row("personality", "must(libc.personality(0x40000))", "hex(libc.personality(0xffffffff))"),
    _prctl("merging of equal pages (KSM)", "67, 1", "68"),
    _prctl("I/O flusher", "57, 1", "58"),
    _prctl("signal for memory that has failed", "33, 1, 1", "34"),
    Row(
        "memory policy (NUMA)",
        "must(libc.syscall(238, 1, ctypes.byref(ctypes.c_ulong(1)), 64))",
        "look('numa_maps').split()[1]",
    ),
    Row("audit ID of the login", "put('loginuid', '1234')", "look('loginuid')", UNSEEN),
    Row("locked future memory", "must(libc.mlockall(2))", "locked_future()", "MCL_FUTURE"),
    Row(
        "memory policy of a mapping (mbind)",
        "bound = page(); must(libc.syscall(237, bound, 4096, 3, ctypes.byref(ctypes.c_ulong(1)), 64, 0))",
        "policy_at(bound)",
        "of single mappings",
    ),
    Row("capability bounding set", "must(libc.prctl(24, 25, 0, 0, 0))", "status('CapBnd')"),
    Row("supplementary groups", "os.setgroups([7, 8])", "os.getgroups()"),
    Row("command line", "pass", "look('cmdline')"),
    Row("path of the program", "pass", "os.readlink('/proc/self/exe')"),
    *(
        Row(f"advice on a mapping: {name}", f"advised_{number} = advised({number})", f"flags_at(advised_{number})")
        for name, number in (
            ("MADV_RANDOM", 1),
            ("MADV_SEQUENTIAL", 2),
            ("MADV_DONTFORK", 10),
            ("MADV_MERGEABLE", 12),
            ("MADV_NOHUGEPAGE", 15),
            ("MADV_DONTDUMP", 16),
            ("MADV_WIPEONFORK", 18),
        )
    ),
    _thread("CPU affinity", "os.sched_setaffinity(0, {1})", "sorted(os.sched_getaffinity({}))"),
    _thread("I/O priority", "libc.syscall(251, 1, 0, 2 << 13 | 6)", "libc.syscall(252, 1, {})"),
    _thread("timer slack", "libc.prctl(29, 54321, 0, 0, 0)", "of_thread({}, 'timerslack_ns')"),
    _thread("name", "libc.prctl(15, b'other', 0, 0, 0)", "of_thread({}, 'comm')"),
    _thread("signal mask", "signal.pthread_sigmask(0, [41])", "status('SigBlk', {})"),
    _thread("nice value", "os.setpriority(0, 0, 7)", "os.getpriority(0, {})"),
    _thread(
        "scheduling policy",
        "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
        "os.sched_getscheduler({})",
    ),
    Row(
        "keyring of the process",
        "must(libc.syscall(250, 0, -2, 1) > 0 and 0)",
        "libc.syscall(250, 0, -2, 0) > 0",
        "has a keyring of its own",
    ),
    Row("CPU time consumed", "burn(0.3)", "os.times().user >= 0.3", UNSEEN),
    Row("a held flock", "lock_one()", "is_locked()"),
    Row(
        "flags of a descriptor",
        "flagged = os.open(sys.argv[1] + '.flags', os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK)",
        "oct(fcntl.fcntl(flagged, 3))",
    ),
    Row(
        "owner and signal of a descriptor",
        "owned = os.pipe(); fcntl.fcntl(owned[0], 8, os.getpid()); fcntl.fcntl(owned[0], 10, 42)",
        "fcntl.fcntl(owned[0], 9) == os.getpid() and fcntl.fcntl(owned[0], 11)",
    ),
    Row(
        "size of a pipe",
        "sized = os.pipe(); fcntl.fcntl(sized[1], 1031, 1 << 18)",
        "fcntl.fcntl(sized[1], 1032)",
    ),
    Row(
        "seals of a memfd",
        "sealed = os.memfd_create('sealed', 2); fcntl.fcntl(sealed, 1033, 2)",
        "fcntl.fcntl(sealed, 1034)",
    ),
    Row(
        "credentials of a UNIX socket's peer",
        "peers = socket.socketpair()",
        "list(struct.unpack('3i', peers[0].getsockopt(1, 17, 12)))",
    ),
    _any("SO_RCVBUF", 8, 65536),
    _any("SO_KEEPALIVE", 9, 1),
    _any("SO_PRIORITY", 12, 3),
    _any("SO_MARK", 36, 5),
    _any("SO_TIMESTAMP", 29, 1),
    _any("SO_TIMESTAMPNS", 35, 1),
    _any("SO_RXQ_OVFL", 40, 1),
    _any("SO_BUSY_POLL", 46, 50),
    _any("SO_MAX_PACING_RATE", 47, 1000000),
    _socket("SO_ZEROCOPY", "AF_INET", "SOCK_STREAM", "1, 60", 1),
    _udp("IP_TOS", 1, 16),
    _udp("IP_TTL", 2, 9),
    _udp("IP_RECVTTL", 12, 1),
    _udp("IP_RECVTOS", 13, 1),
    _udp("IP_RECVERR", 11, 1),
    _udp("IP_PKTINFO", 8, 1),
    _udp("IP_MTU_DISCOVER", 10, 2),
    _udp("IP_MINTTL", 21, 4),
    _udp("IP_MULTICAST_TTL", 33, 7),
    _udp("IP_MULTICAST_LOOP", 34, 0),
    _udp("IP_MULTICAST_ALL", 49, 0),
    Row(
        "IP_MULTICAST_IF, by address",
        "outgoing = socket.socket(type=socket.SOCK_DGRAM)\n"
        "    outgoing.setsockopt(0, 32, socket.inet_aton('127.0.0.1'))",
        "socket.inet_ntoa(outgoing.getsockopt(0, 32, 4))",
    ),
    _socket("IPV6_V6ONLY", "AF_INET6", "SOCK_DGRAM", "41, 26", 1),
    _socket("IPV6_UNICAST_HOPS", "AF_INET6", "SOCK_DGRAM", "41, 16", 9),
    _socket("IPV6_RECVPKTINFO", "AF_INET6", "SOCK_DGRAM", "41, 49", 1),
    _socket("IPV6_TCLASS", "AF_INET6", "SOCK_DGRAM", "41, 67", 16),
    _socket("UDP_GRO", "AF_INET", "SOCK_DGRAM", "17, 104", 1),
    _tcp("TCP_NODELAY", 1, 1),
    _tcp("TCP_USER_TIMEOUT", 18, 30000),
    _tcp("TCP_SYNCNT", 7, 3),
    _tcp("TCP_LINGER2", 8, 20),
    _tcp("TCP_DEFER_ACCEPT", 9, 7),
    _tcp("TCP_NOTSENT_LOWAT", 25, 4096),
    _tcp("TCP_MAXSEG", 2, 1000),
    Row(
        "TCP_CONGESTION",
        "cc = socket.socket(); cc.setsockopt(6, 13, b'reno')",
        "cc.getsockopt(6, 13, 16).strip(bytes(1)).decode()",
    ),
)

_HEAD = '''
import ctypes, fcntl, json, mmap, os, queue, resource, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def must(result):
    if result: raise OSError(ctypes.get_errno())
def put(name, text):
    with open("/proc/self/" + name, "w") as file: file.write(text)
def look(name): return open("/proc/self/" + name).readline().strip()
def flag(word):
    value = ctypes.c_int()
    must(libc.prctl(word, ctypes.byref(value), 0, 0, 0))
    return value.value
def burn(seconds):
    while os.times().user < seconds: sum(range(10000))
def lock_one():
    global locked
    locked = open(sys.argv[1] + ".lock", "w")
    fcntl.flock(locked, fcntl.LOCK_EX)
def is_locked():
    with open(sys.argv[1] + ".lock") as other:
        try: fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError: return True
        return False
pages = []
def page():
    """The address of a new page, for calls and for lines of /proc."""
    pages.append(mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    libc.mprotect(ctypes.c_void_p(address_of(pages[-1])), 4096, 0)  # a mapping of its own
    return ctypes.c_void_p(address_of(pages[-1]))
def address_of(pages): return ctypes.addressof(ctypes.c_char.from_buffer(pages))
def advised(advice):
    at = page()
    must(libc.madvise(at, 4096, advice))
    return at
def lines_at(at, name):
    lines = open("/proc/self/" + name).read().splitlines()
    start = format(at.value, "x")
    first = next(i for i, line in enumerate(lines) if line.startswith((start + "-", start + " ")))
    return lines[first:]
def flags_at(at): return next(line for line in lines_at(at, "smaps") if line.startswith("VmFlags"))
def policy_at(at): return lines_at(at, "numa_maps")[0].split()[1]
def status(name, thread="self"):
    return next(l for l in open(f"/proc/{thread}/status") if l.startswith(name + ":")).strip()
def of_thread(thread, name): return open(f"/proc/{thread}/{name}").read().strip()
def in_thread(set):
    """Returns the id of a new thread that has called set() and then does nothing."""
    told = queue.Queue()
    def run():
        try: told.put((set(), threading.get_native_id()))
        except Exception as error: told.put((error, 0))
        threading.Event().wait()
    threading.Thread(target=run, daemon=True).start()
    result, thread = told.get()
    if not thread: raise result
    return thread
def locked_future():
    before = [line for line in open("/proc/self/status") if line.startswith("VmLck")]
    with mmap.mmap(-1, 1 << 20) as pages:
        pages[0] = 1
        after = [line for line in open("/proc/self/status") if line.startswith("VmLck")]
    return before != after
'''


def program(rows=ROWS):
    """Returns the source of the program. Its argument is the file that it writes."""
    text = _HEAD + "shown = {}\n"
    for row in rows:
        text += f"try:\n    {row.set}\n    shown[{row.name!r}] = lambda: {row.get}\n"
        text += f"    shown[{row.name!r}]()\n"
        text += f"except Exception as error: shown.pop({row.name!r}, None)\n"
    return (
        text
        + '''
def seen(look):
    try: return look()
    except Exception as error: return f"{type(error).__name__}: {error}"
while True:
    line = json.dumps({name: seen(look) for name, look in shown.items()})
    with open(sys.argv[1], "a") as out: out.write(line + "\\n")
    time.sleep(0.05)
'''
    )


def changed(before, after):
    """Returns {row: (value before, value after)} of what differs."""
    return {
        name: (value, after.get(name)) for name, value in before.items() if after.get(name) != value
    }


class Portrait:
    source = None  # of another program that prints such lines

    def __init__(self, node, directory, rows=ROWS):
        self._log = directory / "portrait.log"
        self._log.unlink(missing_ok=True)
        source = directory / "portrait.py"
        source.write_text(self.source or program(rows))
        self.pid = self._start(node, ["/usr/bin/python3", "-S", source, self._log])
        wait_until(lambda: len(self._lines()) > 2, 20, "the portrait")

    def _start(self, node, words):
        return node.spawn(words)

    def _lines(self):
        return self._log.read_text().splitlines() if self._log.exists() else []

    def seen(self):
        """Returns the newest complete look."""
        return json.loads(self._lines()[-2])

    def count(self):
        return len(self._lines())

    def seen_after(self, count):
        """Returns a look of which no part is older than the `count` lines."""
        wait_until(lambda: self.count() > count + 3, 20, "the portrait to go on")
        return self.seen()
