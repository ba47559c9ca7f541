"""The manual pages and documents agree with the program and the tree."""

import re
import subprocess

import pytest

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
    """The options that a manual page documents: bold, at the start of a line, under OPTIONS."""
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
    # The first words of each line that begins an option; what follows is its description.
    heads = re.findall(r"^  (-\S+)", section, re.M)
    return {option for head in heads for option in head.split("=")[0].split(",")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_manual_page_documents_exactly_the_options_of_help(ppmr, page):
    command = page.name.removesuffix(".8.md").split("-")[1:]
    shown = options_of_help(ppmr, command)
    if command:
        shown -= {"-h", "--help"}  # ppmr(8) documents it for all
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
    """All keys of a JSON value, at any depth."""
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
    """Paths in backticks that begin with a folder of the repository; a name without extension is
    short for all files of that name."""
    folders = {path.name for path in REPOSITORY.iterdir() if path.is_dir()}
    paths = re.findall(r"`([\w.*-]+/[\w./*-]+)`", document.read_text())
    missing = [
        path
        for path in paths
        if path.split("/")[0] in folders
        and not path.startswith("bazel-bin/")
        and not [*REPOSITORY.glob(path), *REPOSITORY.glob(f"{path}.*")]
    ]
    assert not missing


def test_readme_is_one_screen_and_a_half():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 110
