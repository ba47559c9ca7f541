"""The version stands in debian/changelog; Bazel and dpkg read it there, and documents repeat it."""
import re

import pytest

from lab.programs import REPOSITORY

VERSION = re.match(r"ppmr \((\S+)\) ", (REPOSITORY / "debian/changelog").read_text())[1]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("**/*.md"))]


def test_documents_name_packages_of_this_version():
    named = {
        (page.name, version)
        for page in PAGES
        for version in re.findall(r"ppmr(?:-\w+)?_([^_\s]+)_amd64\.deb", page.read_text())
    }
    assert named, "no document names a package: this test proves nothing"
    assert {version for _, version in named} == {VERSION}, named


@pytest.mark.parametrize("pattern", ["*.h", "*.cc", "*.py", "*.md", "*.service"])
def test_no_other_file_repeats_the_version(pattern):
    """Finds the version in quotes, also after a v. Addresses and names of packages do not count."""
    repeated = re.compile(rf"""["'`v]{re.escape(VERSION)}["'`]""")
    found = [
        str(path.relative_to(REPOSITORY))
        for path in REPOSITORY.glob(f"*/**/{pattern}")
        if not path.relative_to(REPOSITORY).parts[0].startswith("bazel-")
        and repeated.search(path.read_text(errors="replace"))
    ]
    assert found == []
