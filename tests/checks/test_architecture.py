"""docs/architecture.md and the READMEs agree with the source tree.

No test here needs the program. The second half applies each check to a small tree with a fault.
"""

import re

import pytest

from lab import architecture
from lab.programs import REPOSITORY

MAP = (REPOSITORY / architecture.MAP).read_text()
BUILD = (REPOSITORY / "BUILD").read_text()
COMMANDS = architecture.subcommands(REPOSITORY)


def explain(problems, remedy):
    return "\n".join([remedy, *map(str, problems)])


def test_map_lists_every_top_level_folder():
    missing = architecture.top_folders(REPOSITORY) - architecture.folders_in_map(MAP)
    assert not missing, explain(
        missing, f"Add the folder to the tables and the picture of {architecture.MAP}:"
    )


def test_arrows_of_the_map_are_those_of_the_package_groups():
    drawn, allowed = architecture.arrows_of_map(MAP), architecture.arrows_of_build(BUILD)
    assert len(drawn) > 20
    different = [
        f"{user} -> {used}: only in {'the map' if (user, used) in drawn else 'BUILD'}"
        for user, used in sorted(drawn ^ allowed)
    ]
    assert not different, explain(
        different,
        f"Change the table `folder | may use` of {architecture.MAP} or users_of_* in BUILD:",
    )


def test_every_include_between_folders_is_an_arrow():
    drawn = architecture.arrows_of_map(MAP)
    includes = architecture.includes_between_folders(REPOSITORY)
    assert len(includes) > 20
    wrong = [line for arrow, lines in includes.items() if arrow not in drawn for line in lines]
    assert not wrong, explain(
        wrong,
        "Move the code below its user, or pass what it needs as an argument. Only if the design"
        f" changes, add the arrow to {architecture.MAP} and to BUILD:",
    )


def test_every_folder_is_visible_to_its_package_group_only():
    folders = {user for user, _ in architecture.arrows_of_build(BUILD)} | {"base"}
    wrong = architecture.wrong_visibilities(REPOSITORY, folders)
    assert not wrong, explain(wrong, "Without the package group Bazel does not check the arrows:")


def test_readmes_list_every_source_file():
    missing = architecture.missing_in_readmes(REPOSITORY)
    assert not missing, explain(missing, "A README lists each source file of its folder:")


def test_readmes_list_every_subfolder():
    missing = architecture.missing_subfolders(REPOSITORY)
    assert not missing, explain(missing, "A README lists the subfolders of its folder:")


def test_readmes_list_only_files_that_exist():
    stale = architecture.stale_in_readmes(REPOSITORY)
    assert not stale, explain(stale, "A README lists only what is there:")


@pytest.mark.parametrize("document", ["docs/development.md", architecture.MAP, "CONTRIBUTING.md"])
def test_places_of_changes_are_where_the_document_says(document):
    wrong = architecture.missing_places(REPOSITORY, (REPOSITORY / document).read_text())
    assert not wrong, explain(wrong, f"Correct the places in {document}:")


@pytest.mark.parametrize(
    "document",
    architecture.repository_documents(REPOSITORY),
    ids=lambda path: str(path.relative_to(REPOSITORY)),
)
def test_documents_name_only_commands_that_the_binary_has(document):
    assert len(COMMANDS) > 20
    unknown = architecture.unknown_commands(document.read_text(), COMMANDS)
    assert not unknown, explain(
        unknown, "The sources add no such subcommand; correct the document:"
    )


def test_map_shows_every_process_that_the_binary_can_be():
    hidden = {name for name, is_hidden in COMMANDS.items() if is_hidden}
    assert len(hidden) >= 7
    missing = [name for name in sorted(hidden) if f"`{name}`" not in MAP]
    assert not missing, explain(
        missing, f"Add the process to the pictures and tables of {architecture.MAP}:"
    )


def test_map_counts_the_processes_of_a_migration():
    rows = architecture.table_with_header(MAP, "who", "program")
    number = re.search(r"has (\d+) processes of ppmr and CRIU", MAP).group(1)
    assert len(rows) == int(number), "Correct the number above the picture of the processes"
    ends = architecture.table_with_header(MAP, "who", "holds")
    named = {row[0] for row in rows} - {row[0] for row in ends}
    assert named == {"its helper"}, f"Say what they hold and what their death means: {named}"


# Each check finds its fault.


@pytest.fixture
def tree(tmp_path):
    """A correct small tree: `upper` may use `lower`."""
    files = {
        "BUILD": 'package_group(\n    name = "users_of_lower",\n    packages = [\n'
        '        "//",\n        "//lower/...",\n        "//tests/...",\n        "//upper/...",\n    ],\n)\n',
        "docs/architecture.md": "| folder | may use |\n| --- | --- |\n| `lower` | |\n"
        "| `upper` | `lower` |\n| `ppmr.cc` | `lower` |\n\n| `docs` | |\n",
        "lower/BUILD": 'package(default_visibility = ["//:users_of_lower"])\n',
        "lower/README.md": "| file | contents |\n| --- | --- |\n| `low` | |\n",
        "lower/low.h": "",
        "lower/low_test.cc": '#include "upper/high.h"\n',
        "upper/README.md": "| file | contents |\n| --- | --- |\n| `high.h`, `part/*` | |\n",
        "upper/high.h": '#include "lower/low.h"\n',
        "upper/part/inner.cc": 'app.add_subcommand("move", "Move");\n'
        'job.add_subcommand("init")->group("");\nadd_internal<X>(app, "hide", code);\n'
        'CLI::App& job = *app.add_subcommand("job", "Jobs");\n',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_correct_tree_has_no_fault(tree):
    text = (tree / "docs/architecture.md").read_text()
    assert architecture.arrows_of_map(text) == {("upper", "lower"), ("ppmr.cc", "lower")}
    assert architecture.arrows_of_build((tree / "BUILD").read_text()) == {
        ("upper", "lower"),
        ("ppmr.cc", "lower"),
    }
    assert {*architecture.includes_between_folders(tree)} == {("upper", "lower")}
    assert architecture.wrong_visibilities(tree, {"lower"}) == []
    assert architecture.missing_in_readmes(tree) == []
    assert architecture.missing_subfolders(tree) == []
    assert architecture.stale_in_readmes(tree) == []


def test_a_new_folder_is_missing_in_the_map(tree):
    (tree / "new").mkdir()
    text = (tree / "docs/architecture.md").read_text()
    assert "new" in architecture.top_folders(tree) - architecture.folders_in_map(text)


def test_an_include_upwards_is_found(tree):
    (tree / "lower/low.h").write_text('#include "upper/high.h"\n')
    assert architecture.includes_between_folders(tree)[("lower", "upper")] == [
        "lower/low.h includes upper/high.h"
    ]


def test_a_folder_that_everybody_may_use_is_found(tree):
    (tree / "lower/BUILD").write_text('package(default_visibility = ["//visibility:public"])\n')
    assert len(architecture.wrong_visibilities(tree, {"lower"})) == 1


def test_a_file_that_no_readme_lists_is_found(tree):
    (tree / "upper/other.cc").write_text("")
    (tree / "upper/part/schema.proto").write_text("")
    (tree / "upper/README.md").write_text(
        "| file | contents |\n| --- | --- |\n| `part/inner` | |\n"
    )
    assert [problem.split(":")[0] for problem in architecture.missing_in_readmes(tree)] == [
        "upper/high.h",
        "upper/other.cc",
        "upper/part/schema.proto",
    ]


def test_a_folder_row_lists_files_of_tests_but_not_of_the_program(tree):
    row = "| folder | contents |\n| --- | --- |\n| `part` | |\n"
    (tree / "tests/part").mkdir(parents=True)
    (tree / "tests/part/case.cc").write_text("")
    (tree / "tests/README.md").write_text(row)
    assert architecture.missing_in_readmes(tree) == []
    (tree / "upper/README.md").write_text(row)
    assert len(architecture.missing_in_readmes(tree)) == 2


def test_a_folder_without_a_readme_is_found(tree):
    (tree / "lower/README.md").unlink()
    assert architecture.missing_in_readmes(tree) == [
        "lower/low.h: write lower/README.md with a table `file | contents`"
    ]


def test_a_subfolder_that_its_parent_does_not_list_is_found(tree):
    (tree / "lower/deep").mkdir()
    (tree / "lower/deep/README.md").write_text("| file | contents |\n| --- | --- |\n| `pit` | |\n")
    (tree / "lower/deep/pit.h").write_text("")
    assert architecture.missing_in_readmes(tree) == []
    assert architecture.missing_subfolders(tree) == [
        "lower/deep: add a row for `deep` to lower/README.md"
    ]


def test_a_row_for_a_file_that_is_gone_is_found(tree):
    (tree / "lower/low.h").rename(tree / "upper/low.h")
    assert architecture.stale_in_readmes(tree) == [
        "lower/README.md: there is no `low`; name the file where it is now"
    ]


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("`Low::wait()` and `kLimit` in `lower/low.h`", []),
        ("`lower/low`, `upper/part/*` and `bazel-bin/x`, `other/thing`", []),
        ("see `lower/gone.h`", ["lower/gone.h: there is no such file or folder"]),
        (
            "`wait()` and `stop()` in `lower/low.h` and\n`upper/high.h`",
            ["stop(): it is not in lower/low.h", "wait(): it is not in upper/high.h"]
            + ["stop(): it is not in upper/high.h"],
        ),
        ("a counter (`Gone` (`lower/low.h`))", ["Gone: it is not in lower/low.h"]),
    ],
)
def test_a_place_that_is_not_there_is_found(tree, text, wrong):
    (tree / "lower/low.h").write_text("int kLimit;\nstruct Low { void wait(); };\n")
    assert architecture.missing_places(tree, text) == wrong


def test_subcommands_are_read_from_the_sources(tree):
    assert architecture.subcommands(tree) == {
        "ppmr move": False,
        "ppmr job": False,
        "ppmr job init": True,
        "ppmr hide": True,
    }


@pytest.mark.parametrize(
    "text, unknown",
    [
        ("Run `ppmr move` or `ppmr job\ninit`, ppmr moves.", []),
        ("Run `ppmr mvoe X`.", ["ppmr mvoe"]),
        ("Run `ppmr job start`.", ["ppmr job start"]),
        ("As root:\n\n    source# ppmr send /mnt\n", ["ppmr send"]),
        ("As root:\n\n```\nppmr send /mnt\n```\n", ["ppmr send"]),
    ],
)
def test_a_command_that_the_binary_lacks_is_found(tree, text, unknown):
    assert architecture.unknown_commands(text, architecture.subcommands(tree)) == unknown
