#!/usr/bin/python3
"""Draws comments, error messages and test names for a second reading. A seed draws the same again.

    tests/draw_prose.py [--seed N] [--comments 60] [--messages 30] [--names 20]

A reader asks of each: is it clear at the first reading, beside its code? The reader rewrites a text
that is not clear, and the texts elsewhere that have the same fault. Prints each text with its
place; the first line has the seed.
"""
import argparse
import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMENT = re.compile(r"(?m)(?:^[ \t]*//(?!-| ?clang-format| ?NOLINT).*\n)+")
# A call that makes an error or a finding, up to the end of its statement.
MESSAGE = re.compile(
    r"\b(?:failure|system_failure|command_failure|refusal|Error)\s*[({](?:[^;\"]|\"(?:[^\"\\]|\\.)*\")*;"
)
TEST = re.compile(r"^TEST(?:_[FP])?\((\w+), (\w+)\)|^ *def (test_\w+)\(", re.MULTILINE)


def sources():
    listed = subprocess.run(
        ["git", "ls-files", "*.cc", "*.h", "*.py"], cwd=ROOT, capture_output=True, text=True
    )
    return sorted(listed.stdout.split())


def found(pattern, files):
    """[(place, text)] of all matches in these files, in their order."""
    places = []
    for path in files:
        text = (ROOT / path).read_text(encoding="utf-8")
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            places.append((f"{path}:{line}", match))
    return places


def comments(files):
    of_cpp = found(COMMENT, [path for path in files if not path.endswith(".py")])
    return [(place, " ".join(match[0].replace("//", " ").split())) for place, match in of_cpp]


def messages(files):
    product = [path for path in files if not path.startswith(("tests/", "bench/"))]
    product = [path for path in product if path.endswith(".cc") and not path.endswith("_test.cc")]
    return [
        (place, " ".join(match[0].split())) for place, match in found(MESSAGE, product)
        if '"' in match[0]
    ]  # fmt: skip


def names(files):
    tests = [path for path in files if path.endswith(("_test.cc", ".py"))]
    return [
        (place, ".".join(part for part in match.groups() if part))
        for place, match in found(TEST, tests)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--comments", type=int, default=60)
    parser.add_argument("--messages", type=int, default=30)
    parser.add_argument("--names", type=int, default=20)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    draw = random.Random(arguments.seed)
    files = sources()
    for title, places, count in (
        ("comments", comments(files), arguments.comments),
        ("error messages", messages(files), arguments.messages),
        ("test names", names(files), arguments.names),
    ):
        print(f"\n== {min(count, len(places))} of {len(places)} {title}")
        for place, text in draw.sample(places, min(count, len(places))):
            print(f"{place}\n    {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
