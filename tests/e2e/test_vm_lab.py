"""The laboratory of two machines (tests/vm), which the tests of RDMA use."""
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from lab.node import LabError, wait_until
from lab.pace import patience
from lab.programs import REPOSITORY
from vm import image, measures
from vm.virtual_lab import VirtualLab, remove_stale


def reaches(node, other):
    return (
        node.run(["busybox", "ping", "-c", "1", "-W", "2", other.address], check=False).returncode
        == 0
    )


def test_each_machine_has_an_rdma_device(machines):
    for node in machines.nodes:
        shown = node.run(["ibv_devinfo"]).stdout
        assert "rxe0" in shown and "PORT_ACTIVE" in shown and "active_mtu:\t\t4096" in shown
        assert node.run(["hostname"]).stdout.strip() == node.name
        interfaces = sorted(node.names("/sys/class/net"))
        assert interfaces == ["link0", "link1", "lo"], "the connection to the host is visible"


def test_rdma_works_between_machines(machines):
    measures.rping(machines)
    # Runs longer than a queue pair's timeout, because each lost packet costs one timeout.
    assert measures.read_bandwidth(machines, size=128 << 10, queue_pairs=2, seconds=6) > 0


def test_command_in_machine_returns_output_and_exit_code(machines):
    a = machines.a
    done = a.run(["sh", "-c", "cat; echo no >&2; exit 3"], input="yes", check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("yes", "no\n", 3)
    assert a.run(["sh", "-c", "kill -9 $$"], check=False).returncode == -signal.SIGKILL
    with pytest.raises(LabError, match="ended with 1"):
        a.run(["false"])
    with pytest.raises(FileNotFoundError):
        a.run(["/no/such/program"])

    codes = []
    threads = [
        threading.Thread(
            target=lambda n=n: codes.append(
                a.run(["sh", "-c", f"sleep 0.2; exit {n}"], check=False).returncode
            )
        )
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == list(range(8))


def test_command_that_times_out_is_killed_in_machine(machines):
    a = machines.a
    with pytest.raises(LabError, match="did not end within"):
        a.run(["sleep", "1234"], timeout=1)
    wait_until(
        lambda: "sleep\x001234" not in command_lines(a), 10, "the sleep to be killed", interval=0.1
    )


def command_lines(node):
    return node.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"], check=False).stdout


def test_background_processes_can_be_signalled(machines):
    a = machines.a
    pid = a.spawn(["sleep", "1000"])
    assert a.alive(pid)
    a.signal(pid, signal.SIGKILL)
    wait_until(lambda: not a.alive(pid), 5, "the sleep to end")

    process = a.popen(["sleep", "1000"])
    pid = process.guest_pid()
    assert a.alive(pid)
    a.signal_process(process, signal.SIGTERM)
    assert process.wait(timeout=patience(10)) == 128 + signal.SIGTERM

    process = a.popen(["sleep", "1000"])
    pid = process.guest_pid()
    process.kill()
    process.wait()
    wait_until(lambda: not a.alive(pid), 10, "the command to end with its process on the host")


def test_host_and_machines_share_and_copy_files(machines, tmp_path):
    a, b = machines.nodes
    content = os.urandom(3 << 20)
    (tmp_path / "one").write_bytes(content)
    a.push(tmp_path / "one", "/tmp/one")
    a.run(["cp", "/tmp/one", machines.home / "two"])
    assert (machines.home / "two").read_bytes() == content
    b.pull(machines.home / "two", tmp_path / "three")
    assert (tmp_path / "three").read_bytes() == content
    assert not b.exists("/tmp/one")
    with pytest.raises(LabError):
        a.run(["touch", REPOSITORY / "written-by-a-machine"])
    a.run(["touch", "/etc/written-by-a-machine"])
    assert not Path("/etc/written-by-a-machine").exists()


def test_machine_clocks_agree_with_host_clock(machines):
    for node in machines.nodes:
        asked = time.time()
        there = node.agent.ask("clock") / 1e9
        assert asked - 0.5 < there < time.time() + 0.5


def test_link_can_be_cut_and_restored(machines):
    a, b = machines.nodes
    assert reaches(a, b)
    machines.cut_link()
    assert not reaches(a, b)
    assert "state DOWN" in a.run(["rdma", "link"]).stdout
    assert a.run(["echo", "still there"]).stdout == "still there\n"
    machines.restore_link()
    wait_until(lambda: reaches(a, b), 20, "the link to come back")
    assert "state ACTIVE" in a.run(["rdma", "link"]).stdout
    measures.rping(machines)


@pytest.mark.long
def test_repair_reboots_machines_whose_link_is_dead(machines):
    machines.b.run(["ip", "link", "set", "link0", "down"])
    machines.b.run(["touch", "/tmp/of-this-boot"])
    machines.repair()
    assert reaches(*machines.nodes)
    assert not machines.b.exists("/tmp/of-this-boot")


@pytest.mark.long
def test_killed_machine_can_be_booted_again(machines):
    a, b = machines.nodes
    b.run(["touch", "/tmp/lost"])
    process = b.popen(["sleep", "1000"], stderr=subprocess.DEVNULL)
    process.guest_pid()
    b.kill()
    assert process.wait(timeout=patience(10)) == 125
    assert not reaches(a, b)
    with pytest.raises(LabError, match="not running"):
        b.run(["true"])
    b.boot()
    assert not b.exists("/tmp/lost")
    measures.rping(machines)


@pytest.mark.long
@pytest.mark.xdist_group("machines")
def test_disk_of_a_killed_machine_has_lost_what_was_not_flushed():
    with VirtualLab(memory_mib=1024, disk_mib=64) as lab:
        a = lab.a
        a.mount_disk("/disk")
        a.run(["sh", "-c", "echo 1 >/disk/kept; sync; echo 2 >/disk/lost"])
        assert sorted(a.names("/disk")) == ["kept", "lost", "lost+found"]
        a.kill()
        a.boot()
        a.mount_disk("/disk")
        assert sorted(a.names("/disk")) == ["kept", "lost+found"]
        assert a.read_text("/disk/kept") == "1\n"


@pytest.mark.parametrize(
    "supervisor_dies_too", [False, True], ids=["runner", "runner and supervisor"]
)
def test_killed_lab_command_leaves_no_machines_and_no_files(machines, supervisor_dies_too):
    runner = subprocess.Popen(
        [REPOSITORY / "tests/vm/lab", "up"], stderr=subprocess.PIPE, text=True
    )
    try:
        directory = Path(runner.stderr.readline().rsplit(", ", 1)[1].strip().rstrip(")"))
        assert directory.is_dir()
        wait_until(
            lambda: len(processes_of(directory, "qemu")) == 2, 30, "both machines to be started"
        )
        supervisors = processes_of(directory, "machine_supervisor.py")
        runner.kill()
        if supervisor_dies_too:
            for pid in supervisors:
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not processes_of(directory, ""), 10, "everything to end")

        def removed():
            if supervisor_dies_too:
                # as the next laboratory does; works once the killed processes have released the
                # lock
                remove_stale()
            return not directory.exists()

        wait_until(removed, 10, f"{directory} to be removed")
    finally:
        runner.kill()
        runner.wait()
        runner.stderr.close()


@pytest.fixture
def image_cache(tmp_path, monkeypatch):
    try:
        image.check_can_run()
    except image.CannotRun as why:
        pytest.skip(str(why))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ppmr/machine-images"


def test_machine_image_is_built_once_and_removed_a_day_after_its_last_use(image_cache, monkeypatch):
    built = image.cached_image()
    identity = [file.stat().st_ino for file in built]
    assert image.cached_image() == built
    assert [file.stat().st_ino for file in built] == identity

    os.utime(built[0].parent, (0, 0))
    assert image.cached_image() == built, "removed although it is in use"
    monkeypatch.setattr(image, "MODULES", image.MODULES[:-1])
    changed = image.cached_image()
    assert changed != built and built[0].exists()
    os.utime(built[0].parent, (0, 0))
    image.cached_image()
    assert list(image_cache.iterdir()) == [changed[0].parent]


def test_machine_image_is_not_read_from_a_directory_that_others_may_write_to(image_cache):
    image_cache.mkdir(parents=True)
    image_cache.chmod(0o777)
    with pytest.raises(LabError, match="others may write"):
        image.cached_image()


def processes_of(directory, what):
    """Returns the host pids of processes with the directory and `what` on their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(directory) in words and what in words:
            found.append(int(process.parent.name))
    return found
