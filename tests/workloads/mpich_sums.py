"""An MPI program for MPICH: in each round all ranks add a number that follows from their rank; rank
0 writes the sum.

    mpiexec.hydra -n 4 python3 mpich_sums.py ROUNDS

It calls libmpich by ctypes, because Debian's mpi4py is built for Open MPI. The handles are those of
MPICH's ABI (mpi.h).
"""
import ctypes
import sys
import time

COMM_WORLD, INT64, SUM = 0x44000000, 0x4C00083A, 0x58000003
SECONDS_BETWEEN_ROUNDS = 0.02


def main():
    mpi = ctypes.CDLL("libmpich.so.12")
    mpi.MPI_Init(None, None)
    rank = ctypes.c_int()
    mpi.MPI_Comm_rank(COMM_WORLD, ctypes.byref(rank))
    for number in range(int(sys.argv[1])):
        mine, total = ctypes.c_int64((rank.value + 1) * number), ctypes.c_int64()
        mpi.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, INT64, SUM, COMM_WORLD)
        if rank.value == 0:
            print(number, total.value, flush=True)
        time.sleep(SECONDS_BETWEEN_ROUNDS)
    # MPICH 4.0.2 sometimes hangs in MPI_Finalize, also without ppmr: in 5 of 24 runs with 4 and 8
    # ranks. It does not hang if no message is under way.
    mpi.MPI_Barrier(COMM_WORLD)
    time.sleep(0.5)
    mpi.MPI_Finalize()


if __name__ == "__main__":
    main()
