"""A computation with numpy whose steps depend on all of a large matrix. Writes `STEP DIGEST NODE`
for each step.

    numpy_worker.py FILE ROWS
"""
import hashlib
import sys
import time

import numpy

MODULUS = 1_000_003


def first(rows):
    return (numpy.arange(rows * rows, dtype=numpy.int64).reshape(rows, rows) * 7919) % MODULUS


def following(matrix, step):
    """Uses only integers, so that every machine computes the same result."""
    return (numpy.roll(matrix, step, axis=1) * 31 + matrix.T + step) % MODULUS


def digest(matrix):
    return hashlib.sha256(matrix.tobytes()).hexdigest()[:16]


def main():
    path, rows = sys.argv[1], int(sys.argv[2])
    matrix = first(rows)
    with open(path, "w", buffering=1) as lines:
        step = 0
        while True:
            step += 1
            matrix = following(matrix, step)
            with open("/proc/sys/kernel/hostname") as name:
                lines.write(f"{step} {digest(matrix)} {name.read().strip()}\n")
            time.sleep(0.01)


if __name__ == "__main__":
    main()
