"""The output of each command on terminals of several widths: for docs/captures, and for the test
that no line is wider than the terminal."""
import contextlib
import re
import shutil

import pyte

from .job_hosts import JobHosts
from .migrations import Migrations
from .node import Lab
from .ppmr import find_ppmr
from .terminal import Terminal

WIDTHS = (60, 80, 120)
COLOUR = re.compile(r"\x1b\[(?:\d+(?:;\d+)*)?m")
PLAIN = "worker"
MOVED_FROM_PID = 20000
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
        lab = self.lab = self._open.enter_context(Lab())
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

    def _start(self, lab, name, **options):
        """Starts a program whose file, and so its process and its command line, have this name."""
        program = lab.home / name
        if not program.exists():
            shutil.copy("/usr/bin/sleep", program)
        return self.source.spawn([program, "3600"], **options)

    def move_first(self):
        """Moves the first process, so that there is a history."""
        pid = self.pids[0]
        return self.text(["migrate", "--pid", pid, "--mount", self.mounts.out, *self.state], 80)

    def moves(self, columns):
        """[(title, words)] of commands that move processes: of new ones at each call."""
        # These pids are free at the target, where other processes have had the next ones.
        first = {"first_pid": MOVED_FROM_PID + 10 * columns}
        pid = self._start(self.lab, f"of-{columns}-columns", **first)
        for number in range(2):
            self._start(self.lab, f"batch{columns}-{number}", **first)
        to = ["--mount", self.mounts.out, *self.state]
        return [
            ("migrate", ["migrate", "--pid", pid, *to]),
            ("evacuate", ["evacuate", "--match", f"batch{columns}", *to]),
        ]

    def commands(self):
        """[(title, words)] of the other commands whose output people read, but the slow ones."""
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
            ("an error", ["migrate", "--pid", 999999, "--mount", out, *state]),
            ("an unknown option", ["status", "--" + self.names[-1]]),
            ("help migrate", ["help", "migrate"]),
        ]
        return for_user

    def raw(self, words, columns, timeout=60):
        """What the command writes to a terminal with so many columns."""
        return raw_at(self.source, words, columns, timeout)

    def text(self, words, columns):
        return shown(self.raw(words, columns), columns)


JOB_COMMANDS = [
    ("job status", ["job", "status"]),
    ("job evacuate", ["job", "evacuate", "h2"]),
    ("job status after it", ["job", "status"]),
    ("job return", ["job", "return", "h2"]),
]


def text_of_jobs(columns):
    """[(title, text)] of the commands of jobs: a job leaves one of its hosts."""
    with Lab() as lab, JobHosts(lab, 3) as hosts:
        job = hosts.run(["--spares", "1", "--slots", "1", "--", "sh", "-c", "echo; sleep 600"])
        job.await_lines(1)
        node = hosts.nodes["h1"]
        return [
            (title, shown(raw_at(node, words, columns, 120), columns))
            for title, words in JOB_COMMANDS
        ]


def raw_at(node, words, columns, timeout):
    with Terminal(node, [find_ppmr(), *words], columns, 50) as terminal:
        terminal.end(timeout)
        return terminal.raw


def shown(raw, columns):
    """The text that stays on a terminal that is as long as it needs."""
    screen = pyte.Screen(columns, 400)
    pyte.Stream(screen).feed(raw)
    return "\n".join(line.rstrip() for line in screen.display).rstrip()


def written_lines(raw):
    """The lines of an output without progress, without the colours."""
    return COLOUR.sub("", raw).replace("\r\n", "\n").splitlines()
