"""Bandwidth of the link between the machines, measured with the usual tools: the ceilings that ppmr
is compared with."""
import re
import subprocess

from lab.node import LabError, wait_until
from lab.pace import patience

PERFTEST_PORT = 18515
IPERF_PORT = 5201
# The timeout of a queue pair, 4.096 us x 2^20 = 4 s. Emulated machines are slower than perftest's
# default of 67 ms allows, and every timeout retransmits the whole window.
QP_TIMEOUT = 20


def read_bandwidth(lab, size, queue_pairs, seconds=3, depth=None):
    """Returns the MB/s at which `ib_read_bw` on a reads from b, with messages of `size` bytes."""
    command = [
        "ib_read_bw",
        "-d",
        "rxe0",
        "-x",
        "1",
        "-F",
        "-s",
        size,
        "-D",
        seconds,
        "-q",
        queue_pairs,
        "-u",
        QP_TIMEOUT,
        *(["-t", depth] if depth else []),
    ]
    server = lab.b.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        lab.b.await_listener(PERFTEST_PORT, server)
        shown = lab.a.run([*command, lab.b.address], timeout=60 + seconds).stdout
        server.wait(timeout=patience(30))
    finally:
        server.kill()
        server.wait()
    row = re.search(rf"^\s*{size}\s+\d+\s+\S+\s+(\S+)", shown, re.MULTILINE)
    if not row:
        raise LabError(f"no bandwidth in the output of ib_read_bw: {shown[-1000:]}")
    return float(row[1])


def tcp_bandwidth(lab, seconds=3):
    """Returns the MB/s that iperf3 sends from b to a over TCP."""
    server = lab.b.popen(
        ["iperf3", "-s", "-1", "-p", IPERF_PORT],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        lab.b.await_listener(IPERF_PORT, server)
        shown = lab.a.run(
            ["iperf3", "-c", lab.b.address, "-p", IPERF_PORT, "-t", seconds, "-R", "-f", "M"],
            timeout=60 + seconds,
        ).stdout
        server.wait(timeout=patience(30))
    finally:
        server.kill()
        server.wait()
    return float(re.search(r"([\d.]+) MBytes/sec\s+receiver", shown)[1])


def rping(lab, count=3, timeout=30):
    """a connects to b with librdmacm and sends `count` buffers there and back with RDMA READ and
    WRITE."""
    server = lab.b.popen(
        ["rping", "-s", "-a", lab.b.address, "-C", count],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        # librdmacm listens in the kernel, which does not list the port: try again until the
        # connection succeeds.
        wait_until(
            lambda: server.poll() is None
            and lab.a.run(
                ["rping", "-c", "-a", lab.b.address, "-C", count], check=False, timeout=timeout
            ).returncode
            == 0,
            timeout,
            f"rping from {lab.a.name} to {lab.b.name}",
            interval=0.2,
        )
    finally:
        server.kill()
        server.wait()
