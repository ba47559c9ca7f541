"""Fixtures of the end-to-end tests.

    ppmr              path of the binary under test ($PPMR, else bazel-bin/ppmr)
    lab               a laboratory (tests/lab) without nodes; it ends with the test
    nodes             two nodes, `nodes.source` and `nodes.target`, joined by `nodes.link`
    mounts            both ppmr mounts on these nodes
    migrations        lab.migrations.Migrations on these nodes
    make_migrations(**options)    the same with options
    checker           lab.checker.Checker, a process on the source that checks its memory
    world             lab.world.World in a temporary directory
    machines          two virtual machines with RDMA devices (tests/vm), `machines.a` and `.b`: one
                      laboratory for the whole run; both machines and their link are up before each
                      test
    authority         lab.certificates.Authority, which issues certificates
    root_file_system  the root of a container: a shell, sleep and writable directories
    own_cgroup        a name for control groups; request it before the nodes
    packages          {name: path} of the Debian packages, built once. Tests with these three
                      fixtures belong to the xdist_group "package"
    fresh_debian      a root file system of Debian 12, in which apt has downloaded what they depend
                      on
    two_machines      two such machines with systemd, joined by a link
    long              whether --long was given

A test is skipped, with the reason, if CRIU, root or a program is missing. `--way=tmpfs` runs the
moves of test_moves.py by tmpfs and tar: a test that fails with it, too, does not fail because of
ppmr.

Parallel runs: `-n 3 --dist loadgroup` (pytest-xdist). Tests with the mark xdist_group("NAME") run
one after the other in one process, because they share something: the virtual machines, stopped
daemons on this machine, a benchmark's quiet.
"""
import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab import debian_packages  # noqa: E402
from lab import node as lab_node  # noqa: E402
from lab import ppmr as lab_ppmr  # noqa: E402
from lab.certificates import Authority  # noqa: E402
from lab.checker import Checker  # noqa: E402
from lab.migrations import Migrations  # noqa: E402
from lab.node import wait_until  # noqa: E402
from lab.pace import slowness  # noqa: E402
from lab.world import World  # noqa: E402
from vm.image import CannotRun  # noqa: E402
from vm.virtual_lab import VirtualLab  # noqa: E402


def pytest_addoption(parser):
    parser.addoption(
        "--way",
        choices=["ppmr", "tmpfs"],
        default="ppmr",
        help="how test_moves.py moves processes",
    )
    parser.addoption(
        "--long", action="store_true", help="full sizes and counts, and the tests marked `long`"
    )


def pytest_configure(config):
    lab_ppmr.TARGET_DEFAULTS["--pool-size"] = "64MiB"
    config.addinivalue_line("markers", "long: runs only with --long")
    config.addinivalue_line("markers", "first: takes long, so a parallel run starts it first")
    config.addinivalue_line("markers", "xdist_group(name): one process runs the tests of a group")


def pytest_report_header():
    # Measured before the processes of a parallel run start, which inherit it.
    return f"pace: this machine is {slowness():.2f} times slower than the reference (lab/pace.py)"


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config, items):
    for item in items:
        if "virtual_lab" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("machines"))
    if not config.getoption("--long"):
        deselected = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    if hasattr(config, "workerinput"):  # a process of a parallel run
        items.sort(key=_start)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    """Writes the names of all tests of the run into $PPMR_COLLECTED, so that tests/tally.py can
    name those that did not run."""
    worker = getattr(session.config, "workerinput", {"workerid": "gw0"})["workerid"]
    if "PPMR_COLLECTED" in os.environ and worker == "gw0" and session.items:
        names = "".join(f"{item.nodeid}\n" for item in session.items)
        Path(os.environ["PPMR_COLLECTED"]).write_text(names)


TOO_LATE = "did not run: the time is over"  # tests/tally.py names these tests


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Begins no test after $PPMR_TEST_UNTIL (Unix time)."""
    until = os.environ.get("PPMR_TEST_UNTIL")
    if until and time.time() > float(until):
        pytest.skip(TOO_LATE)


def _start(item):
    """The position in a parallel run: the longest tests start first."""
    if "virtual_lab" in item.fixturenames:
        return 0
    return 1 if item.get_closest_marker("first") else 2


@pytest.fixture(scope="session")
def long(request):
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
def make_migrations(ppmr, lab, nodes):
    with contextlib.ExitStack() as open_ones:

        def make(**options):
            made = Migrations(nodes.source, nodes.target, lab.directory / "private", **options)
            return open_ones.enter_context(made)

        yield make


@pytest.fixture
def migrations(make_migrations):
    return make_migrations()


@pytest.fixture
def checker(lab, nodes):
    checker = Checker(lab, nodes)
    yield checker
    checker.end()


@pytest.fixture
def world(ppmr, tmp_path):
    world = World(tmp_path)
    yield world
    world.close()


@pytest.fixture
def need_command():
    def need(name):
        if not shutil.which(name):
            pytest.skip(f"{name} is not installed")
        return name

    return need


@pytest.fixture
def authority(need_command, tmp_path):
    need_command("openssl")
    return Authority(tmp_path / "authority")


@pytest.fixture
def root_file_system(lab, need_command):
    root = lab.home / "rootfs"
    for directory in ("bin", "data", "dev", "etc", "proc", "run", "sys", "tmp", "var"):
        (root / directory).mkdir(parents=True)
    shutil.copy(shutil.which(need_command("busybox")), root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    return root


@pytest.fixture
def own_cgroup():
    """A name for the control groups of a test.

    Nodes share control groups, and the tools leave them behind, so each test needs its own name.
    Request this fixture before the nodes: the nodes must end before their control groups can be
    removed.
    """
    name = f"ppmr-test-{os.getpid()}"
    yield name

    def removed():
        try:
            left = [
                Path(place)
                for top in Path("/sys/fs/cgroup").glob(f"**/{name}*")
                for place, _, _ in os.walk(top)
            ]
        except FileNotFoundError:
            return False  # another program removed a group during the search
        for directory in sorted(left, key=lambda path: -len(path.parts)):
            try:
                directory.rmdir()
            except OSError:
                return False  # a process in it has not ended yet
        return True

    wait_until(removed, 10, f"the control groups {name} to be empty")


@pytest.fixture(scope="session")
def virtual_lab(root):
    # Emulated machines are slow and finish last in a parallel run, so they get a higher priority.
    os.nice(-3)
    try:
        lab = VirtualLab(results=Path(__file__).resolve().parents[2] / "test-results/vm")
    except CannotRun as why:
        pytest.skip(f"NOTHING WAS TESTED ON TWO MACHINES: {why}")
    with lab:
        yield lab


@pytest.fixture
def machines(virtual_lab):
    virtual_lab.repair()
    return virtual_lab


@pytest.fixture(scope="session")
def packages(root):
    return debian_packages.build_packages()


@pytest.fixture(scope="session")
def fresh_debian(packages, tmp_path_factory):
    directory = tmp_path_factory.mktemp("debian") / "root"
    debian_packages.make_root(directory, packages)
    return directory


@pytest.fixture
def two_machines(packages, fresh_debian, tmp_path):
    with debian_packages.two_machines(packages, fresh_debian, tmp_path) as machines:
        yield machines
