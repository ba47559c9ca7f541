"""ppmr between two machines with kernels of their own (tests/vm): over TCP, with Debian 12's kernel and CRIU."""
import hashlib
import os

import pytest

from lab.ppmr import Mounts, PpmrMove
from lab.programs import SteadyWorker
from lab.proofs import Before, prove

TCP = ["--transport", "tcp"]  # by RDMA: test_vm_verbs.py
TARGET_OPTIONS = ["--pool-size", "128MiB"]  # the machines are small
FILE_MIB = 128


@pytest.fixture
def vm_mounts(ppmr, machines, tmp_path):
    with Mounts(
        machines.a, machines.b, machines.a.private / tmp_path.name, TCP, [*TCP, *TARGET_OPTIONS]
    ) as mounts:
        yield mounts


@pytest.mark.parametrize("lazily", [True, False], ids=["lazily", "eagerly"])
def test_a_worker_moves_from_machine_to_machine(machines, vm_mounts, lazily):
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


def test_a_large_file_by_its_digest(machines, vm_mounts):
    a, b = machines.nodes
    digest = hashlib.md5()  # the cheapest for an emulated machine; nobody is trying to deceive us
    original = (
        machines.home / "original"
    )  # the machines see the host's file, so that it need not be made by emulation
    try:
        with open(original, "wb") as file:
            for _ in range(FILE_MIB):
                block = os.urandom(1 << 20)
                digest.update(block)
                file.write(block)
        a.run(["dd", f"if={original}", f"of={vm_mounts.out / 'file'}", "bs=1M"], timeout=240)
    finally:
        original.unlink()
    vm_mounts.commit("file")
    assert b.run(["stat", "-c", "%s", vm_mounts.in_ / "file"]).stdout.strip() == str(FILE_MIB << 20)
    assert (
        b.run(["md5sum", vm_mounts.in_ / "file"], timeout=120).stdout.split()[0]
        == digest.hexdigest()
    )
    vm_mounts.remove("file")
