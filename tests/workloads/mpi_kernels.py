"""Small kernels in the style of the NAS parallel benchmarks, and a ring that measures stalls. Each
result depends on every byte that the ranks exchange.

    mpirun -np N python3 mpi_kernels.py ep|cg|ft|lu STEPS
    mpirun -np N python3 mpi_kernels.py ring [MIB]

    ep    random numbers, counted by each rank alone; one sum per step          (EP)
    cg    conjugate gradients; an allgather and two allreduce per iteration     (CG)
    ft    Fourier transforms in two dimensions; an all-to-all per transform     (FT)
    lu    sweeps through a cube, plane by plane; a row to the next rank per     (LU)
          plane, forwards and then backwards
    ring  a token of 8 bytes passes all ranks, until a signal ends the job      (stalls)
          each rank holds MIB of memory that does not compress

Rank 0 prints "step NUMBER VALUE ..." after each step. Equal arguments give equal lines, to the last
digit. The ring prints "gap SECONDS END" ten times a second: the longest time that a rank has waited
for the token since the last line, and the time of day when that wait ended. Its clock is
CLOCK_REALTIME, because CRIU hides the downtime from the monotonic clock of a moved process.
"""
import sys
import time

import numpy
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()

EP_NUMBERS = 1 << 19  # numbers of one step, on all ranks
CG_SIDE, CG_ITERATIONS = 192, 25  # the matrix has side^2 rows
FT_SIDE = 384
LU_SIDE = 64
PRINT_SECONDS = 0.1


def report(step, *values):
    if RANK == 0:
        print("step", step, *(repr(value) for value in values), flush=True)


def total(value):
    return WORLD.allreduce(float(value))


def ep(steps):
    counts = numpy.zeros(10, dtype=numpy.int64)
    for step in range(1, steps + 1):
        random = numpy.random.Generator(numpy.random.PCG64([step, RANK]))
        pairs = random.standard_normal((2, EP_NUMBERS // SIZE))
        rings = numpy.minimum(numpy.abs(pairs).max(axis=0).astype(numpy.int64), 9)
        of_step = numpy.bincount(rings, minlength=10)
        sums = numpy.empty_like(of_step)
        WORLD.Allreduce(of_step, sums)
        counts += sums
        report(step, *counts.tolist(), total(pairs.sum()))


def rows_of(count):
    """Returns the rows of each rank, (first row, number of rows), and the rows of this rank."""
    firsts = [count * rank // SIZE for rank in range(SIZE + 1)]
    return firsts[:-1], [b - a for a, b in zip(firsts, firsts[1:])]


def cg(steps):
    count = CG_SIDE * CG_SIDE
    firsts, lengths = rows_of(count)
    own = slice(firsts[RANK], firsts[RANK] + lengths[RANK])
    rows = numpy.arange(own.start, own.stop)
    # Each row has its diagonal and eight other places, drawn once for all ranks.
    offsets = numpy.random.Generator(numpy.random.PCG64(7)).integers(1, count, 4)
    columns = [(rows + offset) % count for offset in (*offsets, *-offsets)]

    def multiply(vector):
        product = 9.0 * vector[rows]
        for places in columns:
            product -= vector[places]
        return product

    def whole(part):
        vector = numpy.empty(count)
        WORLD.Allgatherv(part, [vector, lengths, firsts, MPI.DOUBLE])
        return vector

    right = numpy.sin(rows + 1.0)
    for step in range(1, steps + 1):
        solution, residual = numpy.zeros(lengths[RANK]), right.copy()
        direction, rho = residual.copy(), total(residual @ residual)
        for _ in range(CG_ITERATIONS):
            product = multiply(whole(direction))
            alpha = rho / total(direction @ product)
            solution += alpha * direction
            residual -= alpha * product
            rho, before = total(residual @ residual), rho
            direction = residual + rho / before * direction
        norm = total(solution @ solution) ** 0.5
        report(step, norm, rho)
        right = solution / norm


def ft(steps):
    side = FT_SIDE - FT_SIDE % SIZE
    own = side // SIZE
    random = numpy.random.Generator(numpy.random.PCG64([1, RANK]))
    field = random.standard_normal((own, side)) + 1j * random.standard_normal((own, side))

    def transposed(part):
        sent = numpy.ascontiguousarray(part.reshape(own, SIZE, own).transpose(1, 2, 0))
        received = numpy.empty_like(sent)
        WORLD.Alltoall(sent, received)
        return numpy.ascontiguousarray(received.transpose(1, 0, 2).reshape(own, side))

    points = (5 * (RANK * own + numpy.arange(own))) % side
    phase = numpy.exp(-1e-6j * numpy.arange(side) ** 2)
    for step in range(1, steps + 1):
        there = numpy.fft.fft(transposed(numpy.fft.fft(field, axis=1)), axis=1) * phase
        field = numpy.fft.ifft(transposed(numpy.fft.ifft(there, axis=1)), axis=1)
        checksum = field[numpy.arange(own), points].sum()
        report(step, total(checksum.real), total(checksum.imag))


def lu(steps):
    """Symmetric successive over-relaxation. A value depends on its neighbours before it in all
    three directions, so a rank waits in each plane for the last row of the rank before it."""
    side = LU_SIDE
    firsts, lengths = rows_of(side)
    rows = lengths[RANK]
    places = numpy.arange(side)
    right = numpy.sin(places[:, None, None] + 2.0 * (firsts[RANK] + numpy.arange(rows))[:, None])
    right = right + numpy.cos(3.0 * places)
    field = numpy.zeros((side, rows, side))

    def sweep(direction, before, after):
        outside, above = numpy.zeros(side), numpy.zeros((rows, side))
        for plane in range(side)[::direction]:
            if 0 <= before < SIZE:
                WORLD.Recv(outside, source=before)
            row_before = outside
            for row in range(rows)[::direction]:
                known = right[plane, row] + row_before + above[row]
                # The prefix sum carries each value to all behind it in the row.
                carried = numpy.cumsum(known[::direction])[::direction]
                field[plane, row] = 0.75 * field[plane, row] + 0.05 * carried / side
                row_before = field[plane, row]
            above = field[plane]
            if 0 <= after < SIZE:
                WORLD.Send(numpy.ascontiguousarray(row_before), dest=after)

    for step in range(1, steps + 1):
        sweep(1, before=RANK - 1, after=RANK + 1)
        sweep(-1, before=RANK + 1, after=RANK - 1)
        right += numpy.sin(step + field)
        report(step, total((field * field).sum()), total(field[0, 0, 0]))


def ring(mib):
    held = numpy.random.Generator(numpy.random.PCG64([2, RANK])).bytes(mib << 20)
    # The token carries the longest wait of any rank in this round, and the time when that wait
    # ended.
    token, worst, received = numpy.zeros(2), numpy.zeros(2), None
    printed = time.time()
    while held is not None:
        if RANK == 0:
            WORLD.Send(token, dest=1 % SIZE)
        WORLD.Recv(token, source=(RANK - 1) % SIZE)
        now = time.time()
        if received is not None and now - received > token[0]:
            token[:] = now - received, now
        received = now
        if RANK > 0:
            WORLD.Send(token, dest=(RANK + 1) % SIZE)
            continue
        if token[0] > worst[0]:
            worst[:] = token
        token[:] = 0
        if now - printed >= PRINT_SECONDS:
            print("gap", *worst.tolist(), flush=True)
            worst[:], printed = 0, now


KERNELS = {"ep": ep, "cg": cg, "ft": ft, "lu": lu, "ring": ring}

if __name__ == "__main__":
    KERNELS[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 0)
