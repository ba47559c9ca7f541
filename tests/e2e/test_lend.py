"""The target lends the bytes of a sealed file to another process, in the same way as to the pager.
"""
import os
import signal
import subprocess
import time

import pytest

from lab.node import wait_until
from lab.pace import patience, slowness
from lab.programs import REPOSITORY
from lab.world import MIB, control_socket, digest_of_written

PROGRAM = REPOSITORY / "bazel-bin/tests/programs/borrow_file"


class Borrower:
    """tests/programs/borrow_file: borrows one file, and copies its bytes on request."""

    def __init__(self, world, socket, checkpoint, file=""):
        if not PROGRAM.exists():
            pytest.skip("no borrow_file: run `bazel build //tests/...`")
        self._world = world
        self.process = world.start(
            [PROGRAM, socket, checkpoint, file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer = self.process.stdout.readline().strip()

    def digest(self):
        """Returns the digest of the bytes that it has borrowed."""
        out = self._world.directory / "borrowed"
        print(out, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline().strip() == "written"
        return self._world.succeeds(["sha256sum", out]).out.split()[0]

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=patience(5)) == 0


def seal(world, source, name, size):
    world.write(source.mountpoint / name, size).succeeds()
    committed = world.ppmr("commit", source.mountpoint / name)
    assert committed.code == 0, committed.output


def test_borrowed_bytes_survive_the_kill_of_the_daemon(world):
    source, target = world.pair()
    seal(world, source, "image", 150 * MIB + 123)
    borrower = Borrower(world, control_socket(target.mountpoint), "image")
    assert borrower.answer == f"borrowed {150 * MIB + 123}"
    target.kill()
    source.kill()
    assert borrower.digest() == digest_of_written(150 * MIB + 123)
    borrower.end()


def test_borrowed_bytes_of_a_spill_file_survive_the_kill_of_the_daemon(world):
    spill = world.directory / "spill"
    spill.mkdir()
    source, target = world.pair(
        target_options=["--memory-limit", "32MiB", "--pool-size", "16MiB", "--spill-dir", spill]
    )
    os.mkdir(source.mountpoint / "moved")
    world.write(source.mountpoint / "moved/file", 96 * MIB).succeeds()
    assert world.ppmr("commit", source.mountpoint / "moved").code == 0
    assert world.status(target.mountpoint)["store"]["spilled_bytes"] >= 60 * MIB
    borrower = Borrower(world, control_socket(target.mountpoint), "moved", "file")
    assert borrower.answer == f"borrowed {96 * MIB}"
    target.kill()
    assert borrower.digest() == digest_of_written(96 * MIB)


def test_memory_of_a_borrowed_file_is_not_reused_until_the_borrower_ends(world):
    source, target = world.pair(target_options=["--memory-limit", "128MiB"])
    seal(world, source, "image", 40 * MIB)
    borrower = Borrower(world, control_socket(target.mountpoint), "image")
    assert borrower.answer.startswith("borrowed")
    os.remove(target.mountpoint / "image")
    seal(world, source, "other", 80 * MIB)
    full = world.write(source.mountpoint / "too-much", 40 * MIB)
    full.fails_with("ENOSPC", "EIO", within=20)
    assert borrower.digest() == digest_of_written(40 * MIB)

    store = world.status(target.mountpoint)["store"]
    assert (store["loans"], store["lent_bytes"]) == (1, 40 * MIB)
    assert store["used_bytes"] >= 120 * MIB
    borrower.process.kill()
    wait_until(
        lambda: world.status(target.mountpoint)["store"]["used_bytes"] < 100 * MIB,
        5,
        "the memory of the dead borrower's file to be free",
    )
    assert world.status(target.mountpoint)["store"]["loans"] == 0


def test_file_of_an_unsealed_checkpoint_is_not_lent(world):
    source, target = world.pair()
    world.write(source.mountpoint / "image", MIB).succeeds()
    world.wait_for_name(target.mountpoint / "image")
    socket = control_socket(target.mountpoint)
    refused = Borrower(world, socket, "image").answer
    assert refused.startswith("refused 16 ") and "not sealed" in refused, refused
    assert world.ppmr("commit", source.mountpoint / "image").code == 0
    assert Borrower(world, socket, "image").answer == f"borrowed {MIB}"
    assert Borrower(world, socket, "nothing").answer.startswith("refused 2 ")


def test_stopped_borrower_does_not_delay_the_end_of_the_daemon(world):
    source, target = world.pair()
    seal(world, source, "image", 40 * MIB)
    borrower = Borrower(world, control_socket(target.mountpoint), "image")
    os.kill(borrower.process.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert target.stop() == 0
    assert time.monotonic() - began < 3 * slowness()
    os.kill(borrower.process.pid, signal.SIGCONT)
    assert borrower.digest() == digest_of_written(40 * MIB)
