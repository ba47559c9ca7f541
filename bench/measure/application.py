"""The cost of moves for an application: the run time of an MPI program, undisturbed and with three
moves, one after the other.

LAMMPS melts a Lennard-Jones crystal with two ranks under Open MPI. The whole job (mpirun, its
ranks, their connections over loopback) moves to the other node and back. The last line of its
thermodynamics must equal that of an undisturbed run, to the digit.
"""
import shutil
from contextlib import ExitStack

from lab.move import now
from lab.node import LabError, wait_until
from lab.peers import TarMove
from lab.ppmr import Mounts, PpmrMove
from lab.programs import MPIRUN

from .plan import Item, Outcome
from .ways import LandedMove, LocalMove, filesystem_of
from .testbed import MIB, flags

SECTION = "application"
RANKS = 2
MOVES = 3
PROGRESS_LINES = 40  # lines of thermodynamics that the job writes
TCP = ["--tcp-established", "--network-lock", "skip", "--file-locks"]

MELT = """
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 {edge} 0 {edge} 0 {edge}
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo {every}
thermo_modify flush yes
run {steps}
"""


class Job:
    """mpirun with its ranks on a node."""

    def __init__(self, testbed, node, edge, steps):
        self.node = node
        self.directory = testbed.lab.home / testbed.label("melt")
        self.directory.mkdir()
        (self.directory / "in.melt").write_text(
            MELT.format(edge=edge, steps=steps, every=max(1, steps // PROGRESS_LINES))
        )
        self._steps = steps
        self.log = self.directory / "log"
        self.began = now()
        self.pid = node.spawn(
            [
                *MPIRUN,
                "-np",
                RANKS,
                "lmp",
                "-in",
                self.directory / "in.melt",
                "-log",
                "none",
            ],
            log=self.log,
            directory=self.directory,
        )

    def output(self):
        return self.log.read_text(errors="replace")

    def progress(self):
        """Returns the completed share of the steps."""
        words = self.output().rsplit("\nStep ", 1)[-1].splitlines()
        numbers = [
            int(line.split()[0]) for line in words[1:] if line.split() and line.split()[0].isdigit()
        ]
        return numbers[-1] / self._steps if numbers else 0.0

    def finished(self):
        return "Total wall time" in self.output()

    def wait_until_running(self):
        self._wait(lambda: "\nStep " in self.output(), 60, "the melt to begin")

    def wait_for_progress(self, share):
        self._wait(
            lambda: self.progress() >= share or self.finished(),
            600,
            f"{100 * share:.0f}% of the melt",
        )

    def wait_until_finished(self, timeout):
        """Returns the seconds since the start."""
        self._wait(self.finished, timeout, "the melt to end")
        took = now() - self.began
        wait_until(lambda: not self.node.alive(self.pid), 20, "mpirun to end")
        return took

    def _wait(self, condition, timeout, what):
        def there():
            if condition():
                return True
            if not self.node.alive(self.pid):
                raise LabError(
                    f"waiting for {what}: mpirun has ended on {self.node.name}; its output: {self.output().strip()[-1000:] or 'none'}"
                )
            return False

        wait_until(there, timeout, what, interval=0.01)

    def result(self):
        """Returns the thermodynamics after the last step."""
        lines = self.output().splitlines()
        ends = [number for number, line in enumerate(lines) if line.startswith("Loop time")]
        if not ends:
            raise LabError(
                f"LAMMPS has not finished its run; its output: {self.output().strip()[-1000:]}"
            )
        return lines[ends[-1] - 1].split()

    def end(self):
        # mpirun ends its ranks; pkill ends them if mpirun hangs.
        self.node.signal(self.pid, 9)
        self.node.run(["pkill", "-KILL", "-f", str(self.directory / "in.melt")], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)


class RoundTrip:
    """One way to move, in both directions between the nodes."""

    def __init__(self, there, back):
        self.moves = (there, back)

    def move(self, job, number, label):
        move = self.moves[number % 2]
        move.prepare(label)
        try:
            move.move_tree(job.pid, [*TCP, "--ghost-limit", "64M"], TCP)
            job.node = move.target
            wait_until(
                lambda: move.check() or job.node.alive(job.pid),
                60,
                f"the job to run on {job.node.name}",
            )
            move.finish()
        finally:
            move.clean()


def round_trips(testbed, stack):
    source, target = testbed.nodes("veth")
    options = flags({"--pool-size": 512 * MIB}, testbed.target_options)
    there = stack.enter_context(
        Mounts(
            source,
            target,
            testbed.private,
            testbed.source_options,
            options,
            name=testbed.label("there"),
        )
    )
    back = stack.enter_context(
        Mounts(
            target,
            source,
            testbed.private,
            testbed.source_options,
            options,
            name=testbed.label("back"),
        )
    )
    trips = {
        "ppmr, lazy": RoundTrip(PpmrMove(source, target, there), PpmrMove(target, source, back)),
        "ppmr, eager": RoundTrip(
            PpmrMove(source, target, there, lazily=False),
            PpmrMove(target, source, back, lazily=False),
        ),
        "tmpfs + tar": RoundTrip(TarMove(source, target), TarMove(target, source)),
    }
    disk = testbed.disk_directory
    if filesystem_of(source, disk) not in ("tmpfs", "ramfs"):
        trips["RDMA+Local (bytes over TCP)"] = RoundTrip(
            LandedMove(source, target, there, disk), LandedMove(target, source, back, disk)
        )
        trips["Local"] = RoundTrip(LocalMove(source, target, disk), LocalMove(target, source, disk))
    return trips


def measure(testbed, edge, steps, runs):
    source, _ = testbed.nodes("veth")
    if source.run(["sh", "-c", "command -v mpirun && command -v lmp"], check=False).returncode != 0:
        return Outcome(
            not_measured={
                "all ways": "mpirun or lmp is missing: third_party/install installs openmpi-bin and lammps"
            }
        )
    times, undisturbed = {}, []
    with ExitStack() as stack:
        trips = round_trips(testbed, stack)

        def run(trip, expected):
            job = Job(testbed, source, edge, steps)
            try:
                job.wait_until_running()
                if trip:
                    for number in range(MOVES):
                        job.wait_for_progress((number + 1) / (MOVES + 1))
                        if job.finished():
                            raise LabError(
                                f"the job ended before its move number {number + 1}: the machine is too busy, or it needs more steps"
                            )
                        trip.move(job, number, testbed.label("melt"))
                took = job.wait_until_finished(600)
                if expected and job.result() != expected:
                    raise LabError(
                        f"the result of LAMMPS is {' '.join(job.result())} after {MOVES} moves, undisturbed it is {' '.join(expected)}"
                    )
                return took, job.result()
            finally:
                job.end()

        _, expected = run(None, None)
        for _ in range(runs):
            undisturbed.append(run(None, expected)[0])
            for name, trip in trips.items():
                times.setdefault(name, []).append(run(trip, expected)[0])
    return Outcome({"undisturbed": undisturbed, **times})


def plan(testbed):
    runs = testbed.effort.application_runs
    if runs:
        # The run is long enough for three moves: on two idle cores 14 to 40 s, or 6 s.
        steps = testbed.effort.application_steps
        edge, steps, guess = (40, steps, steps / 16) if testbed.effort.sweeps else (16, 600, 6)
        yield Item(
            SECTION,
            "run time",
            f"LAMMPS, {RANKS} ranks, {MOVES} moves",
            {"edge": edge, "steps": steps, "runs": runs},
            "s",
            lambda: measure(testbed, edge, steps, runs),
            (runs * 6 + 1) * guess,
        )
