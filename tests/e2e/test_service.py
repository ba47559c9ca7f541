"""ppmr as a service: configuration files, the service manager, drain, fstab."""
import contextlib
import json
import os
import socket
import subprocess

import pytest

from lab import ppmr as lab_ppmr
from lab.node import free_port, wait_until
from lab.pace import patience
from lab.programs import REPOSITORY


def conf(path, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{name.replace('_', '-')} = {json.dumps(value)}" for name, value in options.items()]
    path.write_text("".join(line + "\n" for line in lines))
    return path


@pytest.fixture
def etc(lab, ppmr):
    """A directory with a key, and configuration files of a target and of a source."""
    directory = lab.home / "etc"
    directory.mkdir()
    subprocess.run([ppmr, "keygen", directory / "key"], check=True, capture_output=True)
    for name in ("in", "out"):
        (lab.home / name).mkdir()
    conf(
        directory / "target.conf",
        mountpoint=str(lab.home / "in"),
        listen="127.0.0.1:0",
        key_file=str(directory / "key"),
        pool_size="16MiB",
        allow_restart=True,
    )
    conf(
        directory / "source.d/out.conf",
        mountpoint=str(lab.home / "out"),
        target="127.0.0.1:1",
        key_file=str(directory / "key"),
    )
    conf(directory / "protect.d/db.conf", unit="db", to="two", every="10s")
    return directory


def check(ppmr, *arguments):
    done = subprocess.run([ppmr, "config", "check", *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_config_check_accepts_the_files_of_both_units(ppmr, etc):
    code, said = check(ppmr, "--directory", etc)
    assert (code, said.count(": good\n")) == (0, 3), said


@pytest.mark.parametrize(
    "options, message",
    [
        ({"lissten": "127.0.0.1:0"}, "`lissten` is not an option of ppmr target"),
        ({"pool_size": "many"}, "many"),
        ({"mountpoint": "/dev/null/x"}, "mount point /dev/null/x: Not a directory"),
        ({"key_file": "/missing"}, "/missing"),
        ({"key_file": ""}, "`key-file` has no value"),
        ({"listen": "127.0.0.1"}, "must be HOST:PORT"),
        ({"listen": "[::]:99999"}, "port must be a number up to 65535"),
    ],
)
def test_config_check_names_the_errors(ppmr, etc, options, message):
    old = etc / "target.conf"
    names = {name.replace("_", "-"): value for name, value in options.items()}
    kept = [line for line in old.read_text().splitlines() if line.split(" = ")[0] not in names]
    changed = [f"{name} = {json.dumps(value)}" for name, value in names.items()]
    old.write_text("\n".join([*kept, *changed, ""]))
    code, said = check(ppmr, old)
    assert code in (2, 3) and message in said and "BAD" in said, said


def test_config_check_refuses_an_option_that_occurs_twice(ppmr, etc):
    with open(etc / "target.conf", "a") as file:
        file.write("pool-size = 32MiB\n")
    code, said = check(ppmr, etc / "target.conf")
    assert code == 2 and "`pool-size` occurs twice" in said, said


def test_daemon_reports_to_the_service_manager_that_it_is_ready_alive_and_ending(lab, ppmr, etc):
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(lab.home / "notify"))
    manager.settimeout(20)
    environment = {
        **os.environ,
        "NOTIFY_SOCKET": str(lab.home / "notify"),
        "WATCHDOG_USEC": "200000",
    }
    daemon = subprocess.Popen(
        [ppmr, "target", "--config", etc / "target.conf", "-f"],
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert manager.recv(100) == b"READY=1"
        assert os.path.ismount(lab.home / "in")
        assert manager.recv(100) == manager.recv(100) == b"WATCHDOG=1"
        inherited = open(f"/proc/{daemon.pid}/environ").read()  # as it began
        assert "NOTIFY_SOCKET" in inherited
    finally:
        daemon.terminate()
        assert daemon.wait(20) == 0
    messages = []
    while "STOPPING=1" not in messages:
        messages.append(manager.recv(100).decode())
    manager.close()


def test_source_starts_before_its_target_and_says_what_it_waits_for(lab, ppmr, etc):
    address = f"127.0.0.1:{free_port()}"
    out, key = lab.home / "out", str(etc / "key")
    conf(etc / "source.d/out.conf", mountpoint=str(out), target=address, key_file=key)
    with contextlib.ExitStack() as ends:
        manager = ends.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        manager.bind(str(lab.home / "notify"))
        manager.settimeout(patience(20))

        def start(*words):
            environment = {**os.environ, "NOTIFY_SOCKET": str(lab.home / "notify")}
            daemon = subprocess.Popen([ppmr, *words, "-f"], env=environment, stderr=subprocess.DEVNULL)
            ends.callback(daemon.wait)
            ends.callback(daemon.terminate)

        start("source", "--config", etc / "source.d/out.conf", "--wait-for-target")
        said = manager.recv(1000).decode()
        assert said.startswith(f"STATUS=waits for its target: connect to {address}: Connection refused")
        assert "EXTEND_TIMEOUT_USEC=" in said
        assert not os.path.ismount(out)
        start("target", lab.home / "in", "--listen", address, "--key-file", key)
        wait_until(lambda: manager.recv(1000) == b"STATUS=", 20, "the source to connect", 0)
        wait_until(lambda: os.path.ismount(out), 20, "the mount")


def drain(mounts_or_path, ppmr, *options):
    return subprocess.run(
        [ppmr, "drain", mounts_or_path, *options], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("side", ["source", "target"])
def test_drained_mount_finishes_open_checkpoints_and_refuses_new_ones(mounts, side):
    daemon = getattr(mounts, side)
    at = mounts.source_at
    at.run(["mkdir", mounts.out / "open"])
    binary = lab_ppmr.find_ppmr()
    late = daemon.at.run([binary, "drain", daemon.mountpoint, "--timeout", "0.2"], check=False)
    assert late.returncode == 8, late
    refused = at.run(["mkdir", mounts.out / "new"], check=False)
    assert refused.returncode != 0 and "shutdown" in refused.stderr.lower(), refused
    assert daemon.status()["draining"] is True

    waiting = daemon.at.popen(
        [binary, "drain", daemon.mountpoint, "--json"], stdout=subprocess.PIPE
    )
    at.run(["sh", "-c", f"echo bytes >{mounts.out}/open/file"])
    assert waiting.poll() is None
    at.run([binary, "commit", mounts.out / "open"])
    assert json.loads(waiting.communicate(timeout=patience(20))[0])["draining"] is True

    daemon.at.run([binary, "drain", daemon.mountpoint, "--resume"])
    at.run(["mkdir", mounts.out / "new"])


def test_line_of_fstab_mounts_a_source_and_a_target(lab, ppmr, etc, tmp_path):
    helper = REPOSITORY / "debian/mount.fuse.ppmr"
    (tmp_path / "ppmr").symlink_to(ppmr)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    inside, outside = lab.home / "in", lab.home / "out"
    subprocess.run(
        [helper, etc / "target.conf", inside, "-o", "rw,nofail,log-file=/dev/null"],
        env=environment,
        check=True,
        timeout=30,
    )
    try:
        status = json.loads(subprocess.check_output([ppmr, "status", inside, "--json"]))
        subprocess.run(
            [helper, status["listen"], outside, "-o", f"rw,noauto,key-file={etc}/key"],
            env=environment,
            check=True,
            timeout=30,
        )
        try:
            (outside / "file").write_text("moved")
            wait_until(lambda: (inside / "file").exists(), 20, "the file to arrive")
        finally:
            subprocess.run(["fusermount3", "-u", outside], check=True)
    finally:
        subprocess.run(["fusermount3", "-u", inside], check=True)
        wait_until(lambda: not os.path.ismount(inside), 20, "the mount to end")
