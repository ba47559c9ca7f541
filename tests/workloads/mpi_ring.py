"""An MPI job: a token passes all ranks, each adds to it, and rank 0 writes `ROUND TOKEN NODE`.

In each round the ranks also broadcast a payload and sum their numbers.

    mpirun -np N python3 mpi_ring.py FILE
"""
import sys
import time

from mpi4py import MPI

MODULUS = 1_000_003


def main():
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    lines = open(sys.argv[1], "w", buffering=1) if rank == 0 else None
    token, number = 0, 0
    payload = bytearray(256 * 1024)  # too large for an eager send
    while True:
        number += 1
        if rank == 0:
            world.send((token * 31 + number) % MODULUS, dest=1 % size)
            token = world.recv(source=size - 1)
        else:
            token = (world.recv(source=rank - 1) + rank) % MODULUS
            world.send(token, dest=(rank + 1) % size)
        world.Bcast(payload, root=number % size)
        if world.allreduce(rank) != size * (size - 1) // 2:
            raise SystemExit(f"rank {rank}: the sum of the ranks is wrong")
        if rank == 0:
            with open("/proc/sys/kernel/hostname") as name:
                lines.write(f"{number} {token} {name.read().strip()}\n")
            time.sleep(0.005)


if __name__ == "__main__":
    main()
