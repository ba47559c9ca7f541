"""A program on a terminal: what it writes, what the terminal then shows, and keys, signals and new
sizes for it.

    with Terminal(nodes.source, [find_ppmr(), "status", "--watch"], columns=100, rows=30) as
    terminal:
        terminal.wait_for("q quits")
        terminal.resize(40, 10)
        terminal.type("q")
        assert terminal.end() == 0
"""
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

import pyte

from .node import LabError
from .pace import patience

ESCAPE = "\x1b"
ENTERS_ALTERNATE_SCREEN = "\x1b[?1049h"
LEAVES_ALTERNATE_SCREEN = "\x1b[?1049l"
SHOWS_CURSOR = "\x1b[?25h"
# A type of terminal that uses only sequences that pyte supports.
DEFAULTS = {"TERM": "screen-256color", "LC_ALL": "C.UTF-8"}
_LEFT_OUT = ("NO_COLOR", "LINES", "COLUMNS")


class Terminal:
    def __init__(self, at, argv, columns=100, rows=30, environment=None, **options):
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = ""  # all that the program wrote
        self.master, self._slave = pty.openpty()
        self._set_size(columns, rows)
        self.modes_before = termios.tcgetattr(self._slave)
        kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}

        def take_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        streams = {"stdin": self._slave, "stdout": self._slave, "stderr": self._slave, **options}
        self.process = subprocess.Popen(
            at.command(argv),
            env={**kept, **DEFAULTS, **(environment or {})},
            preexec_fn=take_terminal,
            **streams,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        os.close(self.master)
        os.close(self._slave)

    def _set_size(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns, rows):
        """The kernel sends SIGWINCH to the program."""
        self.read(0)
        self.screen.resize(rows, columns)
        self._set_size(columns, rows)

    def type(self, keys):
        os.write(self.master, keys.encode())

    def read(self, seconds):
        """Reads the bytes that have arrived, or waits up to this long for bytes."""
        ready, _, _ = select.select([self.master], [], [], seconds)
        while ready:
            written = os.read(self.master, 65536)
            self.raw += written.decode(errors="replace")
            self._stream.feed(written)
            ready, _, _ = select.select([self.master], [], [], 0)

    @property
    def lines(self):
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self):
        return "\n".join(self.lines).rstrip()

    def wait_for(self, wanted, timeout=20):
        """Waits until the terminal shows this pattern, or `wanted(terminal)` is true."""
        end = time.monotonic() + patience(timeout)
        while True:
            ended = self.process.poll() is not None
            self.read(0 if ended else 0.05)
            found = wanted(self) if callable(wanted) else re.search(wanted, self.text)
            if found:
                return found
            if ended or time.monotonic() > end:
                raise LabError(
                    f"no {wanted!r} on the terminal:\n{self.text}\nwritten: {self.raw!r}"
                )

    def end(self, timeout=20):
        """Waits until the program has ended, and returns its exit code."""
        stop = time.monotonic() + patience(timeout)
        while self.process.poll() is None:
            self.read(0.05)
            if time.monotonic() > stop:
                raise LabError(f"the program did not end; the terminal shows:\n{self.text}")
        self.read(0)
        return self.process.returncode

    def is_restored(self):
        """Returns whether the terminal is as before the program: main screen, cursor, modes."""
        return (
            self.raw.rfind(LEAVES_ALTERNATE_SCREEN) > self.raw.rfind(ENTERS_ALTERNATE_SCREEN)
            and self.raw.rfind(SHOWS_CURSOR) > self.raw.rfind("\x1b[?25l")
            and termios.tcgetattr(self._slave) == self.modes_before
        )
