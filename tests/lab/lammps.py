"""LAMMPS melts a Lennard-Jones crystal: its input, and the values in its output.

A run prints a line of thermodynamic values every few steps. Runs with the same ranks agree to the
last digit.
"""

_PHYSICS = """neighbor 0.3 bin
neigh_modify delay 0 every 20 check no
fix 1 all nve
thermo {thermo}
thermo_modify flush yes
"""


def melt(steps, size=12, thermo=10, checkpoint=None):
    """The input of a run. `checkpoint`: (steps between two, path prefix) of LAMMPS's own
    checkpoints."""
    return (
        f"""units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 {size} 0 {size} 0 {size}
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
"""
        + _PHYSICS.format(thermo=thermo)
        + _write(checkpoint)
        + f"run {steps}\n"
    )


def resume(path, steps, thermo=10, checkpoint=None):
    """Returns the input of a run that continues from a checkpoint, up to the step `steps`."""
    physics = _PHYSICS.format(thermo=thermo) + _write(checkpoint)
    return f"read_restart {path}\n{physics}run {steps} upto\n"


def _write(checkpoint):
    return f"restart {checkpoint[0]} {checkpoint[1]}.*\n" if checkpoint else ""


def values(lines):
    """Returns the lines of values in a run's output, each as a list of words that begins with the
    step.
    """
    table, inside = [], False
    for line in lines:
        words = line.split()
        if words[:2] == ["Step", "Temp"]:
            inside = True
        elif line.startswith("Loop time"):
            inside = False
        elif inside and words and words[0].isdigit():
            table.append(words)
    return table
