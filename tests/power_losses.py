#!/usr/bin/python3
"""Power losses: virtual machines lose power at random moments of migrations, and are booted again.

    tests/power_losses.py --losses 100 --seed 1 [--mode MODE] [--results DIR]
    tests/power_losses.py --losses 6 --seed 1 --control

As root. Each machine has a disk that keeps only what was flushed (vm/flushed_disk.py); ppmr's state
directories are on it. Source and target lose power in turn. Then the machine is booted, the daemons
are started, as systemd would, and nobody does anything else: no `--recover`. When both nodes have
had their time to settle (`--timeout` + 30 s), lab/power_loss.py judges. Prints a line for each loss
with the histories of both records. Exit 0 only if the oracle has no objection.

--control shows that the oracle can object: the disks acknowledge flushes and forget them, so a node
that loses power forgets what it has promised. Exit 0 only if the oracle objects at least once.
"""
import argparse
import collections
import os
import random
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
from lab.node import LabError  # noqa: E402
from lab.power_loss import MODES, SIDES, PowerLosses  # noqa: E402
from vm.virtual_lab import VirtualLab  # noqa: E402

DISK_MIB = 64
MEMORY_MIB = 1024


def log(text):
    print(text, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--losses", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--mode", action="append", choices=MODES, help="only these")
    parser.add_argument(
        "--control", action="store_true", help="disks that lie, to which the oracle must object"
    )
    parser.add_argument("--results", type=Path, help="receives the consoles of the machines")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("must run as root: the machines boot this computer's root file system")
    modes = arguments.mode or MODES
    verdicts, wrong, settled = collections.Counter(), [], []
    with VirtualLab(
        MEMORY_MIB, log=log, results=arguments.results, disk_mib=DISK_MIB
    ) as machines, PowerLosses(machines) as losses:
        losses.measure(modes)
        log(f"{arguments.losses} losses, seed {arguments.seed}; undisturbed: {losses.describe()}")
        for number in range(1, arguments.losses + 1):
            generator = random.Random(f"{arguments.seed} {number}")
            side, mode = SIDES[number % len(SIDES)], generator.choice(modes)
            try:
                loss = losses.play(side, mode, generator, disk_lies=arguments.control)
            except LabError as error:
                wrong.append(f"{number} {side} {mode}: {error}")
                log(f"{number:4} {side} {mode} WRONG {error}")
                losses.start_again()
                continue
            verdicts[side, loss.verdict] += 1
            settled.append(loss.settled_seconds)
            log(f"{number:4} {loss}")
    for (side, verdict), count in sorted(verdicts.items()):
        log(f"{count:5}  power loss at the {side}: {verdict}")
    if settled:
        median = sorted(settled)[len(settled) // 2]
        log(f"settled within {max(settled):.0f} s of the boot, median {median:.0f} s")
    log(f"{sum(verdicts.values())} judged, {len(wrong)} wrong; seed {arguments.seed}")
    sys.exit(0 if bool(wrong) == arguments.control else 1)


if __name__ == "__main__":
    main()
