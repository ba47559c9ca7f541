"""The manual pages and documents agree with the program and the tree."""

import re
import subprocess

import pytest

from lab import architecture, prose
from lab.programs import REPOSITORY

PAGES = sorted((REPOSITORY / "docs/man").glob("ppmr*.8.md"))
DOCUMENTS = [
    path
    for path in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("*/**/*.md")]
    if "results" not in path.parts
    and not path.relative_to(REPOSITORY).parts[0].startswith("bazel-")
]
OPTION = re.compile(r"(?<![\w-])(--?[a-z][a-z0-9-]*)")


def options_of_page(page):
    """Returns the options that a manual page documents: bold, at the start of a line, under
    OPTIONS.
    """
    section = re.search(r"^## OPTIONS$(.*?)(?=^## |\Z)", page.read_text(), re.M | re.S).group(1)
    return set(OPTION.findall(" ".join(re.findall(r"^(\*\*-.*)$", section, re.M))))


def options_of_help(ppmr, command):
    text = subprocess.run(
        [ppmr, *command, "--help"], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    if command and "Subcommands:\n" in text:
        nested = re.findall(r"^  ([a-z]+) ", text.split("Subcommands:\n", 1)[1], re.M)
        return set().union(*(options_of_help(ppmr, [*command, name]) for name in nested))
    section = text.split("Options:\n", 1)[1].split("\nSubcommands:", 1)[0]
    # Takes the first words of each line that begins an option. The rest of the line is the
    # description.
    heads = re.findall(r"^  (-\S+)", section, re.M)
    return {option for head in heads for option in head.split("=")[0].split(",")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_manual_page_documents_exactly_the_options_of_help(ppmr, page):
    command = page.name.removesuffix(".8.md").split("-")[1:]
    shown = options_of_help(ppmr, command)
    common = {"-h", "--help", "--wide"}  # ppmr(8) documents these for all commands
    shown = shown - common if command else shown | common
    assert options_of_page(page) == shown


def test_every_command_has_a_manual_page(ppmr):
    text = subprocess.run([ppmr, "--help"], capture_output=True, text=True, timeout=30).stdout
    commands = re.findall(r"^  ([a-z]+) ", text.split("Subcommands:\n", 1)[1], re.M)
    assert {page.name for page in PAGES} == {
        "ppmr.8.md",
        *(f"ppmr-{command}.8.md" for command in commands),
    }


def test_manual_page_documents_exactly_the_exit_codes_of_the_program():
    page = (REPOSITORY / "docs/man/ppmr.8.md").read_text()
    header = (REPOSITORY / "base/exit_code.h").read_text()
    documented = set(re.findall(r"^\| (\d+) \|", page, re.M))
    assert documented == set(re.findall(r"^  k\w+ = (\d+),", header, re.M))


def fields(value):
    """Returns all keys of a JSON value, at any depth."""
    if isinstance(value, dict):
        return set(value).union(*map(fields, value.values()))
    return set().union(*map(fields, value)) if isinstance(value, list) else set()


def test_json_page_documents_every_field_of_status(mounts):
    mounts.source_at.run(["mkdir", mounts.out / "checkpoint"])
    page = (REPOSITORY / "docs/json.md").read_text()
    shown = fields(mounts.source.status()) | fields(mounts.target.status())
    assert "pool" in shown and "checkpoints" in shown
    assert shown - set(re.findall(r"`(\w+)`", page)) == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_link_of_a_document_leads_to_a_file(document):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text())
    missing = [
        link
        for link in links
        if "://" not in link and not (document.parent / link).resolve().exists()
    ]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_path_in_a_document_exists(document):
    """Returns the paths in backticks that begin with a folder of the repository. A name without
    extension means all files with that name.
    """
    folders = architecture.top_folders(REPOSITORY)
    paths = re.findall(r"`([\w.*-]+/[\w./*-]+)`", document.read_text())
    missing = [
        path
        for path in paths
        if path.split("/")[0] in folders
        and not path.startswith("bazel-bin/")
        and not [*REPOSITORY.glob(path), *REPOSITORY.glob(f"{path}.*")]
    ]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_prose_of_documents_wraps_at_100_columns(document):
    long = prose.long_lines_of_markdown(document.read_text())
    assert not long, f"{document}: wrap these lines (tables and code blocks may be longer): {long}"


def sources_with_comments():
    """[(path, suffix)] of source files and scripts; the suffix says how they mark a comment."""
    found = []
    for path in architecture.files_below(REPOSITORY, {*prose.LINE_COMMENT, ""}):
        found.append(REPOSITORY / path)
    hidden = [REPOSITORY / ".ci/run", REPOSITORY / ".bazelrc"]
    for path in [*found, *hidden, *(path for path in REPOSITORY.iterdir() if path.is_file())]:
        with path.open("rb") as file:
            first = file.readline(64)
        if path.suffix in prose.LINE_COMMENT:
            yield path, path.suffix
        elif first.startswith(b"#!"):
            yield path, ".py" if b"python" in first else ".sh"
        elif path.name in ("BUILD", "WORKSPACE", ".bazelrc"):
            yield path, ".sh"


def test_comments_wrap_at_100_columns():
    sources = list(sources_with_comments())
    names = {str(path.relative_to(REPOSITORY)) for path, _ in sources}
    assert {"test", "BUILD", "ppmr.cc", "base/result.h", "bench/run", ".ci/run"} <= names
    long = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for path, suffix in sources
        for number, line in prose.long_comment_lines(path.read_text(), suffix)
    ]
    assert not long, "\n".join(["Wrap these comments and docstrings at 100 columns:", *long])


def test_every_path_in_a_comment_exists():
    """A name without extension is short for all files of that name."""
    folders = architecture.top_folders(REPOSITORY)
    missing, seen = [], 0
    for path, suffix in sources_with_comments():
        for number, line in prose.comment_lines(path.read_text(), suffix):
            for named in prose.paths_in(line, folders):
                seen += 1
                pattern = named.replace("NAME", "*")
                if not [*REPOSITORY.glob(pattern), *REPOSITORY.glob(f"{pattern}.*")]:
                    missing.append(f"{path.relative_to(REPOSITORY)}:{number}: {named}")
    assert seen > 20
    assert not missing, "\n".join(["Name these files where they are now:", *missing])


def test_paths_are_found_in_comments():
    line = "// See base/result.h, docs/tools.md; not /usr/docs/x, ../base/y or based/z."
    assert prose.paths_in(line, {"base", "docs"}) == ["base/result.h", "docs/tools.md"]


LONG = "word " * 25


@pytest.mark.parametrize(
    "text, numbers",
    [
        (f"Prose.\n\n{LONG}\n", [3]),
        (f"- An item:\n  {LONG}\n", [2]),
        (f"- {LONG}\n\n      {LONG}\n", [1]),
        (f"| {LONG} |\n| --- |\n", []),
        (f"A command:\n\n    {LONG}\n\n    {LONG}\n", []),
        (f"```\n{LONG}\n```\n{LONG}\n", [4]),
        (f"- [link]({'x' * 120})\n", []),
        (f"    {LONG}\ntext\n    {LONG}\n", [3]),
    ],
)
def test_long_prose_in_markdown_is_found(text, numbers):
    assert [number for number, _ in prose.long_lines_of_markdown(text)] == numbers


@pytest.mark.parametrize(
    "text, suffix, numbers",
    [
        (f"// {LONG}\nint x;\n", ".h", [1]),
        (f"# {LONG}\necho {LONG}\n", ".sh", [1]),
        (f'"""A file.\n\n{LONG}\n"""\nx = "{LONG}"  # short\n', ".py", [3, 5]),
        (f'def f():\n    """{LONG}"""\n    return "{LONG}"\n', ".py", [2]),
        (f"# {'x' * 120}\n", ".py", []),
    ],
)
def test_long_comments_are_found(text, suffix, numbers):
    assert [number for number, _ in prose.long_comment_lines(text, suffix)] == numbers


def test_development_page_names_things_that_exist():
    """`Type`, `Type::Inner` and `function()` in backticks."""
    page = (REPOSITORY / "docs/development.md").read_text()
    names = re.findall(r"`((?:[A-Z]\w*[a-z]\w*|[a-z]\w*)(?:::\w+)*)(\(\))?`", page)
    named = {name for name, call in names if call or name[0].isupper() or re.match("k[A-Z]", name)}
    assert {"SenderOptions", "Sender::announce", "StoreCounters"} <= named
    words = set()
    for path in architecture.files_below(REPOSITORY, {".cc", ".h"}):
        words |= set(re.findall(r"\w+", (REPOSITORY / path).read_text()))
    missing = [name for name in sorted(named) if not set(name.split("::")) <= words]
    assert not missing, f"docs/development.md: name these as the sources do now: {missing}"


def test_readme_has_at_most_110_lines():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 110
