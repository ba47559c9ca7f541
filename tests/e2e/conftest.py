"""Fixtures of the end-to-end tests.

    ppmr              path of the binary under test ($PPMR, else bazel-bin/ppmr)
    lab               a laboratory (tests/lab): nodes can be added to it; everything in it ends with the test
    nodes             two nodes, `nodes.source` and `nodes.target`, joined by `nodes.link`
    mounts            both ppmr mounts on these nodes
    loopback_mounts   both mounts in the host's own namespaces, joined over 127.0.0.1: plain paths, `loopback_mounts.out` and `.in_`
    machines          two virtual machines with RDMA devices (tests/vm), `machines.a` and `.b`; one laboratory for the whole run, whole before each test
    root_file_system  what a container needs: a shell, sleep and somewhere to write
    own_cgroup        a name for control groups; to be asked for before the nodes
    make_loopback_mounts(source_options=[], target_options=[])    the same with options; several may be up at once

A test that needs CRIU, root or a program that is missing is skipped and says so. `--way=tmpfs` runs the moves by tmpfs and tar instead of ppmr:
whatever fails then, too, is not ppmr's doing.
"""
import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab import node as lab_node  # noqa: E402
from lab import ppmr as lab_ppmr  # noqa: E402
from lab.node import wait_until  # noqa: E402
from vm.image import CannotRun  # noqa: E402
from vm.virtual_lab import VirtualLab  # noqa: E402


def pytest_addoption(parser):
    parser.addoption(
        "--way",
        choices=["ppmr", "tmpfs"],
        default="ppmr",
        help="how the moves of test_moves.py are done",
    )
    parser.addoption(
        "--long", action="store_true", help="full sizes and counts, and the rarer variants"
    )


@pytest.fixture(scope="session")
def long(request):
    """Whether full sizes and counts are requested."""
    return request.config.getoption("--long")


@pytest.fixture(scope="session", autouse=True)
def root():
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts, namespaces and CRIU")


@pytest.fixture(scope="session")
def ppmr():
    return lab_ppmr.find_ppmr()


@pytest.fixture
def lab():
    with lab_node.Lab() as lab:
        yield lab


@pytest.fixture
def nodes(lab):
    return lab.pair()


@pytest.fixture
def mounts(ppmr, lab, nodes):
    with lab_ppmr.Mounts(nodes.source, nodes.target, lab.directory / "private") as mounts:
        yield mounts


@pytest.fixture
def make_loopback_mounts(ppmr, tmp_path):
    if not Path("/dev/fuse").exists():
        pytest.skip("no /dev/fuse")
    made = []

    def make(source_options=(), target_options=()):
        directory = tmp_path / f"mounts-{len(made)}"
        made.append(
            lab_ppmr.Mounts(lab_node.HOST, lab_node.HOST, directory, source_options, target_options)
        )
        return made[-1]

    yield make
    for mounts in made:
        mounts.close()


@pytest.fixture
def loopback_mounts(make_loopback_mounts):
    return make_loopback_mounts()


@pytest.fixture
def need_command():
    def need(name):
        if not shutil.which(name):
            pytest.skip(f"{name} is not installed")
        return name

    return need


@pytest.fixture
def root_file_system(lab, need_command):
    """What a container needs: a shell, sleep and somewhere to write."""
    root = lab.home / "rootfs"
    for directory in ("bin", "data", "dev", "etc", "proc", "run", "sys", "tmp", "var"):
        (root / directory).mkdir(parents=True)
    shutil.copy(shutil.which(need_command("busybox")), root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    return root


@pytest.fixture
def own_cgroup():
    """A name for control groups: the one thing here that is not a node's own, and the tools leave some of it behind. To be asked for before
    the nodes, so that it goes after what runs in it."""
    name = f"ppmr-test-{os.getpid()}"
    yield name

    def removed():
        left = [
            Path(place)
            for top in Path("/sys/fs/cgroup").glob(f"**/{name}*")
            for place, _, _ in os.walk(top)
        ]
        for directory in sorted(left, key=lambda path: -len(path.parts)):
            try:
                directory.rmdir()
            except OSError:
                return False  # what is in it has not quite ended
        return True

    wait_until(removed, 10, f"the control groups {name} to be empty")


@pytest.fixture(scope="session")
def virtual_lab(root):
    try:
        lab = VirtualLab(results=Path(__file__).resolve().parents[2] / "test-results/vm")
    except CannotRun as why:
        pytest.skip(f"NOTHING WAS TESTED ON TWO MACHINES: {why}")
    with lab:
        yield lab


@pytest.fixture
def machines(virtual_lab):
    virtual_lab.make_whole()
    return virtual_lab
