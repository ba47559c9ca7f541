"""The commands that the README promises, so that tests run them and not a copy that goes its own way.

A line `source# COMMAND` or `target# COMMAND` below the heading of a section is run by a shell on that node, with the mount points /mnt/out and
/mnt/in replaced by those of the test, and ppmr and its CRIU in PATH.
"""
import os
import re
from pathlib import Path

from .criu import find_criu
from .node import LabError
from .ppmr import find_ppmr
from .programs import REPOSITORY


def commands_of(section):
    """[("source" or "target", command), ...] of the README's section."""
    text = (REPOSITORY / "docs/tools.md").read_text()
    found = re.search(
        rf"^##+ {re.escape(section)}$(.*?)(?=^##? |\Z)", text, re.MULTILINE | re.DOTALL
    )
    commands = (
        re.findall(r"^    (source|target)# (.*)$", found.group(1), re.MULTILINE) if found else []
    )
    if not commands:
        raise LabError(f"docs/tools.md has no commands in a section '{section}'")
    return commands


def environment(**variables):
    path = ":".join([str(find_ppmr().parent), str(Path(find_criu()).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, **{key: str(value) for key, value in variables.items()}}


def run_command(mounts, where, command, timeout=60, **variables):
    """Runs one of them; standard input and output are /dev/null for what it leaves running."""
    node = mounts.source_at if where == "source" else mounts.target_at
    command = command.replace("/mnt/out", str(mounts.out)).replace("/mnt/in", str(mounts.in_))
    output = node.host_path("/run/said")
    done = node.run(
        ["sh", "-c", f"({command}) </dev/null >/run/said 2>&1"],
        timeout=timeout,
        check=False,
        env=environment(**variables),
    )
    if done.returncode != 0:
        raise LabError(
            f"on {node.name}: '{command}' ended with {done.returncode} and said: {output.read_text(errors='replace').strip()[-2000:]}"
        )
    return output.read_text(errors="replace")


def run_section(mounts, section, **variables):
    for where, command in commands_of(section):
        run_command(mounts, where, command, **variables)
