"""An MPI job: in each round all ranks add a number that follows from their rank; rank 0 prints
`ROUND SUM`.

    mpirun -np N python3 mpi_sums.py ROUNDS
"""
import sys
import time

from mpi4py import MPI

SECONDS_BETWEEN_ROUNDS = 0.05


def main():
    world = MPI.COMM_WORLD
    for number in range(int(sys.argv[1])):
        total = world.allreduce((world.Get_rank() + 1) * number)
        if world.Get_rank() == 0:
            print(number, total, flush=True)
        time.sleep(SECONDS_BETWEEN_ROUNDS)


if __name__ == "__main__":
    main()
