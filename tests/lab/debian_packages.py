"""The Debian packages of this tree, and fresh root file systems to install the packages in."""
import contextlib
import os
import subprocess

from .debian_machine import DebianMachine, link
from .programs import REPOSITORY

# Programs that the tests run there, and packages that docs/tutorial.md installs. The packages of
# ppmr do not depend on them.
_PROGRAMS = ["systemd", "runc", "busybox-static", "curl", "procps"]


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_packages():
    """Returns {name: path}."""
    run(REPOSITORY / "package")
    return {path.name.split("_")[0]: path for path in (REPOSITORY / "packages").glob("*.deb")}


def make_root(directory, packages, more=()):
    """Returns a root file system of Debian 12, from the mirror of this machine. `more`: packages of
    Debian to install.

    What the packages depend on is not installed, but apt has downloaded it: its machines have no
    network.
    """
    mirror = os.environ.get("PPMR_DEBIAN_MIRROR", "http://deb.debian.org/debian")
    options = ["--mode=root", "--variant=apt", "--skip=cleanup/apt"]
    include = f"--include={','.join([*_PROGRAMS, *more])}"
    run("mmdebstrap", *options, include, "bookworm", directory, mirror, timeout=600)
    for path in packages.values():
        run("cp", path, directory / "root")
    apt = ["chroot", directory, "apt-get", "install", "--yes", "--download-only"]
    run(*apt, *(f"/root/{path.name}" for path in packages.values()), timeout=600)


@contextlib.contextmanager
def copy_of(root, home):
    """Returns a root file system that a test may change: a layer over `root`, in memory."""
    home.mkdir()
    with contextlib.ExitStack() as ends:
        run("mount", "-t", "tmpfs", "tmpfs", home)
        ends.callback(run, "umount", "-l", home)
        for directory in ("changes", "work", "root"):
            (home / directory).mkdir()
        layers = f"lowerdir={root},upperdir={home}/changes,workdir={home}/work"
        run("mount", "-t", "overlay", "overlay", "-o", layers, home / "root")
        ends.callback(run, "umount", "-l", home / "root")
        yield home / "root"


@contextlib.contextmanager
def two_machines(packages, root, home, shared=()):
    """Two empty Debian machines with systemd, joined by a link. Each has the packages in /root.
    `shared`: directories that both have in common, with their content in `root`.
    """
    with contextlib.ExitStack() as ends:
        machines = []
        in_common = {}
        for number, directory in enumerate(shared):
            in_common[home / f"shared-{number}"] = directory
            run("cp", "-a", f"{root}{directory}", home / f"shared-{number}")
        for name in ("one", "two"):
            copy = ends.enter_context(copy_of(root, home / name))
            (copy / "etc/hostname").write_text(name + "\n")
            machines.append(DebianMachine(copy, name, shared=in_common))
            ends.callback(machines[-1].stop)
        link(*machines)
        yield machines
