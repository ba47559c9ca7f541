"""Containers and copies through the mounts, with the very commands of the README."""
import hashlib
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from lab.node import LabError, wait_until
from lab.ppmr import Mounts
from lab.readme import commands_of, environment, run_command, run_section

COUNT = "n=0; while :; do n=$((n + 1)); echo $n; busybox sleep 0.01; done >/data/lines 2>/dev/null"


class Counter:
    """A container that counts into a file of `data`, which both nodes see: one unbroken sequence, or something was lost or done twice."""

    def __init__(self, data):
        self.file = data / "lines"

    def lines(self):
        text = self.file.read_text() if self.file.exists() else ""
        return text[:text.rfind("\n") + 1].split()

    def wait_for(self, more):
        wanted = len(self.lines()) + more
        wait_until(lambda: len(self.lines()) >= wanted, 20, f"the container to count to {wanted}")

    def check(self):
        lines = self.lines()
        assert lines == [str(number) for number in range(1, len(lines) + 1)]


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
        left = [Path(place) for top in Path("/sys/fs/cgroup").glob(f"**/{name}*") for place, _, _ in os.walk(top)]
        for directory in sorted(left, key=lambda path: -len(path.parts)):
            try:
                directory.rmdir()
            except OSError:
                return False  # what is in it has not quite ended
        return True
    wait_until(removed, 10, f"the control groups {name} to be empty")


def runc_bundle(node, directory, root, data, cgroup):
    directory.mkdir()
    node.run(["runc", "spec", "--bundle", directory])
    config = json.loads((directory / "config.json").read_text())
    config["process"].update(terminal=False, args=["sh", "-c", COUNT])
    config["root"] = {"path": str(root), "readonly": True}
    config["mounts"].append({"destination": "/data", "type": "bind", "source": str(data), "options": ["bind", "rw"]})
    config["linux"]["cgroupsPath"] = f"/{cgroup}"
    # Nodes have a network of their own already; one more, with its loopback alone, needs iptables to be moved.
    config["linux"]["namespaces"] = [entry for entry in config["linux"]["namespaces"] if entry["type"] != "network"]
    (directory / "config.json").write_text(json.dumps(config))


def test_runc(own_cgroup, lab, nodes, mounts, need_command, root_file_system):
    need_command("runc")
    data, bundle = lab.home / "data", lab.home / "bundle"
    data.mkdir()
    runc_bundle(nodes.source, bundle, root_file_system, data, own_cgroup)
    counter = Counter(data)
    try:
        run_command(mounts, "source", f"runc run --detach --bundle {bundle} job >/dev/null 2>&1")
        counter.wait_for(30)
        run_section(mounts, "With runc", BUNDLE=bundle)
        assert '"job"' not in run_command(mounts, "source", "runc list --format json"), "the container is still on the source"
        assert json.loads(run_command(mounts, "target", "runc list --format json"))[0]["status"] == "running"
        counter.wait_for(30)
        counter.check()
    finally:
        for where in ("source", "target"):
            run_command(mounts, where, "runc delete --force job")


@pytest.fixture
def podman(own_cgroup, lab, nodes, need_command, tmp_path):
    """A `podman` for the commands of a test: with the runtime that knows checkpoints, storage of its own on each node, no trace on the host."""
    real = shutil.which(need_command("podman"))
    need_command("runc")
    wrapper = tmp_path / "bin/podman"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {real} --runtime runc --cgroup-manager cgroupfs --events-backend file '
                       f'--root {lab.directory}/private/storage --runroot /run/podman "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def start_in_podman(mounts, podman, root, data, cgroup, lab):
    """The same image on both nodes, a container named job on the source."""
    path = {"PATH": f"{podman.parent}:{environment()['PATH']}"}
    run_command(mounts, "source", f"tar -C {root} -c . | podman import - localhost/counter && podman save -o {lab.home}/image.tar localhost/counter", **path)
    run_command(mounts, "target", f"podman load -i {lab.home}/image.tar", **path)
    run_command(mounts, "source", f"podman run --detach --name job --network none --log-driver none --cgroup-parent /{cgroup} --volume {data}:/data "
                f"localhost/counter sh -c '{COUNT}'", **path)
    return path


def test_podman(own_cgroup, lab, nodes, mounts, podman, root_file_system):
    data = lab.home / "data"
    data.mkdir()
    path = start_in_podman(mounts, podman, root_file_system, data, own_cgroup, lab)
    counter = Counter(data)
    try:
        counter.wait_for(30)
        run_section(mounts, "With podman", **path)
        assert "Up" in run_command(mounts, "target", "podman ps --all --format '{{.Status}}'", **path)
        counter.wait_for(30)
        counter.check()
    finally:
        for where in ("source", "target"):
            run_command(mounts, where, "podman rm --force --time 0 --all", **path)


def test_podman_cannot_read_from_a_consuming_target(own_cgroup, lab, nodes, podman, root_file_system):
    """The README says so; and it has to end in an error, not in a container that lacks something."""
    data = lab.home / "data"
    data.mkdir()
    with Mounts(nodes.source, nodes.target, lab.directory / "private", target_options=["--consume"]) as mounts:
        path = start_in_podman(mounts, podman, root_file_system, data, own_cgroup, lab)
        try:
            Counter(data).wait_for(5)
            *at_source, (where, restore) = commands_of("With podman")
            for place, command in at_source:
                run_command(mounts, place, command, **path)
            assert where == "target"
            with pytest.raises(LabError, match="ended with"):
                run_command(mounts, where, restore, **path)
            assert run_command(mounts, "target", "podman ps --quiet", **path).strip() == ""
        finally:
            for place in ("source", "target"):
                run_command(mounts, place, "podman rm --force --time 0 --all", **path)


def digests_below(directory):
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_tar_dd_and_rsync(lab, nodes, mounts, need_command):
    need_command("rsync")
    random.seed(7)
    files, copy, image = lab.home / "files", lab.home / "copy", lab.home / "image"
    (files / "below").mkdir(parents=True)
    copy.mkdir()
    for name, size in (("empty", 0), ("small", 5), ("page", 4096), ("below/large", (5 << 20) + 123)):
        (files / name).write_bytes(random.randbytes(size))
    image.write_bytes(random.randbytes((9 << 20) + 1))
    run_section(mounts, "With tar, dd, rsync", FILES=files, COPY=copy, IMAGE=image)
    expected = digests_below(files)
    assert {name: digest for name, digest in digests_below(copy).items() if not name.startswith("rsync/") and name != "image"} == expected
    assert digests_below(copy / "rsync") == expected
    assert hashlib.sha256((copy / "image").read_bytes()).digest() == hashlib.sha256(image.read_bytes()).digest()
