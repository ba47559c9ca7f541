#!/usr/bin/python3
"""What a process keeps in a move: with ppmr, and with CRIU alone.

    tests/inventory.py

As root, with CRIU. A program has one of each kind of state (lab/portrait.py), and says before and
after what it sees. Prints a table: "kept", "changed" with both values, or what the tool said when
it refused; then what the dry run of ppmr warns of. Exit 0 only if ppmr has kept, or named before,
each kind.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lab import criu  # noqa: E402
from lab.migrations import Migrations  # noqa: E402
from lab.node import Lab  # noqa: E402
from lab.portrait import ROWS, UNSEEN, Portrait, changed  # noqa: E402

MOVED = 0
LOCKS = ["--file-locks"]


def with_ppmr(lab, nodes):
    """Returns (before, after, findings of the dry run)."""
    with Migrations(nodes.source, nodes.target, lab.directory / "private") as migrations:
        portrait = Portrait(nodes.source, lab.home)
        before = portrait.seen()
        dry = migrations.migrate(portrait.pid, options=["--dry-run"], criu_options=LOCKS)
        moved = migrations.migrate(portrait.pid, criu_options=LOCKS)
        if moved.code != MOVED:
            sys.exit(f"the move failed: {moved.output}")
        after = portrait.seen_after(portrait.count())
        nodes.target.run(["kill", "-KILL", portrait.pid])
        nodes.target.await_end(portrait.pid)
        return before, after, dry.output


def with_criu(lab, node):
    images, work = node.scratch("images", tmpfs=True), node.scratch("work")
    portrait = Portrait(node, lab.home)
    before = portrait.seen()
    criu.dump(node, portrait.pid, images, work, LOCKS)
    count = portrait.count()
    criu.restore(node, images, work, LOCKS)
    after = portrait.seen_after(count)
    node.run(["kill", "-KILL", portrait.pid])
    return before, after


def said(before, after, name):
    if name not in before:
        return "not on this node"
    differs = changed(before, after).get(name)
    return f"changed: {differs[0]} -> {differs[1]}" if differs else "kept"


def main():
    with Lab() as lab:
        nodes = lab.pair()
        before, after, findings = with_ppmr(lab, nodes)
        alone = with_criu(lab, nodes.source)
    faults = 0
    print("| state | ppmr | CRIU alone |\n| --- | --- | --- |")
    for row in ROWS:
        moved = said(before, after, row.name)
        if moved.startswith("changed") and row.lost and row.lost in findings:
            moved += ", as the dry run says"
        elif moved.startswith("changed") and row.lost != UNSEEN:
            faults += 1
        print(f"| {row.name} | {moved} | {said(*alone, row.name)} |")
    print(f"\n{len(ROWS)} kinds, {faults} lost without a word")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
