"""Moves a program that uses RDMA between two machines; called by ./demo --rdma.

The machines are emulated (tests/vm), because the kernel of this one may lack RDMA: each has a
software device, and they need no module, no KVM and no adapter here. A program on each machine
sends messages, datagrams, writes, reads and atomics to the other, and both compare every byte. One
of them moves to the other machine and back, under traffic. Exit 1 if any check fails.
"""
import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab.migrations import Migrations  # noqa: E402
from lab.node import LabError, wait_until  # noqa: E402
from lab.ppmr import find_ppmr  # noqa: E402
from lab.programs import find_program  # noqa: E402
from vm.virtual_lab import VirtualLab  # noqa: E402

ROUNDS = 20  # before and after each move
SOURCE = ["--pool-size", "16MiB"]
TARGET = ["--memory-limit", "256MiB", "--pool-size", "96MiB"]
OPTIONS = ["--datagrams", "--shared"]


def show_line(text=""):
    print(text, flush=True)


class Program:
    """A checker under `ppmr rdma run`. `node` is where it runs now."""

    def __init__(self, lab, node, name, partner, first_pid=None):
        self.home, self.node, self.name = lab.home, node, name
        words = [find_program("checker"), "--name", name, "--partner", partner]
        words += ["--exchange", lab.home, *OPTIONS]
        run = [find_ppmr(), "rdma", "run", "--directory", lab.home / "peers", "--", *words]
        shown = " ".join(map(str, ["ppmr", *run[1:5], "--", "checker", *words[1:3], "..."]))
        show_line(f"  {node.name}# {shown}")
        place = {} if first_pid is None else {"first_pid": first_pid}
        self.pid = node.spawn(run, log=lab.home / f"{name}.out", **place)

    def text(self):
        return (self.home / f"{self.name}.out").read_text()

    def rounds(self):
        path = self.home / f"{self.name}.progress"
        text = path.read_text() if path.exists() else ""
        return int(text) if text.strip() else 0

    def await_rounds(self, more):
        goal = self.rounds() + more
        wait_until(
            lambda: self.rounds() >= goal or "checker:" in self.text(),
            180,
            f"{more} rounds of {self.name}: {self.text()}",
        )
        if "checker:" in self.text():
            raise LabError(self.text())


class Pause:
    """The longest time in which a program finished no round."""

    def __init__(self, program):
        self.program, self.longest_s = program, 0.0
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    def _watch(self):
        last, since = self.program.rounds(), time.monotonic()
        while not self._done.wait(0.01):
            rounds, now = self.program.rounds(), time.monotonic()
            self.longest_s = max(self.longest_s, now - since)
            if rounds != last:
                last, since = rounds, now

    def end(self):
        self._done.set()
        self._watcher.join()
        return self.longest_s


def move(pair, program, peer):
    pause = Pause(peer)
    try:
        show_line(f"  {program.node.name}# ppmr migrate --pid {program.pid} --mount {pair.out}")
        done = pair.migrate(program.pid, timeout=240)
        if done.code != 0:
            raise LabError(done.output + pair.logs(2) + program.text())
        program.node = pair.target_at
        for one in (program, peer):
            one.await_rounds(ROUNDS)
    finally:
        longest_s = pause.end()
    show_line(f"          runs on {program.node.name}; its peer waited for {longest_s:.1f} s")


def run():
    show_line("Two machines with software RDMA devices (QEMU without KVM: times mean nothing)")
    with VirtualLab(log=lambda text: show_line(f"  {text}")) as lab:
        a, b = lab.nodes
        x = Program(lab, a, "x", "y")
        y = Program(lab, b, "y", "x", first_pid=x.pid + 2000)
        for program in (x, y):
            program.await_rounds(ROUNDS)
        with Migrations(a, b, "/tmp/rdma-demo", SOURCE, TARGET, name="there") as there, Migrations(
            b, a, "/tmp/rdma-demo", SOURCE, TARGET, name="back"
        ) as back:
            for pair in (there, back):
                pair.await_ready()
            move(there, x, y)
            move(back, x, y)
        (lab.home / "stop.now").write_text("yes\n")
        good = True
        for program in (x, y):
            program.node.await_end(program.pid, timeout=180)
            is_right = "all right" in program.text()
            good &= is_right
            show_line(f"  {'ok    ' if is_right else 'FAILED'}  {program.text().strip()}")
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description="Move a program that uses RDMA, and back.")
    parser.add_argument("--ppmr", metavar="PATH", help="the ppmr binary")
    arguments = parser.parse_args()
    if arguments.ppmr:
        os.environ["PPMR"] = str(Path(arguments.ppmr).resolve())
    if os.geteuid() != 0:
        sys.exit("demo: needs root: the machines mount this computer's root file system")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the machines end
    try:
        began = time.monotonic()
        code = run()
        show_line(f"({time.monotonic() - began:.0f} s in all)")
        return code
    except LabError as error:
        show_line(f"\ndemo: FAILED: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
