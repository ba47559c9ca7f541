"""What documents say about the source tree, and what the tree is.

Pure functions of a root directory: tests/checks/test_architecture.py applies them to the
repository, and to small faulty trees in which each must find the fault.
"""
import fnmatch
import re
from pathlib import Path

MAP = "docs/architecture.md"
SOURCE_SUFFIXES = {".cc", ".h", ".proto", ".py"}
# A README here may list a subfolder as a whole. Folders of the program list each of their files.
SUPPORT_FOLDERS = {"tests", "bench", "third_party", "docs", "debian"}
IGNORED = re.compile(r"^(\..*|bazel-.*|__pycache__|test-results|bench-results|packages)$")


def top_folders(root):
    return {path.name for path in root.iterdir() if path.is_dir() and not IGNORED.match(path.name)}


def files_below(root, suffixes):
    """Paths of files relative to the root, without those that a build or a benchmark has made."""
    found = []
    for folder in sorted(top_folders(root)):
        for path in sorted((root / folder).rglob("*")):
            relative = path.relative_to(root)
            made = relative.parts[:2] == ("bench", "results")
            if made or any(IGNORED.match(part) for part in relative.parts):
                continue
            if path.suffix in suffixes and path.is_file():
                found.append(relative)
    return found


def is_test(path):
    return path.name.endswith("_test.cc") or path.name.startswith("test_")


def tables(text):
    """The tables of a Markdown text: lists of rows, the first is the header, of stripped cells."""
    found, rows = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            rows.append([cell.strip() for cell in cells])
        elif rows:
            found.append([rows[0], *rows[2:]])
            rows = []
    return found


def table_with_header(text, first, second):
    """The rows of the table whose header begins with these two cells."""
    for header, *rows in tables(text):
        if header[:2] == [first, second]:
            return rows
    return []


def in_backticks(text):
    return re.findall(r"`([^`]+)`", text)


# The map: docs/architecture.md


def folders_in_map(text):
    """The folders that the tables of the map list in their first cell."""
    return {name for table in tables(text) for row in table[1:] for name in in_backticks(row[0])}


def arrows_of_map(text):
    """{(user, used)} of the table `folder | may use`."""
    return {
        (user, used)
        for row in table_with_header(text, "folder", "may use")
        for user in in_backticks(row[0])
        for used in in_backticks(row[1])
    }


def arrows_of_build(text):
    """{(user, used)} of the package groups `users_of_*` in the root BUILD.

    Not counted are a folder's use of itself, and tests and benchmarks, which may use everything.
    The package `//` is ppmr.cc.
    """
    groups = re.findall(
        r'package_group\(\s*name = "users_of_(\w+)",\s*packages = \[(.*?)\]', text, re.DOTALL
    )
    found = set()
    for used, packages in groups:
        for package in re.findall(r'"//([\w]*)(?:/\.\.\.)?"', packages):
            user = package or "ppmr.cc"
            if user not in {used, "tests", "bench"}:
                found.add((user, used))
    return found


def includes_between_folders(root):
    """{(user, used): [file: included file]} of all code that is not a test.

    third_party is left out: every folder may include its headers.
    """
    found = {}
    sources = [
        *files_below(root, {".cc", ".h"}),
        *(path.relative_to(root) for path in root.glob("*.cc")),
    ]
    for path in sources:
        user = path.parts[0]
        if user in SUPPORT_FOLDERS or is_test(path):
            continue
        for included in re.findall(
            r'^#include "(\w+/[^"]+)"', (root / path).read_text(), re.MULTILINE
        ):
            used = included.split("/")[0]
            if used not in {user, "third_party"}:
                found.setdefault((user, used), []).append(f"{path} includes {included}")
    return found


def wrong_visibilities(root, folders):
    """BUILD files of these folders whose default is not the package group of their folder."""
    return [
        f"{path}: default_visibility is not //:users_of_{path.parts[0]}"
        for path in files_below(root, {""})
        if path.name == "BUILD"
        and path.parts[0] in folders
        and f'package(default_visibility = ["//:users_of_{path.parts[0]}"])'
        not in (root / path).read_text()
    ]


# The places of changes: docs/development.md


NAME = r"`[\w:]+(?:\(\))?`"
PLACE = r"`[\w/.-]+/[\w.-]+`"
NAMES_IN_PLACES = re.compile(
    rf"({NAME}(?:(?:, | and |, and ){NAME})*) (?:in |\()({PLACE}(?: and {PLACE})*)"
)


def missing_places(root, text):
    """Paths in a text that are not in the tree, and names that a text places in a file without them
    ("`wait()` in `base/clock.h`")."""
    text = " ".join(text.split())
    folders = top_folders(root)
    problems = []
    for name in sorted(set(in_backticks(text))):
        path = name.rstrip("/")
        if not re.fullmatch(r"[\w.-]+(/[\w.*-]+)+", path) or path.split("/")[0] not in folders:
            continue
        if not list(root.glob(path)) and not list(root.glob(path + ".*")):
            problems.append(f"{name}: there is no such file or folder")
    for names, places in NAMES_IN_PLACES.findall(text):
        for place in in_backticks(places):
            if not (root / place).is_file():
                continue
            words = set(re.findall(r"\w+", (root / place).read_text()))
            for name in in_backticks(names):
                if not set(re.findall(r"\w+", name)) <= words:
                    problems.append(f"{name}: it is not in {place}")
    return problems


# READMEs


def names_in_readme(text):
    """What the tables of files of a README list: names of files, stems, folders or patterns."""
    return {
        name.split()[0].rstrip("/")
        for header, *rows in tables(text)
        if header[0].split()[0:1] in (["file"], ["folder"])
        for row in rows
        for name in in_backticks(" ".join(row))
    }


def first_names_in_readme(text):
    """The names in the first cells of the same tables, with the folder of `file of \\`lab\\``."""
    found = []
    for header, *rows in tables(text):
        words = header[0].split()
        if words[0:1] not in (["file"], ["folder"]):
            continue
        folder = in_backticks(header[0])
        for row in rows:
            for name in in_backticks(row[0]):
                # "timeline.py EVENTS.jsonl" is a command line; the file is its first word.
                found.append("/".join([*folder, name.split()[0]]).rstrip("/"))
    return found


def is_listed(path, names):
    """Whether a path relative to a README is among its names: whole, as a stem, or by a pattern."""
    forms = {str(path), str(path.with_suffix("")), path.name, path.stem}
    return bool(forms & names) or any(
        "*" in name and any(fnmatch.fnmatch(form, name) for form in forms) for name in names
    )


def missing_in_readmes(root):
    """What is wrong with the READMEs of all folders with source files; each item says what to
    do."""
    problems = []
    for path in files_below(root, SOURCE_SUFFIXES):
        if is_test(path) or path.name == "__init__.py":
            continue
        support = path.parts[0] in SUPPORT_FOLDERS
        listed, readme = False, None
        for folder in [*path.parents][:-1]:
            candidate = root / folder / "README.md"
            if not candidate.exists():
                continue
            readme = readme or folder / "README.md"
            names = names_in_readme(candidate.read_text())
            below = path.relative_to(folder)
            whole = support and any(str(parent) in names for parent in below.parents)
            if is_listed(below, names) or whole:
                listed = True
                break
        if readme is None:
            problems.append(f"{path}: write {path.parent}/README.md with a table `file | contents`")
        elif not listed:
            problems.append(f"{path}: add a row for `{path.stem}` to the table of {readme}")
    return problems


def missing_subfolders(root):
    """Subfolders of the program with source files that the README of their parent does not list."""
    folders = {
        path.parent
        for path in files_below(root, SOURCE_SUFFIXES)
        if path.parts[0] not in SUPPORT_FOLDERS and len(path.parts) > 2
    }
    problems = []
    for folder in sorted(folders):
        readme = root / folder.parent / "README.md"
        names = names_in_readme(readme.read_text()) if readme.exists() else set()
        if not any(name.split("/")[0] == folder.name for name in names):
            problems.append(f"{folder}: add a row for `{folder.name}` to {folder.parent}/README.md")
    return problems


def stale_in_readmes(root):
    """Names in READMEs' tables of files for which there is no file or folder."""
    problems = []
    for readme in files_below(root, {".md"}):
        if readme.name != "README.md":
            continue
        folder = root / readme.parent
        for name in first_names_in_readme((root / readme).read_text()):
            if not [*folder.glob(name), *folder.glob(f"{name}.*")]:
                problems.append(f"{readme}: there is no `{name}`; name the file where it is now")
    return problems


# Subcommands


def subcommands(root):
    """{command line: hidden} of all subcommands, as the sources add them to the parser."""
    found = {}
    nested = re.compile(r'\b(\w+)(?:\.|->)add_subcommand\(\s*"([\w-]+)"')
    internal = re.compile(r'\badd_internal<\w+>\(\w+, "([\w-]+)"')
    for path in files_below(root, {".cc"}):
        if is_test(path) or path.parts[0] in SUPPORT_FOLDERS:
            continue
        text = (root / path).read_text()
        for match in nested.finditer(text):
            parent, name = match.groups()
            statement = text[match.end() : text.index(";", match.end())]
            prefix = "" if parent == "app" else f"{parent} "
            found[f"ppmr {prefix}{name}"] = '->group("")' in statement
        for name in internal.findall(text):
            found[f"ppmr {name}"] = True
    return found


def commands_in_document(text):
    """The command lines `ppmr WORD` or `ppmr WORD WORD` of a document: in code, in either form."""
    blocks = re.findall(r"^(?: {4}|\t)(.*)$", text, re.MULTILINE)
    fenced = re.findall(r"^```.*?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    code = "\n".join([*blocks, *fenced])
    prose = re.sub(r"^```.*?^```|^(?: {4}|\t).*$", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = [span for span in re.findall(r"`([^`]+)`", prose) if span.startswith("ppmr ")]
    # In code blocks: at the start of a line, or after a prompt.
    lines = re.findall(r"(?:^|[#$] +)(ppmr [a-z][^\n]*)", code, re.MULTILINE)
    found = set()
    for line in [*spans, *lines]:
        words = re.match(r"ppmr ([a-z][\w-]*)(?: ([a-z][a-z-]*)\b)?", " ".join(line.split()))
        if words:
            found.add((words.group(1), words.group(2) or ""))
    return found


def unknown_commands(text, known):
    """Command lines of a document that the binary does not have."""
    parents = {command.split()[1] for command in known if len(command.split()) == 3}
    return sorted(
        f"ppmr {first} {second}".strip()
        for first, second in commands_in_document(text)
        if f"ppmr {first}" not in known
        or (first in parents and second and f"ppmr {first} {second}" not in known)
    )


def repository_documents(root):
    return [
        root / "README.md",
        *sorted(Path(root, "docs").glob("*.md")),
        *sorted(Path(root, "docs/man").glob("*.md")),
    ]
