#!/usr/bin/python3
"""Runs a command on memory that the host below this virtual machine has not backed yet.

    /usr/bin/python3 bench/with_fresh_memory.py ./demo

A virtual machine's memory is slow at the first touch and fast ever after, so what was measured last decides what a tmpfs costs next. This
takes and holds the memory that is fast already, for as long as the command runs: what the command takes is then fresh, as it is on a machine
that has just been started. On real hardware, and where the host backs everything at once, nothing is slow and the command runs right away.
"""
import ctypes
import mmap
import os
import subprocess
import sys
import time

STEP = 256 << 20
KEEP_FREE = 8 << 30  # for the command
FRESH_SHARE = 0.5    # of the speed of the first steps: slower than this is fresh


def available_bytes():
    with open("/proc/meminfo") as meminfo:
        return next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable"))


def touch():
    """Takes STEP bytes; returns them and the seconds that it took."""
    memory = mmap.mmap(-1, STEP, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    began = time.monotonic()
    ctypes.memset(address, 1, STEP)
    return memory, time.monotonic() - began


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    held, fastest, slow_steps = [], float("inf"), 0
    while slow_steps < 3 and available_bytes() > KEEP_FREE + STEP:
        memory, seconds = touch()
        held.append(memory)
        fastest = min(fastest, seconds)
        slow_steps = slow_steps + 1 if seconds * FRESH_SHARE > fastest else 0
    found = "what follows is fresh" if slow_steps == 3 else "no fresh memory was found: everything is fast"
    rate = STEP / fastest / 1e9, STEP / seconds / 1e9
    print(f"holding {len(held) * STEP >> 20} MiB; first touch {rate[0]:.2f} GB/s at first, {rate[1]:.2f} GB/s at last; {found}", flush=True)
    sys.exit(subprocess.run(sys.argv[1:], env={**os.environ}).returncode)


if __name__ == "__main__":
    main()
