"""Evacuates a host of a running MPI job under Slurm; called by ./demo --job.

Four hosts of this machine (namespaces, joined by bridges of their own) run real Slurm and
`ppmr job agent`. LAMMPS computes with six ranks on three of them, three times: undisturbed;
cancelled and restarted from its own checkpoint, as is usual today; and with one host reported as
failing, which Slurm's health check, the agents and ppmr then evacuate. Exit 1 if any check fails.
"""
import argparse
import os
import platform
import signal
import statistics
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab import lammps  # noqa: E402
from lab.job_hosts import AS_ROOT, JobHosts  # noqa: E402
from lab.node import Lab, LabError, wait_until  # noqa: E402
from lab.slurm import SlurmCluster  # noqa: E402

HOSTS, RANKS = 4, 6
FAILING, SPARE = "h2", "h4"
THERMO = 10  # steps between two lines of values
CHECKPOINT = 500  # steps between two of LAMMPS's checkpoints


class Run:
    """A batch job with LAMMPS. Records when each line of values appeared."""

    def __init__(self, slurm, text, nodes=HOSTS, spares=1, options=()):
        self.slurm = slurm
        home = slurm.hosts.lab.home
        path = home / f"in.{time.monotonic_ns()}"
        path.write_text(text)
        exports = "".join(f"export {name}={value}\n" for name, value in AS_ROOT.items())
        command = f"{slurm.hosts.ppmr} job run --spares {spares} -- mpirun -n {RANKS} lmp -in {path} -log none"
        self.number = slurm.submit(exports + command, nodes=nodes, options=options)
        self.times = []
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    def _watch(self):
        while not self._done.wait(0.01):
            self._note()
        self._note()

    def _note(self):
        self.times += [time.monotonic()] * (len(self.values()) - len(self.times))

    def values(self):
        return lammps.values(self.slurm.output(self.number).splitlines())

    def await_step(self, step):
        wait_until(
            lambda: len(self.times) > step // THERMO or self._has_ended(), 120, f"step {step}", 0.02
        )

    def _has_ended(self):
        return self.slurm.job(self.number)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING")

    def wait(self):
        try:
            return self.slurm.await_end(self.number, timeout=300)
        finally:
            self.close()

    def close(self):
        self._done.set()
        self._watcher.join()

    def gaps(self):
        return [later - earlier for earlier, later in zip(self.times, self.times[1:])]

    def seconds(self):
        return self.times[-1] - self.times[0]


def show(text=""):
    print(text, flush=True)


class Demo:
    def __init__(self, slurm, steps):
        self.slurm, self.hosts, self.steps = slurm, slurm.hosts, steps
        # The average case, in which half of the work since a checkpoint is lost.
        self.fails_at = steps // 2 + CHECKPOINT // 2
        self.failed = []

    def check(self, holds, claim):
        show(f"  {'ok    ' if holds else 'FAILED'}  {claim}")
        if not holds:
            self.failed.append(claim)

    def melt(self, name):
        prefix = self.hosts.lab.home / f"checkpoint-{name}"
        return lammps.melt(self.steps, thermo=THERMO, checkpoint=(CHECKPOINT, prefix))

    def undisturbed(self):
        run = Run(self.slurm, self.melt("undisturbed"))
        self.check(run.wait() == "COMPLETED", f"{RANKS} ranks on h1, h2 and h3 end undisturbed")
        return run

    def cancelled_and_restarted(self):
        first = Run(self.slurm, self.melt("cancelled"))
        first.await_step(self.fails_at)
        self.slurm.command("scancel", first.number)
        first.wait()
        files = self.hosts.lab.home.glob("checkpoint-cancelled.*")
        steps = [int(path.suffix[1:]) for path in files]
        last = max(steps, default=0)
        resumed = lammps.resume(
            self.hosts.lab.home / f"checkpoint-cancelled.{last}", self.steps, thermo=THERMO
        )
        options = [f"--exclude={FAILING}"]
        second = Run(self.slurm, resumed, nodes=HOSTS - 1, spares=0, options=options)
        self.check(
            second.wait() == "COMPLETED", f"cancelled; restarted from its checkpoint of step {last}"
        )
        computed = int(first.values()[-1][0])
        seconds = second.times[-1] - first.times[0]
        again = next(
            time for time, values in zip(second.times, second.values()) if int(values[0]) > computed
        )
        return seconds, again - first.times[-1], computed - last

    def evacuated(self, undisturbed):
        run = Run(self.slurm, self.melt("evacuated"))
        run.await_step(self.fails_at)
        reported = time.monotonic()
        self.slurm.report_failing(FAILING)
        wait_until(
            lambda: self.slurm.node_states()[FAILING] == "drained", 120, "Slurm to drain it", 0.1
        )
        drained = time.monotonic() - reported
        show()
        for line in self.hosts.command("h1", "status").stdout.splitlines():
            show(f"    {line}")
        show()
        [record] = self.hosts.status()
        places = [node["host"] for node in record["nodes"]]
        [move] = record["nodes"][1]["moves"]
        self.check(places == ["h1", SPARE, "h3"], f"the node of {FAILING} has moved to {SPARE}")
        groups = self.hosts.nodes[SPARE].run(["find", "/sys/fs/cgroup", "-name", "ppmr-*"]).stdout
        self.check(f"/job_{run.number}/step_" in groups, f"it is in Slurm's step on {SPARE}")
        hosts = self.slurm.job(run.number)["NodeList"]
        self.check(hosts == "h[1,3-4]", f"Slurm has {FAILING} back; the job has {hosts}")
        self.check(run.wait() == "COMPLETED", "the job has ended well")
        self.check(
            len(run.values()) == self.steps // THERMO + 1 and run.values() == undisturbed.values(),
            f"its {len(run.values())} lines of values are those of the undisturbed run, to the last digit",
        )
        return run, move["downtime_s"], drained


def table(undisturbed, restarted, evacuated, downtime, drained):
    seconds, stall, repeated = restarted
    usual = statistics.median(undisturbed.gaps())
    columns = ("undisturbed", "evacuated", "cancelled, restarted")
    rows = [
        ("run time, s", undisturbed.seconds(), evacuated.seconds(), seconds),
        ("beside undisturbed, s", 0.0, *(s - undisturbed.seconds() for s in (evacuated.seconds(), seconds))),
        ("longest stall, s", max(undisturbed.gaps()), max(evacuated.gaps()), stall),
        ("downtime of the node, s", None, downtime, None),
        ("from report to drained host, s", None, drained, None),
        ("steps computed twice", 0, 0, repeated),
    ]  # fmt: skip
    show(f"  {'':<34}" + "".join(f"{column:>22}" for column in columns))
    for title, *values in rows:
        cells = (
            "-" if v is None else f"{v:.2f}" if isinstance(v, float) else str(v) for v in values
        )
        show(f"  {title:<34}" + "".join(f"{cell:>22}" for cell in cells))
    show(f"  A line of values comes every {usual:.2f} s; a stall is the longest time between two.")


def run_demo(steps):
    show(
        f"LAMMPS, {RANKS} ranks on three of {HOSTS} hosts of this machine under Slurm, one spare ({os.cpu_count()} cores, Linux {platform.release()})"
    )
    with Lab() as lab:
        with JobHosts(lab, HOSTS, agent_options=["--slurm"], control_groups=True) as hosts:
            with SlurmCluster(hosts) as slurm:
                show(f"  Slurm {slurm.command('sinfo', '--version').split()[-1]} is ready")
                demo = Demo(slurm, steps)
                show("\nUndisturbed")
                undisturbed = demo.undisturbed()
                show(f"\nAs is usual: {FAILING} fails, the job is cancelled and restarted")
                restarted = demo.cancelled_and_restarted()
                show(f"\nWith ppmr: the health check of {FAILING} reports that it is about to fail")
                evacuated = demo.evacuated(undisturbed)
                hosts.await_clean()
                demo.check(True, "nothing is left on any host")
                show()
                table(undisturbed, restarted, *evacuated)
    show()
    if demo.failed:
        show(f"demo: FAILED: {'; '.join(demo.failed)}")
        return 1
    show("The host is free, and the job did not notice. All checks passed.")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ppmr", metavar="PATH", help="the ppmr binary (default: $PPMR or bazel-bin/ppmr)"
    )
    parser.add_argument(
        "--steps", type=int, default=4000, metavar="N", help="of LAMMPS (default: 4000)"
    )
    arguments = parser.parse_args()
    if arguments.ppmr:
        os.environ["PPMR"] = str(Path(arguments.ppmr).resolve())
    if os.geteuid() != 0:
        sys.exit("demo: needs root: it makes namespaces and runs CRIU")
    # Closes the hosts after SIGTERM, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        began = time.monotonic()
        code = run_demo(arguments.steps)
        show(f"({time.monotonic() - began:.0f} s in all)")
        return code
    except LabError as error:
        show(f"\ndemo: FAILED: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
