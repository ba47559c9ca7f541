"""The daemons run without rights after their set-up; what a target restores has the rights that it
had."""

import os
import pwd
import resource
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from lab.node import HOST, free_port, wait_until
from lab.ppmr import Daemon, find_ppmr
from lab.workers import check_moved, start_workers
from lab.world import MIB

SMALL_POOL = ["--pool-size", "4MiB"]
SMALL_STORE = ["--memory-limit", "64MiB"]
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
RIGHTS = (*SETS, "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters")


def rights(pid):
    """Returns the fields of /proc/PID/status about the rights of a process of this machine, by
    name.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: fields[name].split() for name in RIGHTS}


def helper_of(pid):
    """Returns the privileged helper of the daemon with this pid, or None if there is none."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"privileged-helper" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    return None


@pytest.mark.parametrize("role", ["source", "target"])
def test_daemons_run_without_rights_and_report_that(world, role):
    target = world.target()
    daemon = target if role == "target" else world.source(target, *SMALL_POOL)
    own = rights(daemon.host_pid)
    assert all(int(own[name][0], 16) == 0 for name in SETS), own
    assert "0" not in own["Uid"] + own["Gid"] + own["Groups"]
    assert (own["NoNewPrivs"], own["Seccomp"]) == (["1"], ["2"])
    seen = world.status(daemon.mountpoint)["confinement"]
    assert [str(seen["uid"])] * 4 == own["Uid"]
    assert (seen["capabilities"], seen["no_new_privs"], seen["seccomp"]) == ("none", True, True)
    text = world.succeeds([find_ppmr(), "status", daemon.mountpoint]).out
    assert "capabilities: none, no_new_privs on, seccomp on, landlock" in text
    # Other processes of this user cannot even read these files.
    for name in ("mem", "maps", "environ", "fd"):
        assert os.stat(f"/proc/{daemon.host_pid}/{name}").st_uid == 0


def test_daemons_do_not_share_a_user(world):
    if "ppmr" in [account.pw_name for account in pwd.getpwall()]:
        pytest.skip("this machine has the user ppmr, which all daemons share")
    targets = [world.target() for _ in range(2)]
    daemons = [*targets, *(world.source(targets[0], *SMALL_POOL) for _ in range(2))]
    users = {world.status(daemon.mountpoint)["confinement"]["uid"] for daemon in daemons}
    assert len(users) == 4


def test_daemons_run_as_the_user_that_was_named(world):
    target = world.target("--user", "nobody")
    source = world.source(target, "--user", "nobody", *SMALL_POOL)
    for daemon in (source, target):
        assert world.status(daemon.mountpoint)["confinement"]["user"] == "nobody"
    world.write(source.mountpoint / "file", MIB).succeeds()
    for name, message in (("root", "does not run as root"), ("no-such-user", "no such user")):
        for role, address in (("target", "--listen"), ("source", "--target")):
            words = [role, world.mountpoint(), address, "127.0.0.1:0", "--user", name]
            refused = world.ppmr(*words, within=10)
            assert refused.code == 2 and message in refused.err, refused.err


def control_socket(daemon):
    mounted = daemon.at.mountinfo().split(f" {daemon.mountpoint} ")[1]
    return Path(mounted.split(" - ")[1].split()[1])


@pytest.mark.parametrize("role", ["source", "target"])
def test_helper_keeps_its_rights_and_ends_with_its_daemon(world, role):
    def start():
        target = world.target()
        return target if role == "target" else world.source(target, *SMALL_POOL)

    daemon = start()
    helper = helper_of(daemon.host_pid)
    assert helper and rights(helper)["Uid"][0] == "0"
    for number in (signal.SIGINT, signal.SIGTERM):  # like Ctrl-C on the terminal of both
        os.kill(helper, number)
    source = daemon if role == "source" else world.source(daemon, *SMALL_POOL)
    world.write(source.mountpoint / "file", MIB).succeeds()
    control = control_socket(daemon)
    endpoint = control.with_name(control.name + ".endpoint")
    assert control.is_socket() and endpoint.exists() == (role == "source")
    assert daemon.stop() == 0
    assert not daemon.mounted() and not control.exists() and not endpoint.exists()
    wait_until(lambda: not Path(f"/proc/{helper}").exists(), 5, "the helper to end")

    daemon = start()
    helper = helper_of(daemon.host_pid)
    daemon.kill()
    wait_until(lambda: not Path(f"/proc/{helper}").exists(), 5, "the helper to end")


def test_only_root_can_change_how_a_source_reaches_its_target(world):
    source = world.source(world.target(), *SMALL_POOL)
    endpoint = control_socket(source).with_name(control_socket(source).name + ".endpoint")
    seen = os.stat(endpoint)
    assert (seen.st_uid, stat.S_IMODE(seen.st_mode)) == (0, 0o600)
    assert stat.S_IMODE(os.stat(endpoint.parent).st_mode) == 0o700


def test_source_finds_its_target_again_by_name(world):
    """The source reaches the target although it may neither connect nor open the files that name
    hosts.
    """
    address = f"localhost:{free_port()}"

    def start_target():
        daemon = Daemon(HOST, "target", world.mountpoint(), ["--listen", address, *SMALL_STORE])
        world.daemons.append(daemon)
        return daemon

    target = start_target()
    source = Daemon(HOST, "source", world.mountpoint(), ["--target", address, *SMALL_POOL])
    world.daemons.append(source)
    world.write(source.mountpoint / "first", MIB).succeeds()
    target.kill()
    again = start_target()
    world.wait_until_succeeds(["cp", __file__, source.mountpoint / "second"], within=20)
    assert (again.mountpoint / "second").read_bytes() == Path(__file__).read_bytes()


def test_spill_directory_need_not_be_open_to_the_user_of_the_target(world):
    spill = world.directory / "for root" / "spill"
    spill.mkdir(parents=True)
    spill.parent.chmod(0o700)
    source, target = world.pair(SMALL_POOL, ["--memory-limit", "16MiB", "--spill-dir", spill])
    written = world.write(source.mountpoint / "file", 48 * MIB).succeeds()
    read = world.read(target.mountpoint / "file").succeeds()
    assert read["sha256"] == written["sha256"]
    assert world.status(target.mountpoint)["store"]["spilled_bytes"] > 16 * MIB


def test_restored_processes_have_the_rights_they_had_at_the_source(lab, nodes, migrations):
    (worker,) = start_workers(lab, nodes, 1)

    def process(node):
        (pid,) = node.find_processes(lambda words: any(b"steady_worker" in word for word in words))
        limits = Path(f"/proc/{pid}/limits").read_text()
        return rights(pid), limits

    before = process(nodes.source)
    migrations.migrate(worker.pid).ok()
    check_moved(worker, nodes)
    assert process(nodes.target) == before
    target = rights(migrations.target.host_pid)
    assert target["NoNewPrivs"] == ["1"] and before[0]["NoNewPrivs"] == ["0"], "compares nothing"
    worker.end()


def test_daemons_of_root_accept_each_other_over_loopback_without_a_key(world):
    """The source recognises its target although the target accepts connections as another user."""
    address = f"127.0.0.1:{free_port()}"
    target = Daemon(HOST, "target", world.mountpoint(), ["--listen", address, *SMALL_STORE])
    world.daemons.append(target)
    for number in range(3):  # before and after the target has accepted the connection
        source = Daemon(HOST, "source", world.mountpoint(), ["--target", address, *SMALL_POOL])
        world.daemons.append(source)
        world.write(source.mountpoint / f"file-{number}", MIB).succeeds()
        assert source.stop() == 0


def dumps_core(words, directory):
    """Returns whether this program dumps its core when it aborts, with no limit on the size."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    process = subprocess.Popen(
        words,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, unlimited),
    )
    process.stdout.read(1)  # the program runs now
    os.kill(process.pid, signal.SIGABRT)
    _, status = os.waitpid(process.pid, 0)
    process.returncode = 0
    assert os.WIFSIGNALED(status), f"{words} ended by itself: {status}"
    return os.WCOREDUMP(status)


def test_commands_dump_no_core(world):
    if not dumps_core(["sh", "-c", "echo; exec sleep 60"], world.directory):
        pytest.skip("this machine dumps no cores (kernel.core_pattern, limits)")
    target = world.target("--memory-limit", "64MiB")
    assert not dumps_core([find_ppmr(), "status", target.mountpoint, "--watch"], world.directory)


def test_mlock_locks_the_memory_of_images(world):
    def locked_kib(target):
        lines = Path(f"/proc/{target.host_pid}/status").read_text().splitlines()
        return int(dict(line.split(":", 1) for line in lines)["VmLck"].split()[0])

    plain = world.target("--memory-limit", "64MiB")
    locking = world.target("--memory-limit", "64MiB", "--mlock")
    assert 0 < locked_kib(plain) < 1024  # this memory has the keys
    source = world.source(locking, *SMALL_POOL)
    world.write(source.mountpoint / "file", MIB).succeeds()
    assert locked_kib(locking) >= 64 << 10
