"""send-memory: a reader at the target gets the bytes that it waits for before the rest."""
import hashlib
import json
import struct

import pytest

from lab.node import wait_until
from lab.pace import patience, slowness
from lab.ppmr import find_ppmr
from lab.programs import mix

MIB = 1 << 20
PAGE = 4096
PAGES = 200 * MIB // PAGE
ZERO_PAGES = range(100 * MIB // PAGE, 140 * MIB // PAGE)
NAME = "frozen.memory"

# Fills memory with known pages, prints the address of the memory, and waits until it is stopped.
HOLDER = r"""
import ctypes, mmap, os, signal, struct, sys
from lab.programs import mix
pages, zeros_begin, zeros_end = map(int, sys.argv[1:4])
memory = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(pages):
    if not zeros_begin <= page < zeros_end:
        memory[page * 4096:(page + 1) * 4096] = struct.pack("<Q", mix(page)) * 512
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""

# Makes the memory file and sends the memory of the index to it, as ppmr migrate does.
SENDER = r"""
import json, os, socket, subprocess, sys, time
ppmr, mountpoint, name, index, memory_bytes = sys.argv[1:]
for line in open("/proc/self/mountinfo"):
    left, right = line.split(" - ", 1)
    if left.split()[4] == mountpoint:
        control = right.split()[1]
file = os.open(mountpoint + "/" + name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
theirs = [end.fileno() for _, end in pairs]
words = [ppmr, "page-reader", "--index=" + index, *(f"--fd={number}" for number in theirs)]
reader = subprocess.Popen(words, pass_fds=theirs)
with socket.socket(socket.AF_UNIX) as daemon:
    daemon.connect(control)
    began = time.monotonic()
    request = {"op": "send-memory", "checkpoint": name, "memory_bytes": int(memory_bytes)}
    line = json.dumps(request).encode() + b"\n"
    socket.send_fds(daemon, [line], [end.fileno() for end, _ in pairs])
    for ends in pairs:
        for end in ends:
            end.close()
    answer = json.loads(daemon.makefile().readline())
os.close(file)
assert reader.wait(10) == 0  # the reader ends when the daemon no longer needs it
print(json.dumps({**answer, "seconds": time.monotonic() - began}))
"""

# Reads at each offset:length, and prints the seconds and the digest of each.
READER = r"""
import hashlib, json, os, sys, time
file = os.open(sys.argv[1], os.O_RDONLY)
for step in sys.argv[2:]:
    offset, length = map(int, step.split(":"))
    began = time.monotonic()
    bytes = os.pread(file, length, offset)
    seconds = time.monotonic() - began
    print(json.dumps([seconds, len(bytes), hashlib.sha256(bytes).hexdigest()]), flush=True)
"""


def expected(offset, length):
    first, end = offset // PAGE, -(-(offset + length) // PAGE)
    pages = b"".join(
        bytes(PAGE) if page in ZERO_PAGES else struct.pack("<Q", mix(page)) * (PAGE // 8)
        for page in range(first, end)
    )
    return pages[offset - first * PAGE :][:length]


def varint(number):
    digits = bytearray()
    while number >= 128:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes((*digits, number))


def field(number, value):
    """A field of protobuf: a number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def page_index(pid, address, pages):
    """Returns an index of one process with one range (processes/memory/page_index.proto)."""
    lists = (varint(address // PAGE), varint(pages), varint(0))
    task = field(1, pid) + field(2, pid)
    task += b"".join(field(number, packed) for number, packed in enumerate(lists, 3))
    return field(1, pages) + field(2, task)


@pytest.fixture
def frozen(nodes, lab):
    """Returns the path of the page index of a stopped process on the source."""
    log = lab.home / "holder.log"
    lab_folder = str(__file__).rsplit("/", 2)[0]
    pid = nodes.source.spawn(
        ["env", f"PYTHONPATH={lab_folder}", "/usr/bin/python3", "-c", HOLDER]
        + [PAGES, ZERO_PAGES.start, ZERO_PAGES.stop],
        log=log,
    )
    wait_until(
        lambda: "\nState:\tT" in nodes.source.read_text(f"/proc/{pid}/status"),
        60,
        f"process {pid} to stop",
    )
    index = lab.home / "memory-index"
    index.write_bytes(page_index(pid, int(log.read_text()), PAGES))
    return index


def start(node, script, *words):
    return node.popen(
        ["/usr/bin/python3", "-SEc", script, *map(str, words)], stdout=-1, stderr=-2, text=True
    )


def test_reader_gets_the_bytes_it_waits_for_ahead_of_the_rest(nodes, mounts, frozen):
    nodes.link.limit("100mbit")
    size = PAGES * PAGE
    sender = start(nodes.source, SENDER, find_ppmr(), mounts.out, NAME, frozen, size)
    memory = mounts.in_ / NAME
    wait_until(lambda: nodes.target.exists(memory), 10, "the memory file")
    # Waits until the first pass has filled the pool of the source: 64 MiB.
    wait_until(lambda: mounts.source.status()["pool"]["free"] <= 1, 10, "a full pool")
    faults = [(180 * MIB + 5 * PAGE, PAGE), (199 * MIB, MIB), (150 * MIB, PAGE), (170 * MIB, PAGE)]
    zeros = [(130 * MIB, MIB)]
    steps = [f"{offset}:{length}" for offset, length in faults + zeros]
    reader = start(nodes.target, READER, memory, *steps)
    output, _ = reader.communicate(timeout=patience(60))
    assert sender.poll() is None, "the transfer ended before the reads: they prove nothing"
    answers = [json.loads(line) for line in output.splitlines()]
    assert len(answers) == len(steps), output
    for (offset, length), (seconds, count, digest) in zip(faults + zeros, answers):
        print(f"\n{length >> 10} KiB at {offset / MIB:.0f} MiB after {seconds * 1000:.0f} ms")
        assert count == length
        assert digest == hashlib.sha256(expected(offset, length)).hexdigest()
    assert max(seconds for seconds, _, _ in answers) < slowness()
    sent = json.loads(sender.communicate(timeout=patience(60))[0])
    assert sent["ok"], sent
    print(f"the transfer took {sent['seconds']:.1f} s")
    assert sent["seconds"] > 8, "the link is not slow: the test proves nothing"
    # The whole file is correct, and the digests of both sides agree.
    mounts.commit(NAME)
    whole = start(nodes.target, READER, memory, *(f"{i * MIB}:{MIB}" for i in range(200)))
    lines = whole.communicate(timeout=patience(60))[0].splitlines()
    assert len(lines) == 200
    for number, line in enumerate(lines):
        _, count, digest = json.loads(line)
        assert digest == hashlib.sha256(expected(number * MIB, MIB)).hexdigest(), number
