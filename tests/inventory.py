#!/usr/bin/python3
"""What a process keeps in a move: with ppmr, and with CRIU alone and podman.

    tests/inventory.py [--write docs/inventory.md]

As root, with CRIU. A program has one of each kind of state (lab/portrait.py), and says before and
after what it sees; another one has each option of sockets that can be set (lab/socket_sweep.py).
Prints a table: "kept", or "changed" with both values. CRIU and podman dump and restore on one node.
Exit 0 only if ppmr has kept, or named before, each kind.
"""
import argparse
import contextlib
import io
import os
import platform
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lab import criu  # noqa: E402
from lab.containers import podman_script  # noqa: E402
from lab.migrations import Migrations  # noqa: E402
from lab.node import Lab, LabError  # noqa: E402
from lab.portrait import ROWS, UNSEEN, Portrait, changed  # noqa: E402
from lab.readme import environment  # noqa: E402
from lab.socket_sweep import SocketSweep  # noqa: E402

MOVED = 0
LOCKS = ["--file-locks"]


IMAGE = "localhost/portrait"
ROOT = "mkdir -p usr proc sys dev etc tmp run; ln -s usr/bin bin; ln -s usr/lib lib; ln -s usr/lib64 lib64"


def with_ppmr(lab, nodes, make):
    """Returns (before, after, findings of the dry run)."""
    with Migrations(nodes.source, nodes.target, lab.directory / "private") as migrations:
        portrait = make(nodes.source, lab.home)
        before = portrait.seen()
        dry = migrations.migrate(portrait.pid, options=["--dry-run"], criu_options=LOCKS)
        moved = migrations.migrate(portrait.pid, criu_options=LOCKS)
        if moved.code != MOVED:
            sys.exit(f"the move failed: {moved.output}")
        after = portrait.seen_after(portrait.count())
        nodes.target.run(["kill", "-KILL", portrait.pid])
        nodes.target.await_end(portrait.pid)
        return before, after, dry.output


def with_criu(lab, node, make):
    images, work = node.scratch("images", tmpfs=True), node.scratch("work")
    portrait = make(node, lab.home)
    before = portrait.seen()
    try:
        criu.dump(node, portrait.pid, images, work, LOCKS)
        count = portrait.count()
        criu.restore(node, images, work, LOCKS)
        after = portrait.seen_after(count)
    finally:
        node.run(["kill", "-KILL", portrait.pid], check=False)
        node.await_end(portrait.pid)
        for directory in (images, work):
            node.drop_scratch(directory)
    return before, after


class InPodman:
    """Portraits in a container of podman, with the programs of this machine."""

    def __init__(self, lab, node, group):
        self.lab, self.node, self.group = lab, node, group
        directory = node.scratch("bin")
        self.script = directory / "podman"
        podman_script(node.host_path(directory), f"{lab.directory}/private/storage")
        root = lab.home / "root"
        root.mkdir()
        node.run(["sh", "-c", f"cd {root} && {ROOT} && tar -c . >../root.tar"])
        self.run("import", lab.home / "root.tar", IMAGE)

    def run(self, *words):
        return self.node.run([self.script, *words], timeout=120, env=environment())

    def make(self, kind):
        """Returns a class of portraits that run in the container."""
        outer = self

        class Contained(kind):
            def _start(self, node, words):
                outer.run(
                    *("run", "--detach", "--name", "portrait", "--network", "none"),
                    *("--log-driver", "none", "--cgroup-parent", f"/{outer.group}"),
                    *("--cap-add", "all", "--security-opt", "seccomp=unconfined"),
                    *("--volume", "/usr:/usr:ro", "--volume", f"{outer.lab.home}:{outer.lab.home}"),
                    *(IMAGE, *words),
                )

        return Contained

    def move(self, kind):
        archive = self.lab.home / "archive.tar"
        try:
            portrait = self.make(kind)(self.node, self.lab.home)
            before = portrait.seen()
            self.run("container", "checkpoint", "--file-locks", "--export", archive, "portrait")
            count = portrait.count()
            self.run("rm", "portrait")
            self.run("container", "restore", "--file-locks", "--import", archive)
            return before, portrait.seen_after(count)
        finally:
            self.run("rm", "--force", "--time", "0", "--all")


def attempt(move):
    """Returns (before, after), or why the tool has moved nothing."""
    try:
        return move()
    except LabError as error:
        return str(error).splitlines()[0]


def said(result, name):
    if isinstance(result, str):
        return "not moved"
    before, after = result
    if name not in before:
        return "not on this node"
    differs = changed(before, after).get(name)
    return f"changed: {differs[0]} -> {differs[1]}" if differs else "kept"


@contextlib.contextmanager
def control_group():
    name = f"ppmr-inventory-{os.getpid()}"
    yield name
    for group in sorted(Path("/sys/fs/cgroup").glob(f"**/{name}*/**"), key=str, reverse=True):
        if group.is_dir():
            group.rmdir()


def others(lab, node, group, kind):
    """What tools other than ppmr do to the portrait: {name of the tool: result}."""
    results = {"CRIU alone": attempt(lambda: with_criu(lab, node, kind))}
    if shutil.which("podman") and shutil.which("runc"):
        results["podman"] = attempt(lambda: InPodman(lab, node, group).move(kind))
    return results


def table(title, names, ours, results, findings):
    """Prints a table, and returns how many kinds ppmr loses without naming them."""
    lost = {row.name: row.lost for row in ROWS}
    faults, counts = 0, {tool: 0 for tool in ("ppmr", *results)}
    columns = ["ppmr", *results]
    print(f"| {title} | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
    for name in names:
        moved = said(ours, name)
        words = lost.get(name, "")
        if moved.startswith("changed") and words and words in findings:
            moved += ", as the dry run says"
        elif moved.startswith("changed") and words != UNSEEN:
            faults += 1
        cells = [moved, *(said(result, name) for result in results.values())]
        for tool, cell in zip(counts, cells):
            counts[tool] += cell.startswith("changed")
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"\n{len(names)} kinds, {faults} lost by ppmr without a word. Changed:")
    print(", ".join(f"{count} by {tool}" for tool, count in counts.items()) + ".\n")
    for tool, result in results.items():
        if isinstance(result, str):
            print(f"{tool} has moved nothing: {result}\n")
    return faults


def counts(before, ours, results):
    """Prints how many options of each kind of socket a tool changes, and returns how many ppmr
    does."""
    looks = {"ppmr": ours, **results}
    groups = {}
    for name in before:
        groups.setdefault(name.rpartition(" ")[0], []).append(name)
    groups["all"] = list(before)
    print(f"| kind of socket, level | options | {' | '.join(f'changed by {tool}' for tool in looks)} |")
    print("| --- |" + " --- |" * (len(looks) + 1))
    for group, names in groups.items():
        cells = []
        for look in looks.values():
            lost = {} if isinstance(look, str) else changed(*look)
            cells.append(look if isinstance(look, str) else sum(name in lost for name in names))
        print(f"| {group} | {len(names)} | {' | '.join(map(str, cells))} |")
    print()
    return len(changed(*ours))


def measure():
    faults = 0
    with control_group() as group:
        for kind in (Portrait, SocketSweep):
            with Lab() as lab:
                nodes = lab.pair()
                before, after, findings = with_ppmr(lab, nodes, kind)
                results = others(lab, nodes.source, group, kind)
            ours = before, after
            if kind is Portrait:
                faults += table("state", [row.name for row in ROWS], ours, results, findings)
            else:
                faults += counts(before, ours, results)
    return faults


HEAD = """# What moves keep, measured

Made by `tests/inventory.py --write docs/inventory.md` on {date}, Linux {kernel}.
A program has one of each kind of state and says before and after a move what it sees of it. CRIU
and podman dump and restore on one node. [faithful.md](faithful.md) says who carries what.

Not measured: DMTCP. Debian 12 has no package of it, and ppmr's tests install packages of Debian
only.

"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="the page to write, beside the output")
    page = parser.parse_args().write
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        faults = measure()
    print(text.getvalue(), end="")
    if page:
        head = HEAD.format(date=time.strftime("%Y-%m-%d"), kernel=platform.release())
        page.write_text(head + text.getvalue().rstrip() + "\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
