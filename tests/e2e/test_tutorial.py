"""docs/tutorial.md: every command of it, in its order, on two fresh Debian machines with
systemd."""
import re
import time

import pytest

from lab.node import wait_until
from lab.programs import REPOSITORY

pytestmark = [pytest.mark.xdist_group("package"), pytest.mark.first]

SET = "TARGET=10.77.0.2 SOURCE=one"


def commands():
    text = (REPOSITORY / "docs/tutorial.md").read_text()
    return re.findall(r"^    (source|target|both)# (.*)$", text, re.MULTILINE)


class Typist:
    """Types the commands. The machines have no network and no ssh: apt has the packages, and the
    key is copied."""

    def __init__(self, source, target):
        self._machines = {"source": [source], "target": [target], "both": [source, target]}
        self.said = {}  # command: the output of the machines

    def type(self, where, command):
        if command.startswith("scp -p "):
            key = self._run("target", f"cat {command.split()[2]}")
            self._run("source", f"umask 077; printf %s '{key}' >/etc/ppmr/key")
            return
        command = re.sub(r"^apt install ", "cd /root && apt install --yes ", command)
        # Makes the next pids differ from the pids of the other machine, as on machines that have
        # run for a while.
        if "setsid" in command:
            self._run(
                "source",
                f"echo {int(time.time() * 7) % 20000 + 5000} >/proc/sys/kernel/ns_last_pid",
            )
        self.said[command] = self._run(where, command)

    def _run(self, where, command):
        # Each command runs in a new shell of root. A `cd` does not affect the next command, so no
        # command may depend on one.
        # The doctor may find a problem of this machine, see below.
        check = "ppmr doctor" not in command
        said = [machine.run(f"{SET}; {command}", check).stdout for machine in self._machines[where]]
        print(f"{where}# {command}", *said, sep="\n")  # pytest shows this output after a failure
        return "".join(said)

    def last(self, beginning):
        return [text for command, text in self.said.items() if command.startswith(beginning)][-1]


def test_every_command_of_the_tutorial_works(two_machines):
    typist = Typist(*two_machines)
    typed = commands()
    assert len(typed) > 25
    for where, command in typed:
        typist.type(where, command)
    diagnoses = typist.last("ppmr doctor").splitlines()
    problems = {line for line in diagnoses if line.startswith("problem: ")}
    # The machine of the tests may be a container that lacks this capability.
    assert all("CAP_SYS_RESOURCE" in line for line in problems), problems
    others = [line for line in diagnoses if line and line not in problems]
    assert others[-1].endswith(f", {len(problems)} problem{'s' * (len(problems) != 1)}")
    assert len(others) == len(set(others))
    number, host = typist.last("sleep 1; cat /var/tmp/count").split()
    assert host == "two" and int(number) > 5
    assert "counter" in typist.last("runc list") and int(typist.last("sleep 1; cat /srv")) > 5
    assert all(f"worker-{n}" in typist.last("pgrep") for n in (1, 2, 3))
    history = typist.last("ppmr history")
    assert len([line for line in history.splitlines() if "moved" in line]) == 5, history
    assert re.search(
        r'^ppmr_restarts_total\{.*result="complete".*\} [1-9]', typist.last("curl"), re.MULTILINE
    )
    target = two_machines[1]
    before = target.run("cat /var/tmp/count").stdout
    wait_until(
        lambda: target.run("cat /var/tmp/count").stdout != before, 20, "the process to count"
    )
