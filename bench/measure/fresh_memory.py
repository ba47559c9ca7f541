"""Memory that the host of this virtual machine has not backed yet.

A virtual machine's memory is slow at the first touch and fast afterwards, so earlier measurements
influence later ones. FreshMemory allocates and holds the memory that is already fast. Other
processes then get fresh memory, as on a machine that has just started. On real hardware, or if the
host has backed all memory, no memory is slow, and `found` is false.
"""
import ctypes
import mmap
import time

STEP = 256 << 20
KEEP_FREE = 8 << 30  # memory for the command
FRESH_SHARE = 0.5  # a step slower than this share of the fastest step's speed is fresh
SLOW_STEPS = 3  # after so many fresh steps in a row, the rest of the memory counts as fresh
GIVE_BACK_SECONDS = (
    10  # free page reporting: the host reclaims freed memory within seconds, except a few GiB
)


def available_bytes():
    with open("/proc/meminfo") as meminfo:
        return next(
            int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable")
        )


def touch():
    """Allocates and touches STEP bytes. Returns them and the seconds it took."""
    memory = mmap.mmap(-1, STEP, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    began = time.monotonic()
    ctypes.memset(address, 1, STEP)
    return memory, time.monotonic() - began


class FreshMemory:
    """Holds the memory that is already fast, so that other processes get fresh memory."""

    def __init__(self):
        self.fastest = float("inf")
        self._hold()

    def _hold(self):
        self.held, slow_steps = [], 0
        while slow_steps < SLOW_STEPS and available_bytes() > KEEP_FREE + STEP:
            memory, self.last = touch()
            self.held.append(memory)
            self.fastest = min(self.fastest, self.last)
            slow_steps = slow_steps + 1 if self.last * FRESH_SHARE > self.fastest else 0
        self.found = slow_steps == SLOW_STEPS

    def renew(self):
        """Makes memory that was in use fresh again, by letting the host reclaim it. Returns False
        if the host does not."""
        self.held.clear()
        time.sleep(GIVE_BACK_SECONDS)
        self._hold()
        return self.found

    def __str__(self):
        rate = STEP / self.fastest / 1e9, STEP / self.last / 1e9
        found = "the rest is fresh" if self.found else "found no fresh memory: all memory is fast"
        return f"holding {len(self.held) * STEP >> 20} MiB; first touch {rate[0]:.2f} GB/s at first, {rate[1]:.2f} GB/s at last; {found}"
