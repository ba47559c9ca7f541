"""Moves over TCP between two machines (tests/vm) with Debian 12's kernel and CRIU."""
import hashlib
import os

import pytest

from lab.ppmr import Mounts, PpmrMove
from lab.programs import SteadyWorker
from lab.proofs import Before, prove

TCP = ["--transport", "tcp"]  # test_vm_verbs.py tests RDMA
TARGET_OPTIONS = ["--pool-size", "128MiB"]  # a small pool, because the machines have little memory
FILE_MIB, LONG_FILE_MIB = 32, 128


@pytest.fixture
def vm_mounts(ppmr, machines, tmp_path):
    with Mounts(
        machines.a, machines.b, machines.a.private / tmp_path.name, TCP, [*TCP, *TARGET_OPTIONS]
    ) as mounts:
        yield mounts


@pytest.mark.parametrize(
    "lazily", [True, pytest.param(False, marks=pytest.mark.long)], ids=["lazy", "eager"]
)
def test_process_moves_between_machines_over_tcp(machines, vm_mounts, lazily):
    a, b = machines.nodes
    worker = SteadyWorker(a, machines.home / f"worker-{lazily}", size_mib=32)
    worker.wait_for_lines(30)
    before = Before(worker)
    move = PpmrMove(a, b, vm_mounts, lazily)
    move.prepare("worker")
    try:
        move.move(worker)
        move.finish()
        worker.wait_for_lines(30)
        claims = prove(worker, before, a, b)
    finally:
        worker.end()
        move.clean()
    assert [claim for claim in claims if not claim[1]] == []


@pytest.mark.long
def test_large_file_arrives_unchanged(machines, vm_mounts, long):
    size_mib = LONG_FILE_MIB if long else FILE_MIB
    a, b = machines.nodes
    digest = hashlib.md5()  # MD5 is the cheapest digest on an emulated machine
    original = machines.home / "original"  # the host creates the file, because it is faster
    try:
        with open(original, "wb") as file:
            for _ in range(size_mib):
                block = os.urandom(1 << 20)
                digest.update(block)
                file.write(block)
        a.run(["dd", f"if={original}", f"of={vm_mounts.out / 'file'}", "bs=1M"], timeout=240)
    finally:
        original.unlink()
    vm_mounts.commit("file")
    assert b.run(["stat", "-c", "%s", vm_mounts.in_ / "file"]).stdout.strip() == str(size_mib << 20)
    assert (
        b.run(["md5sum", vm_mounts.in_ / "file"], timeout=120).stdout.split()[0]
        == digest.hexdigest()
    )
    vm_mounts.remove("file")
