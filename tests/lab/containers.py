"""Containers that count, for runc and podman."""
import json
import shutil

from .node import wait_until

COUNT = "n=0; while :; do n=$((n + 1)); echo $n; busybox sleep 0.01; done >/data/lines 2>/dev/null"


class Counter:
    """A container that counts into a file of `data`, which both nodes share. A correct file is one
    unbroken sequence."""

    def __init__(self, data):
        self.file = data / "lines"

    def lines(self):
        text = self.file.read_text() if self.file.exists() else ""
        return text[: text.rfind("\n") + 1].split()

    def wait_for(self, more):
        wanted = len(self.lines()) + more
        wait_until(lambda: len(self.lines()) >= wanted, 20, f"the container to count to {wanted}")

    def check(self):
        lines = self.lines()
        assert lines == [str(number) for number in range(1, len(lines) + 1)]


def podman_script(directory, storage):
    """Makes a `podman` in `directory` that has runc as its runtime and private storage."""
    script = directory / "podman"
    script.write_text(
        f"#!/bin/sh\nexec {shutil.which('podman')} --runtime runc --cgroup-manager cgroupfs "
        f'--events-backend file --root {storage} --runroot /run/podman "$@"\n'
    )
    script.chmod(0o755)
    return script


def make_bundle(node, directory, root, data, cgroup):
    """Makes a runc bundle whose container counts into a file of `data`."""
    node.run(["mkdir", directory])
    node.run(["runc", "spec", "--bundle", directory])
    path = node.host_path(directory / "config.json")
    config = json.loads(path.read_text())
    config["process"].update(terminal=False, args=["sh", "-c", COUNT])
    config["root"] = {"path": str(root), "readonly": True}
    config["mounts"].append(
        {"destination": "/data", "type": "bind", "source": str(data), "options": ["bind", "rw"]}
    )
    config["linux"]["cgroupsPath"] = f"/{cgroup}"
    # The container uses the node's network namespace, because moving another one requires iptables.
    config["linux"]["namespaces"] = [
        entry for entry in config["linux"]["namespaces"] if entry["type"] != "network"
    ]
    path.write_text(json.dumps(config))
