"""CRIU on a node: dump, restore (eager, or lazily with its page daemon) and page server, with the
errors of its logs."""
import os
import shutil
import subprocess
from pathlib import Path

from .node import HOST, LabError, wait_until
from .pace import patience


class CriuError(LabError):
    pass


def find_criu(at=HOST):
    """Returns the CRIU that ppmr itself would use."""
    if at.criu:
        return at.criu
    for place in (os.environ.get("PPMR_CRIU"), "/opt/ppmr/criu/usr/sbin/criu"):
        if place and Path(place).exists():
            return place
    return shutil.which("criu") or _no_criu()


def _no_criu():
    raise CriuError("no criu found: run third_party/install, or set PPMR_CRIU to its path")


# A line for criu_that(): CRIU answers as on a kernel without userfaultfd. Lazy restores end with
# 99.
WITHOUT_USERFAULTFD = 'case "$*" in *uffd*) echo "Error (criu/uffd.c:1): UFFD is not supported"; exit 1;; *lazy*) exit 99;; esac'


# A condition for criu_that(): this is the CRIU of a supervisor, which may restore a tree.
IS_A_SUPERVISORS = '[ "$1" = swrk ] && grep -q ^target /proc/sys/kernel/hostname'


def criu_that(directory, does):
    """Creates a CRIU for PPMR_CRIU that first runs a line of shell."""
    path = directory / "criu"
    path.write_text(f'#!/bin/sh\n{does}\nexec {find_criu()} "$@"\n')
    path.chmod(0o755)
    return path


def _errors(at, log):
    try:
        lines = at.read_text(log).splitlines()
    except OSError:
        return f"(no log {log})"
    return "\n".join([line for line in lines if "Error" in line][-12:] or lines[-5:])


def _run(at, argv, work, log, what, timeout):
    done = at.run([find_criu(at), *argv, "-W", work, "-o", log], check=False, timeout=timeout)
    if done.returncode != 0:
        raise CriuError(
            f"{what} on {at.name} failed with {done.returncode}:\n{_errors(at, work / log)}\n{done.stderr.strip()}".strip()
        )


def dump(at, pid, images, work, options=(), timeout=120):
    _run(
        at,
        ["dump", "-t", pid, "-D", images, *options],
        work,
        "dump.log",
        f"criu dump of {pid}",
        timeout,
    )


def restore(at, images, work, options=(), timeout=120):
    """Returns when the restored tree runs. The tree is a child of the node's init."""
    _run(
        at,
        ["restore", "--restore-detached", "-D", images, *options],
        work,
        "restore.log",
        f"criu restore from {images}",
        timeout,
    )


class LazyPages:
    """The daemon that serves page faults of a lazily restored tree. It ends when every page is in
    place."""

    def __init__(self, at, images, work, options=()):
        self._at, self._work = at, work
        self._process = at.popen(
            [
                find_criu(at),
                "lazy-pages",
                "-D",
                images,
                "-W",
                work,
                "-o",
                "lazy-pages.log",
                *options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        socket = work / "lazy-pages.socket"
        wait_until(
            lambda: at.exists(socket) or self._process.poll() is not None,
            10,
            "criu lazy-pages to listen",
            interval=0.001,
        )

    def finish(self, timeout=400):
        """A process that touches its pages at random can take minutes."""
        try:
            self._process.wait(timeout=patience(timeout))
        except subprocess.TimeoutExpired:
            raise CriuError(f"criu lazy-pages did not end within {patience(timeout):g} s") from None
        self.check()

    def check(self):
        """Raises CriuError if the daemon has failed."""
        if self._process.poll() not in (None, 0):
            raise CriuError(
                f"criu lazy-pages failed:\n{_errors(self._at, self._work / 'lazy-pages.log')}"
            )


def restore_lazily(at, images, work, options=(), timeout=120):
    pages = LazyPages(at, images, work)
    restore(at, images, work, ["--lazy-pages", *options], timeout)
    return pages


class PageServer:
    """Writes the pages of one dump into `images`, then ends."""

    def __init__(self, at, images, work, port):
        self._at, self._work = at, work
        self._process = at.popen(
            [
                find_criu(at),
                "page-server",
                "-D",
                images,
                "-W",
                work,
                "-o",
                "page-server.log",
                "--port",
                port,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        at.await_listener(port, self._process)

    def finish(self, timeout=120):
        if self._process.wait(timeout=patience(timeout)) != 0:
            raise CriuError(
                f"criu page-server failed:\n{_errors(self._at, self._work / 'page-server.log')}"
            )
