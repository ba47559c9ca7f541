"""Manual pages have examples that the program accepts, and all documents name the same paths and
ports."""
import re

import pytest

from lab.programs import REPOSITORY

MANUAL = REPOSITORY / "docs/man"
PAGES = sorted(MANUAL.glob("*.8.md"))
TEXTS = [
    path
    for pattern in ("*.md", "docs/**/*.md", "docs/metrics/*", "debian/*", "cli/*.cc", "daemon/**/*.h")
    for path in sorted(REPOSITORY.glob(pattern))
    if path.is_file()
]


def section(text, title):
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", text, re.M | re.S)
    return found[1] if found else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_has_examples_and_files(page):
    text = page.read_text()
    assert re.search(r"^    \S", section(text, "EXAMPLES"), re.M), "no command under EXAMPLES"
    assert re.search(r"^\*/\S+\*", section(text, "FILES"), re.M), "no path under FILES"


def unknown_options(page, text):
    """Options in the examples of a page that the page of their command does not document."""
    wrong = []
    for line in re.findall(r"^    (.*)$", section(text, "EXAMPLES"), re.M):
        for words in re.findall(r"(?:^|&& |\s)ppmr ([a-z][^&|>]*)", line):
            name, *rest = words.split()
            other = MANUAL / f"ppmr-{name}.8.md"
            documented = other.read_text() if other.exists() else ""
            ours = rest[: rest.index("--")] if "--" in rest else rest
            options = [word for word in ours if word.startswith("--")]
            wrong += [option for option in options if f"**{option}**" not in documented]
            if not documented:
                wrong.append(name)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_use_documented_commands_and_options(page):
    assert unknown_options(page, page.read_text()) == []


def test_unknown_commands_and_options_are_found():
    text = "## EXAMPLES\n\n    ppmr migrate --pid 1 --nonsense && ppmr frobnicate x\n"
    assert unknown_options(PAGES[0], text) == ["--nonsense", "frobnicate"]


def everywhere(pattern):
    return {
        (found, path.name)
        for path in TEXTS
        for found in re.findall(pattern, path.read_text(errors="replace"))
    }


def test_documents_agree_on_the_key_file():
    keys = everywhere(r"/etc/ppmr[./-]key\b")
    assert keys and {key for key, _ in keys} == {"/etc/ppmr/key"}, keys


def test_documents_agree_on_the_ports():
    scrapes = (REPOSITORY / "docs/metrics/prometheus.yml").read_text()
    scraped = set(re.findall(r"127\.0\.0\.1:(\d+)", scrapes))
    shown = everywhere(r"metrics[ =]+(?:127\.0\.0\.1|HOST):(\d+)")
    assert scraped and shown
    assert {port for port, _ in shown} <= scraped, shown
    (port,) = re.findall(
        r'kTargetPort = "(\d+)"', (REPOSITORY / "daemon/control/target_mount.h").read_text()
    )
    assert f"listen = :{port}\n" in (REPOSITORY / "debian/target.conf").read_text()
