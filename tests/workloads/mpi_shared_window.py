"""The ranks of a host share a window (MPI_Win_allocate_shared), under Open MPI or MPICH.

    mpirun -n 4 python3 mpi_shared_window.py openmpi MIB
    mpiexec.hydra -n 4 python3 mpi_shared_window.py mpich MIB

Each rank fills its part of a window of MIB MiB. In each round it writes the number of the round
into each MiB of its part, and reads it in the part of its neighbour; rank 0 prints the number. When
a file named `end` is in the directory, each rank compares every byte of the whole window with what
it must be, and prints how many words are wrong.

It calls the library by ctypes, because Debian's mpi4py is built for Open MPI only.
"""
import ctypes
import os
import sys
import time
from ctypes import byref, c_char, c_int, c_void_p

import numpy

MIB = 1 << 20
WORDS_PER_MIB = MIB // 8
SECONDS_BETWEEN_ROUNDS = 0.02


class Mpi:
    """The functions of an MPI library that this program needs. The numbers are those of mpi.h."""

    def __init__(self, name):
        if name == "openmpi":  # handles are addresses
            self._library = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
            self.handle, self._of_one_host = c_void_p, 0
            world, byte, no_info = [
                c_void_p(ctypes.addressof(c_char.in_dll(self._library, symbol)))
                for symbol in ("ompi_mpi_comm_world", "ompi_mpi_byte", "ompi_mpi_info_null")
            ]
        else:  # handles are numbers
            self._library = ctypes.CDLL("libmpich.so.12")
            self.handle, self._of_one_host = c_int, 1
            world, byte, no_info = c_int(0x44000000), c_int(0x4C00010D), c_int(0x1C000000)
        self.world, self._byte, self._no_info = world, byte, no_info
        self._call("Init", None, None)

    def _call(self, name, *arguments):
        code = getattr(self._library, "MPI_" + name)(*arguments)
        if code != 0:
            raise OSError(f"MPI_{name}: error {code}")

    def rank(self, group):
        found = c_int()
        self._call("Comm_rank", group, byref(found))
        return found.value

    def size(self, group):
        found = c_int()
        self._call("Comm_size", group, byref(found))
        return found.value

    def ranks_of_this_host(self):
        group = self.handle()
        self._call("Comm_split_type", self.world, self._of_one_host, 0, self._no_info, byref(group))
        return group

    def shared_window(self, group, bytes_each):
        """Returns the window, and the part of each rank as an array of words."""
        own, window = c_void_p(), self.handle()
        size = ctypes.c_ssize_t(bytes_each)
        self._call(
            "Win_allocate_shared", size, c_int(1), self._no_info, group, byref(own), byref(window)
        )
        parts = []
        for rank in range(self.size(group)):
            length, unit, start = ctypes.c_ssize_t(), c_int(), c_void_p()
            self._call(
                "Win_shared_query", window, c_int(rank), byref(length), byref(unit), byref(start)
            )
            memory = (ctypes.c_uint64 * (length.value // 8)).from_address(start.value)
            parts.append(numpy.frombuffer(memory, dtype=numpy.uint64))
        return window, parts

    def fence(self, window):
        self._call("Win_fence", c_int(0), window)

    def broadcast(self, value):
        """Returns the number, 0 to 255, that rank 0 has."""
        sent = ctypes.c_uint8(value)
        self._call("Bcast", byref(sent), c_int(1), self._byte, c_int(0), self.world)
        self._call("Barrier", self.world)  # rank 0, too, waits for a host that stands still
        return sent.value

    def end(self):
        self._call("Barrier", self.world)
        time.sleep(0.5)  # see mpich_sums.py
        self._call("Finalize")


def expected(rank, mib):
    """Returns what the words of one MiB of the part of a rank are, before any round."""
    first = (rank << 40) + mib * WORDS_PER_MIB
    words = numpy.arange(first, first + WORDS_PER_MIB, dtype=numpy.uint64)
    return words * numpy.uint64(0x9E3779B97F4A7C15)  # no word, and no page, occurs twice


def main():
    mpi, mib = Mpi(sys.argv[1]), int(sys.argv[2])
    world_rank, host = mpi.rank(mpi.world), mpi.ranks_of_this_host()
    rank, ranks = mpi.rank(host), mpi.size(host)
    mib_each = mib // ranks
    window, parts = mpi.shared_window(host, mib_each * MIB)
    for number in range(mib_each):
        parts[rank][number * WORDS_PER_MIB : (number + 1) * WORDS_PER_MIB] = expected(rank, number)
    neighbour = parts[(rank + 1) % ranks]
    number, wrong = 0, 0
    parts[rank][::WORDS_PER_MIB] = number
    mpi.fence(window)
    while not mpi.broadcast(world_rank == 0 and os.path.exists("end")):
        number += 1
        parts[rank][::WORDS_PER_MIB] = number
        mpi.fence(window)
        wrong += int((neighbour[::WORDS_PER_MIB] != number).sum())
        mpi.fence(window)
        if world_rank == 0:
            print(number, flush=True)
        time.sleep(SECONDS_BETWEEN_ROUNDS)
    for of_rank, part in enumerate(parts):
        for place in range(mib_each):
            words = expected(of_rank, place)
            words[0] = number
            found = part[place * WORDS_PER_MIB : (place + 1) * WORDS_PER_MIB]
            wrong += int((found != words).sum())
    compared = sum(part.nbytes for part in parts)
    # Writes the line in one call: mpiexec.hydra may put a line of one rank between two writes of
    # another one.
    line = f"rank {world_rank}: {compared} bytes compared, {wrong} words wrong\n"
    os.write(sys.stdout.fileno(), line.encode())
    mpi.end()


if __name__ == "__main__":
    main()
