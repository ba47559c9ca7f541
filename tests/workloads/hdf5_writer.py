"""Appends rows to a dataset of an HDF5 file, which stays open with its lock.

    python3 hdf5_writer.py FILE

Prints the number of rows after each one. Ends when a file named `end` is in the directory.
"""
import os
import sys
import time

import h5py

COLUMNS = 1000
SECONDS_BETWEEN_ROWS = 0.02


def row(number):
    return [number * COLUMNS + column for column in range(COLUMNS)]


def main():
    with h5py.File(sys.argv[1], "w") as file:
        data = file.create_dataset("rows", (0, COLUMNS), maxshape=(None, COLUMNS), dtype="i8")
        while not os.path.exists("end"):
            number = len(data)
            data.resize(number + 1, axis=0)
            data[number] = row(number)
            file.flush()
            print(number + 1, flush=True)
            time.sleep(SECONDS_BETWEEN_ROWS)


if __name__ == "__main__":
    main()
