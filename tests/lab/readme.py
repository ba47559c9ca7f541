"""Runs the commands of docs/tools.md, so that the tests need no copy of them; reads those of the
first move in README.md.

A shell on that node runs each line `source# COMMAND` or `target# COMMAND` of a section. /mnt/out
and /mnt/in are replaced by the mount points of the test; ppmr and its CRIU are in PATH.
"""
import os
import re
from pathlib import Path

from .criu import find_criu
from .node import LabError
from .ppmr import find_ppmr
from .programs import REPOSITORY


def commands_of(section):
    """Returns [("source" or "target", command), ...] of a section of docs/tools.md."""
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


def first_move():
    """[("one" or "both", command), ...] of README.md, without the remarks beside them."""
    text = (REPOSITORY / "README.md").read_text()
    section = text.split("## The first move", 1)[1].split("\n## ", 1)[0]
    commands = re.findall(r"^    (one|both)# +(.*?)(?:  .*)?$", section, re.MULTILINE)
    if not commands:
        raise LabError("README.md has no commands under 'The first move'")
    return commands


def environment(**variables):
    path = ":".join([str(find_ppmr().parent), str(Path(find_criu()).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, **{key: str(value) for key, value in variables.items()}}


def run_command(mounts, where, command, timeout=60, **variables):
    """Runs one command and returns its output. Processes that it leaves running get /dev/null and
    that file."""
    node = mounts.source_at if where == "source" else mounts.target_at
    command = command.replace("/mnt/out", str(mounts.out)).replace("/mnt/in", str(mounts.in_))
    output = node.host_path("/run/output")
    done = node.run(
        ["sh", "-c", f"({command}) </dev/null >/run/output 2>&1"],
        timeout=timeout,
        check=False,
        env=environment(**variables),
    )
    if done.returncode != 0:
        raise LabError(
            f"on {node.name}: '{command}' ended with {done.returncode}; output: {output.read_text(errors='replace').strip()[-2000:]}"
        )
    return output.read_text(errors="replace")


def run_section(mounts, section, **variables):
    for where, command in commands_of(section):
        run_command(mounts, where, command, **variables)
