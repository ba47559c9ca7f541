"""The programs of the benchmark of jobs. Each writes a line per step, and equal steps give equal
lines, to the last digit."""
import re
import shutil
from dataclasses import dataclass
from typing import Callable

from lab.programs import REPOSITORY

KERNELS = REPOSITORY / "tests/workloads/mpi_kernels.py"
LAMMPS_EVERY = 10  # steps per line
LAMMPS = """units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 20 0 20 0 20
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify delay 0 every 20 check no
fix 1 all nve
thermo {every}
thermo_modify flush yes
run {steps}
"""


@dataclass(frozen=True)
class Program:
    name: str
    words: Callable  # (directory that all hosts share, number of lines) -> command line
    is_step: Callable  # line -> whether it ends a step


def lammps_words(directory, lines):
    text = LAMMPS.format(every=LAMMPS_EVERY, steps=lines * LAMMPS_EVERY)
    (directory / "in.melt").write_text(text)
    return ["lmp", "-in", "in.melt", "-log", "none"]


def kernel_words(name):
    def words(directory, lines):
        # The repository may be invisible in job nodes.
        shutil.copy(KERNELS, directory)
        return ["/usr/bin/python3", directory / KERNELS.name, name, lines]

    return words


def kernel(name, title):
    return Program(title, kernel_words(name), lambda line: line.startswith("step "))


PROGRAMS = {
    "lammps": Program(
        "LAMMPS", lammps_words, lambda line: bool(re.match(r" +\d+ +-?\d+\.\d+ ", line))
    ),
    "ep": kernel("ep", "EP: sums only"),
    "cg": kernel("cg", "CG: allgather and allreduce"),
    "ft": kernel("ft", "FT: all-to-all"),
    "lu": kernel("lu", "LU: a row per plane to the next rank"),
}
RING = kernel_words("ring")
