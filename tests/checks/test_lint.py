"""Mistakes that tools find in the scripts without running them."""
import subprocess

from lab.programs import REPOSITORY


def test_flake8_finds_nothing():
    done = subprocess.run(["flake8"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_shell_scripts_parse():
    files = subprocess.check_output(["git", "ls-files"], cwd=REPOSITORY, text=True).splitlines()
    scripts = [
        name
        for name in files
        if (REPOSITORY / name).read_bytes()[:64].startswith((b"#!/bin/bash", b"#!/bin/sh"))
    ]
    assert ".ci/run" in scripts and "test" in scripts
    for name in scripts:
        done = subprocess.run(["bash", "-n", REPOSITORY / name], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr
