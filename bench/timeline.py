#!/usr/bin/python3
"""Draws the output of `ppmr migrate --json` or `ppmr evacuate --json`: for each process when it was
dumped, sealed, restarted, and had all its memory.

    ppmr migrate --pid 412 --pid 413 --mount /mnt/out --json >events.jsonl
    bench/timeline.py events.jsonl timeline.svg [--title TEXT]
"""
import argparse
import json
import sys
from html import escape
from pathlib import Path

PARTS = [
    ("freeze_began_ns", "held_ns", "#c44", "dumped (frozen)"),
    ("held_ns", "sealed_ns", "#d90", "sealed (frozen)"),
    ("sealed_ns", "running_ns", "#36c", "restarted (frozen)"),
    ("running_ns", "complete_ns", "#7b7", "runs, memory still arrives"),
]
WIDTH, ROW, LEFT, TOP = 900, 24, 150, 60
TICKS = 10


class NothingToDraw(Exception):
    pass


def moved_trees(text):
    """Returns the moved trees in all summaries of the JSON lines."""
    trees = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            event = json.loads(line)
        except ValueError:
            raise NothingToDraw(f"line {number} is not JSON: {line[:80]!r}") from None
        if isinstance(event, dict) and event.get("event") == "summary":
            trees += [tree for tree in event["trees"] if tree["result"] == "moved"]
    if not trees:
        raise NothingToDraw("no summary of a process that moved")
    return trees


def drawing(trees, title):
    """Returns an SVG picture: a row for each process, the earliest first."""
    begin = min(tree["freeze_began_ns"] for tree in trees)
    end = max(tree["complete_ns"] for tree in trees)
    scale = (WIDTH - LEFT - 20) / (end - begin)
    bottom = TOP + ROW * len(trees)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 50}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{bottom + 50}" fill="white"/><text x="10" y="20" font-size="14">{escape(title)}</text>',
    ]
    for number, (_, _, colour, name) in enumerate(PARTS):
        out.append(
            f'<rect x="{10 + number * 210}" y="30" width="12" height="12" fill="{colour}"/><text x="{27 + number * 210}" y="41">{name}</text>'
        )
    for number, tree in enumerate(sorted(trees, key=lambda tree: tree["freeze_began_ns"])):
        y = TOP + number * ROW
        out.append(f'<text x="10" y="{y + 14}">{escape(tree["name"])} {tree["pid"]}</text>')
        for since, until, colour, _ in PARTS:
            x, width = LEFT + (tree[since] - begin) * scale, max(
                (tree[until] - tree[since]) * scale, 0.5
            )
            out.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 6}" fill="{colour}"/>'
            )
    for tick in range(TICKS + 1):
        x = LEFT + (end - begin) * scale * tick / TICKS
        out.append(f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="#ccc"/>')
        out.append(
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{(end - begin) / 1e9 * tick / TICKS:.2f} s</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="what --json printed")
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    parser.add_argument("--title", default="ppmr migrate")
    arguments = parser.parse_args()
    try:
        arguments.picture.write_text(
            drawing(moved_trees(arguments.output.read_text()), arguments.title)
        )
    except (OSError, NothingToDraw) as error:
        sys.exit(
            f"timeline: {arguments.output}: {error}"
            if isinstance(error, NothingToDraw)
            else f"timeline: {error}"
        )


if __name__ == "__main__":
    main()
