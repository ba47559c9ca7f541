"""The output of each command on terminals of several widths: for docs/captures, and for the test
that no line is wider than the terminal."""
import contextlib
import re
import shutil

import pyte

from .migrations import Migrations
from .node import Lab
from .ppmr import find_ppmr
from .terminal import Terminal

WIDTHS = (60, 80, 120)
COLOUR = re.compile(r"\x1b\[(?:\d+(?:;\d+)*)?m")
PLAIN = "worker"
# A name that clears the screen, one of wide characters, and a long one. The kernel keeps 15 bytes.
HOSTILE = ("\x1b[2J\x1b[1mred", "漢字漢字漢", "n" * 200)


class Stage:
    """Two nodes with mounts, and processes with these names on the source.

    with Stage(["worker"]) as stage:
        for title, words in stage.commands():
            text = stage.text(words, columns=80)
    """

    def __init__(self, names):
        self.names = names
        self._open = contextlib.ExitStack()

    def __enter__(self):
        lab = self._open.enter_context(Lab())
        nodes = lab.pair("node1", "node2")
        self.source, self.target = nodes.source, nodes.target
        # The nodes have directories /run of their own.
        self.mounts = self._open.enter_context(
            Migrations(self.source, self.target, "/run", name="ppmr")
        )
        self.state = ["--state-dir", self.mounts.states["source"]]
        self.pids = [self._start(lab, name) for name in self.names]
        self.checkpoints = [name[:200].replace("/", "_") for name in self.names]
        for name in self.checkpoints:
            self.source.run(["mkdir", self.mounts.out / f"of-{name}"])
            # `ppmr drain` waits for checkpoints that are not sealed.
            self.source.run([find_ppmr(), "commit", self.mounts.out / f"of-{name}"])
        return self

    def __exit__(self, *_):
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                self.source.signal(pid, 9)
        self._open.close()

    def _start(self, lab, name):
        """A program whose file, and so its process and its command line, have this name."""
        program = lab.home / name
        if not program.exists():
            shutil.copy("/usr/bin/sleep", program)
        return self.source.spawn([program, "3600"])

    def move_first(self):
        """Moves the first process, so that there is a history."""
        pid = self.pids[0]
        return self.text(["migrate", "--pid", pid, "--mount", self.mounts.out, *self.state], 80)

    def commands(self):
        """[(title, words)] of all commands whose output people read, but the slow ones."""
        out, state = self.mounts.out, self.state
        pids = [word for pid in self.pids[1:] for word in ("--pid", pid)]
        for_user = [
            ("status", ["status"]),
            ("migrate --dry-run", ["migrate", *pids, "--mount", out, *state, "--dry-run"]),
            ("migrate --rehearse", ["migrate", *pids, "--mount", out, *state, "--rehearse"]),
            ("evacuate --dry-run", ["evacuate", "--match", "3600", "--mount", out, "--dry-run"]),
            ("migrations", ["migrations", *state]),
            ("migrate --recover", ["migrate", "--recover", *state]),
            ("history", ["history", *state]),
            ("timeline --text", ["timeline", "--text", *state]),
            ("drain", ["drain", out]),
            ("drain --resume", ["drain", out, "--resume"]),
            ("commit", ["commit", out / f"of-{self.checkpoints[0]}"]),
            ("takeover", ["takeover", *state]),
            ("config check", ["config", "check", "--directory", "/nowhere"]),
            ("keygen", ["keygen", "/nowhere/key"]),
            ("devices", ["devices"]),
            ("job status", ["job", "status"]),
            ("an error", ["migrate", "--pid", 999999, "--mount", out, *state]),
            ("an unknown option", ["status", "--" + self.names[-1]]),
            ("help migrate", ["help", "migrate"]),
        ]
        return for_user

    def raw(self, words, columns, timeout=60):
        """What the command writes to a terminal with so many columns."""
        with Terminal(self.source, [find_ppmr(), *words], columns, 50) as terminal:
            terminal.end(timeout)
            return terminal.raw

    def text(self, words, columns):
        """The text that stays on a terminal that is as long as it needs."""
        screen = pyte.Screen(columns, 400)
        pyte.Stream(screen).feed(self.raw(words, columns))
        return "\n".join(line.rstrip() for line in screen.display).rstrip()


def written_lines(raw):
    """The lines of an output without progress, without the colours."""
    return COLOUR.sub("", raw).replace("\r\n", "\n").splitlines()
