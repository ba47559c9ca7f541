"""The Debian packages: built, checked by lintian, installed, upgraded and removed in a fresh root file system."""
import os
import re
import subprocess

import pytest

from lab.programs import REPOSITORY

pytestmark = [pytest.mark.xdist_group("package"), pytest.mark.first]
PACKAGES = REPOSITORY / "packages"


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(root):
    run(REPOSITORY / "package")
    return {path.name.split("_")[0]: path for path in PACKAGES.glob("*.deb")}


@pytest.fixture(scope="module")
def fresh_debian(root, tmp_path_factory, packages):
    """A root file system of Debian 12 with what the packages depend on, from the mirror of this machine."""
    directory = tmp_path_factory.mktemp("debian") / "root"
    depends = set()
    for path in packages.values():
        text = run("dpkg-deb", "--field", path, "Depends")
        depends |= {re.split(r"[ :(]", part)[0] for part in text.strip().split(", ") if part}
    mirror = os.environ.get("PPMR_DEBIAN_MIRROR", "http://deb.debian.org/debian")
    include = ",".join(sorted(depends - {"ppmr"}) + ["systemd"])
    options = ["--mode=root", "--variant=essential", f"--include={include}"]
    run("mmdebstrap", *options, "bookworm", directory, mirror, timeout=600)
    return directory


def in_root(directory, *command, check=True):
    done = subprocess.run(["chroot", directory, *command], capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def test_packages_are_those_of_the_documentation(packages):
    assert set(packages) == {"ppmr", "ppmr-dbgsym", "ppmr-slurm"}


def test_lintian_has_no_complaint(packages):
    run("lintian", "--fail-on=error,warning", *packages.values())


def test_two_builds_give_the_same_bytes(packages):
    before = {name: path.read_bytes() for name, path in packages.items()}
    run(REPOSITORY / "package")
    assert before == {name: path.read_bytes() for name, path in packages.items()}


def test_units_pass_systemd_analyze(packages, tmp_path):
    run("dpkg-deb", "--extract", packages["ppmr"], tmp_path)
    units = sorted((tmp_path / "lib/systemd/system").iterdir())
    assert [unit.name for unit in units] == ["ppmr-source@.service", "ppmr-target.service"]
    for unit in units:
        text = unit.read_text().replace("/usr/bin/ppmr", str(tmp_path / "usr/bin/ppmr"))
        (tmp_path / unit.name.replace("@", "@x")).write_text(text)
        run("systemd-analyze", "verify", "--man=no", tmp_path / unit.name.replace("@", "@x"))


def test_manual_pages_have_no_warning(packages, tmp_path):
    run("dpkg-deb", "--extract", packages["ppmr"], tmp_path)
    pages = sorted((tmp_path / "usr/share/man/man8").iterdir())
    assert len(pages) == len([*(REPOSITORY / "docs/man").glob("*.8.md")])
    for page in pages:
        done = subprocess.run(
            ["man", "-l", "--warnings", page], capture_output=True, text=True, check=True
        )
        assert done.stderr == "" and "NAME" in done.stdout


def test_package_installs_upgrades_and_goes_without_a_trace(packages, fresh_debian):
    root = fresh_debian
    for path in packages.values():
        run("cp", path, root / "var")
    before = set(os.listdir(root / "etc"))
    in_root(root, "dpkg", "--install", f"/var/{packages['ppmr'].name}")
    assert in_root(root, "ppmr", "--version").stdout.startswith("ppmr ")
    assert "not found" not in in_root(root, "ldd", "/usr/bin/ppmr").stdout
    assert "ppmr:" in (root / "etc/passwd").read_text()
    assert oct((root / "etc/ppmr").stat().st_mode)[-3:] == "700"
    missing = in_root(root, "ppmr", "config", "check", check=False)
    assert missing.returncode == 2 and "there is none" in missing.stderr
    in_root(root, "ppmr", "keygen", "/etc/ppmr/key")
    in_root(root, "mkdir", "-p", "/run/ppmr/in")
    in_root(root, "cp", "/usr/share/ppmr/target.conf", "/etc/ppmr/target.conf")
    in_root(root, "ppmr", "config", "check")

    # An upgrade keeps configuration and records; a downgrade is refused.
    (root / "var/lib/ppmr/record").write_text("kept")
    in_root(root, "dpkg", "--install", f"/var/{packages['ppmr'].name}")
    assert (root / "var/lib/ppmr/record").read_text() == "kept"
    run(
        "sed",
        "-i",
        r"/^Package: ppmr$/,/^$/ s/^Version: .*/Version: 99/",
        root / "var/lib/dpkg/status",
    )
    refused = in_root(root, "dpkg", "--install", f"/var/{packages['ppmr'].name}", check=False)
    assert refused.returncode != 0 and "this package is older" in refused.stderr
    run(
        "sed",
        "-i",
        r"/^Package: ppmr$/,/^$/ s/^Version: .*/Version: 0/",
        root / "var/lib/dpkg/status",
    )
    in_root(root, "dpkg", "--install", f"/var/{packages['ppmr'].name}")

    in_root(root, "dpkg", "--remove", "ppmr")
    assert (root / "etc/ppmr/key").exists() and not (root / "usr/bin/ppmr").exists()
    in_root(root, "dpkg", "--purge", "ppmr")
    assert not (root / "etc/ppmr").exists() and not (root / "var/lib/ppmr").exists()
    assert set(os.listdir(root / "etc")) - before <= {"systemd", "tmpfiles.d"}
