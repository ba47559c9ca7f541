"""The maintainer script that runs before the package is removed: it stops what runs, says what it
leaves, and refuses while a migration is not finished."""
import os

import pytest

from lab.node import wait_until
from lab.ppmr import find_ppmr
from lab.programs import REPOSITORY

PRERM = REPOSITORY / "debian/ppmr.prerm"


def with_ppmr(*first):
    """An environment whose PATH finds ppmr, and before it what is in these directories."""
    path = [*map(str, first), str(find_ppmr().parent), os.environ["PATH"]]
    return {**os.environ, "PATH": ":".join(path)}


@pytest.fixture
def records(nodes):
    """Hides the records of this machine from the node."""
    nodes.source.run(["mkdir", "-p", "/var/lib/ppmr"])
    nodes.source.run(["mount", "-t", "tmpfs", "-o", "mode=700", "none", "/var/lib/ppmr"])
    yield "/var/lib/ppmr"
    nodes.source.run(["umount", "/var/lib/ppmr"])


def test_removal_ends_every_daemon_and_says_what_it_leaves(nodes, records, mounts):
    (mounts.source_at.host_path(mounts.out) / "checkpoint").mkdir()
    done = nodes.source.run(["sh", PRERM, "remove"], env=with_ppmr())
    assert str(mounts.out) in done.stderr and "/var/lib/ppmr" in done.stderr, done.stderr
    wait_until(lambda: mounts.source.process.poll() is not None, 20, "the source to end")
    assert str(mounts.out) not in nodes.source.run(["cat", "/proc/self/mounts"]).stdout


@pytest.mark.parametrize("step", ["upgrade", "deconfigure", "failed-upgrade"])
def test_script_stops_nothing_in_other_steps_of_the_package(nodes, records, mounts, step):
    nodes.source.run(["sh", PRERM, step], env=with_ppmr())
    assert mounts.source.process.poll() is None
    assert mounts.source.status()["ok"]


def test_package_is_not_removed_while_a_migration_is_unfinished(tmp_path, nodes, records, mounts):
    """The stub stands for a migration that cannot be settled now."""
    stub = tmp_path / "ppmr"
    stub.write_text("#!/bin/sh\necho 'ppmr migrate: the other node is down' >&2\nexit 12\n")
    stub.chmod(0o755)
    environment = with_ppmr(tmp_path)
    done = nodes.source.run(["sh", PRERM, "remove"], env=environment, check=False)
    assert done.returncode == 1 and "--resolve ID" in done.stderr, done.stderr
    assert mounts.source.status()["ok"]
    anyway = {**environment, "PPMR_REMOVE_ANYWAY": "1"}
    nodes.source.run(["sh", PRERM, "remove"], env=anyway)
    wait_until(lambda: mounts.source.process.poll() is not None, 20, "the source to end")
