"""Containers and copies through the mounts, with the commands of the documentation."""
import hashlib
import json
import random

import pytest

from lab.containers import COUNT, Counter, make_bundle, podman_script
from lab.node import LabError
from lab.ppmr import Mounts
from lab.readme import commands_of, environment, run_command, run_section


def test_documented_runc_commands_move_a_container(
    own_cgroup, lab, nodes, mounts, need_command, root_file_system
):
    need_command("runc")
    data, bundle = lab.home / "data", lab.home / "bundle"
    data.mkdir()
    make_bundle(nodes.source, bundle, root_file_system, data, own_cgroup)
    counter = Counter(data)
    try:
        run_command(mounts, "source", f"runc run --detach --bundle {bundle} job >/dev/null 2>&1")
        counter.wait_for(30)
        run_section(mounts, "With runc by hand", BUNDLE=bundle)
        assert '"job"' not in run_command(
            mounts, "source", "runc list --format json"
        ), "the container is still on the source"
        assert (
            json.loads(run_command(mounts, "target", "runc list --format json"))[0]["status"]
            == "running"
        )
        counter.wait_for(30)
        counter.check()
    finally:
        for where in ("source", "target"):
            run_command(mounts, where, "runc delete --force job")


@pytest.fixture
def podman(own_cgroup, lab, nodes, need_command, tmp_path):
    """A `podman` with runc as its runtime and private storage on each node."""
    need_command("podman")
    need_command("runc")
    directory = tmp_path / "bin"
    directory.mkdir()
    return podman_script(directory, f"{lab.directory}/private/storage")


def start_in_podman(mounts, podman, root, data, cgroup, lab):
    """Loads the same image on both nodes and starts a container named job on the source."""
    path = {"PATH": f"{podman.parent}:{environment()['PATH']}"}
    run_command(
        mounts,
        "source",
        f"tar -C {root} -c . | podman import - localhost/counter && podman save -o {lab.home}/image.tar localhost/counter",
        **path,
    )
    run_command(mounts, "target", f"podman load -i {lab.home}/image.tar", **path)
    run_command(
        mounts,
        "source",
        f"podman run --detach --name job --network none --log-driver none --cgroup-parent /{cgroup} --volume {data}:/data "
        f"localhost/counter sh -c '{COUNT}'",
        **path,
    )
    return path


def test_documented_podman_commands_move_a_container(
    own_cgroup, lab, nodes, mounts, podman, root_file_system
):
    data = lab.home / "data"
    data.mkdir()
    path = start_in_podman(mounts, podman, root_file_system, data, own_cgroup, lab)
    counter = Counter(data)
    try:
        counter.wait_for(30)
        run_section(mounts, "With podman", **path)
        assert "Up" in run_command(
            mounts, "target", "podman ps --all --format '{{.Status}}'", **path
        )
        counter.wait_for(30)
        counter.check()
    finally:
        for where in ("source", "target"):
            run_command(mounts, where, "podman rm --force --time 0 --all", **path)


def test_podman_restore_fails_cleanly_if_target_frees_bytes_after_first_read(
    own_cgroup, lab, nodes, podman, root_file_system
):
    """podman reads the archive twice, so it must report an error and start no container."""
    data = lab.home / "data"
    data.mkdir()
    with Mounts(
        nodes.source, nodes.target, lab.directory / "private", target_options=["--consume"]
    ) as mounts:
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
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_documented_tar_dd_and_rsync_commands_copy_files_through_mounts(
    lab, nodes, mounts, need_command
):
    need_command("rsync")
    random.seed(7)
    files, copy, image = lab.home / "files", lab.home / "copy", lab.home / "image"
    (files / "below").mkdir(parents=True)
    copy.mkdir()
    for name, size in (
        ("empty", 0),
        ("small", 5),
        ("page", 4096),
        ("below/large", (5 << 20) + 123),
    ):
        (files / name).write_bytes(random.randbytes(size))
    image.write_bytes(random.randbytes((9 << 20) + 1))
    run_section(mounts, "With tar, dd, rsync", FILES=files, COPY=copy, IMAGE=image)
    expected = digests_below(files)
    assert {
        name: digest
        for name, digest in digests_below(copy).items()
        if not name.startswith("rsync/") and name != "image"
    } == expected
    assert digests_below(copy / "rsync") == expected
    assert (
        hashlib.sha256((copy / "image").read_bytes()).digest()
        == hashlib.sha256(image.read_bytes()).digest()
    )
