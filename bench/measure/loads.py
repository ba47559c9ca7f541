"""The programs that the measurements start: ppmr's benchmark programs, which write, read and
discard, and iperf3."""
import contextlib
import json
import os
import re
import subprocess
from pathlib import Path

from lab.node import LabError, wait_until
from lab.programs import REPOSITORY, find_program

GB = 1e9
MIB = 1 << 20
BENCH_PROGRAMS = (
    "data_threads",
    "file_load",
    "memory_benchmark",
    "network_benchmark",
    "null_sink",
    "touch_pages",
)


def find_bench_program(name):
    for directory in (os.environ.get("PPMR_BENCH_PROGRAMS"), REPOSITORY / "bazel-bin/bench"):
        if directory and (Path(directory) / name).exists():
            return (Path(directory) / name).resolve()
    raise LabError(
        f"{name} is not built: run bazel build //..., or set PPMR_BENCH_PROGRAMS to its directory"
    )


def check_built():
    """Raises LabError if a program is missing, before any measurement starts."""
    for name in BENCH_PROGRAMS:
        find_bench_program(name)
    find_program("steady_worker")


def mortal(argv):
    """Returns a command that ends when its nsenter is killed, because nsenter forwards no
    signal."""
    return ["setpriv", "--pdeathsig", "KILL", *argv]


def _json_of(done, what):
    try:
        return json.loads(done)
    except ValueError:
        raise LabError(f"cannot parse the output of {what}: {done.strip()[-300:]}") from None


class Load:
    """A running file_load. Its processes are ready when the constructor returns."""

    def __init__(self, at, words):
        self._what = f"file_load {' '.join(map(str, words[:2]))} on {at.name}"
        self._process = at.popen(
            mortal([find_bench_program("file_load"), *words]),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.output = self._process.stderr.readline()
        if self.output.strip() != "ready":
            self.output += self._process.communicate()[1]
            raise LabError(f"{self._what}: {self.output.strip() or 'ended at once'}")

    def result(self, timeout=300):
        try:
            out, err = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise LabError(f"{self._what} did not end within {timeout} s") from None
        if self._process.returncode != 0:
            raise LabError(f"{self._what} failed: {err.strip() or 'no error message'}")
        return _json_of(out, self._what)

    def kill(self):
        self._process.kill()
        self._process.communicate()


def write_words(directory, writers, bytes_each, request, files=1, prefix="file-", keep=False):
    return [
        "write",
        directory,
        "--writers",
        writers,
        "--bytes",
        bytes_each,
        "--request",
        request,
        "--files",
        files,
        "--prefix",
        prefix,
        *(["--keep"] if keep else []),
    ]


def write_files(at, directory, writers, bytes_each, request, **options):
    return Load(at, write_words(directory, writers, bytes_each, request, **options)).result()


def read_words(directory, readers, bytes_each, request, stamps, files=1):
    return [
        "read",
        directory,
        "--readers",
        readers,
        "--bytes",
        bytes_each,
        "--request",
        request,
        "--stamps",
        stamps,
        "--files",
        files,
    ]


def rate(result, seconds=None):
    """Returns GB/s."""
    return result["bytes"] / (seconds or result["seconds"]) / GB


class NullSink:
    """The null FUSE sink, mounted on a node until close()."""

    def __init__(self, at, mountpoint, max_write=MIB, threads=1):
        self.at, self.mountpoint = at, Path(mountpoint)
        at.run(["mkdir", "-p", mountpoint])
        self._process = at.popen(
            mortal(
                [
                    find_bench_program("null_sink"),
                    mountpoint,
                    "--max-write",
                    max_write,
                    "--threads",
                    threads,
                ]
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(
            lambda: self._mounted() or self._process.poll() is not None,
            10,
            f"the null sink to mount {mountpoint}",
            interval=0.002,
        )
        if self._process.poll() is not None:
            raise LabError(
                f"null_sink on {at.name} ended with {self._process.returncode}: {self._process.stderr.read().strip()}"
            )

    def _mounted(self):
        return any(point == str(self.mountpoint) for point, _ in self.at.mounts("fuse.null_sink"))

    def close(self):
        self.at.run(["umount", self.mountpoint], check=False)
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.at.run(["umount", "-l", self.mountpoint], check=False)
            self._process.kill()
            self._process.wait()
        self._process.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def iperf(source_at, target_at, address, port, streams, seconds, during=None):
    """GB/s and bytes as the receiver counts them, and the CPU seconds per GB of both sides. The
    client runs in the context `during`."""
    server = target_at.popen(
        mortal(["iperf3", "-s", "-1", "-p", port, "-B", address]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        target_at.await_listener(port, server)
        with during or contextlib.nullcontext():
            done = source_at.run(
                ["iperf3", "-c", address, "-p", port, "-P", streams, "-t", seconds, "-J"],
                timeout=seconds + 60,
                check=False,
            )
        report = _json_of(done.stdout, "iperf3")
        if "error" in report:
            raise LabError(f"iperf3 from {source_at.name} to {address}:{port}: {report['error']}")
        server.wait(timeout=15)
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    end = report["end"]
    bytes_per_second = end["sum_received"]["bits_per_second"] / 8
    if not bytes_per_second:
        raise LabError(f"iperf3 from {source_at.name} to {address}:{port} sent no bytes")
    cpu = end["cpu_utilization_percent"]
    return {
        "rate": bytes_per_second / GB,
        "bytes": end["sum_received"]["bytes"],
        "sender_cpu": cpu["host_total"] / 100 * GB / bytes_per_second,
        "receiver_cpu": cpu["remote_total"] / 100 * GB / bytes_per_second,
    }


def google_benchmark(at, argv, timeout=300):
    """Returns the runs in the benchmark's JSON output."""
    done = at.run([*argv, "--benchmark_format=json"], timeout=timeout)
    # Other output precedes the first brace.
    report = _json_of(done.stdout[done.stdout.find("{") :], str(argv[0]))
    for run in report["benchmarks"]:
        if run.get("error_occurred"):
            raise LabError(f"{Path(argv[0]).name}: {run.get('error_message')}")
    return [run for run in report["benchmarks"] if run.get("run_type") != "aggregate"]


def memory_rates(at, runs, seconds):
    """{'memcpy, 1 thread': [GB/s, ...], ...}"""
    found = {}
    for run in google_benchmark(
        at,
        [
            find_bench_program("memory_benchmark"),
            f"--benchmark_repetitions={runs}",
            f"--benchmark_min_time={seconds}",
        ],
    ):
        name = re.sub(
            r"/real_time/threads:(\d+)$",
            lambda match: f", {match[1]} thread{'s' if match[1] != '1' else ''}",
            run["run_name"],
        )
        found.setdefault(name, []).append(run["bytes_per_second"] / GB)
    return found


class StreamTarget:
    """network_benchmark --serve: receiver and image store without FUSE. `key`: the options of both
    sides."""

    def __init__(self, at, address, port, store_bytes, key):
        self.address, self.key = f"{address}:{port}", key
        self._process = at.popen(
            mortal(
                [
                    find_bench_program("network_benchmark"),
                    "--serve",
                    self.address,
                    "--store",
                    store_bytes,
                    *key,
                ]
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._process.stdout.readline().strip() != "listening":
            raise LabError(
                f"network_benchmark --serve {self.address}: {self._process.communicate()[1].strip()}"
            )

    def close(self):
        self._process.kill()
        self._process.communicate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def stream_rates(at, target, bytes_, writers, chunk, pool, streams, runs):
    """Returns the GB/s of each round of the stream without FUSE, after a warm-up round."""
    found = google_benchmark(
        at,
        [
            find_bench_program("network_benchmark"),
            "--target",
            target.address,
            *target.key,
            "--bytes",
            bytes_,
            "--writers",
            writers,
            "--chunk-size",
            chunk,
            "--pool-size",
            pool,
            "--streams",
            streams,
            f"--benchmark_repetitions={runs + 1}",
        ],
    )
    return [run["bytes_per_second"] / GB for run in found[1:]]


def memory_facts(*daemons):
    return {
        f"{daemon.role} daemon, most memory (MiB)": daemon.memory_kib()["VmHWM"] / 1024
        for daemon in daemons
    }


@contextlib.contextmanager
def scratch(at, name, tmpfs=False):
    path = at.scratch(name, tmpfs=tmpfs)
    try:
        yield path
    finally:
        at.drop_scratch(path)
