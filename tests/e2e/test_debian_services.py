"""Services of Debian, as their packages install them, move with `ppmr migrate --unit` between two
machines with systemd. They keep what they have in memory, and systemd supervises them there.

CRIU cannot move processes of other users where this machine lacks CAP_SYS_RESOURCE. There the
services run as root. PostgreSQL refuses that; a preloaded library makes it see another user.
"""
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab import debian_packages
from lab.node import LabError, wait_until
from lab.programs import find_program

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("package")]

PACKAGES = ["redis-server", "nginx-light", "postgresql", "memcached", "mosquitto"]
CLIENTS = ["redis-tools", "mosquitto-clients", "netcat-openbsd", "curl"]
MOUNT = "/run/ppmr/out"
# Removes what gives a service namespaces of its own, as ppmr's message demands.
WITHOUT_SANDBOX = """[Service]
PrivateTmp=no
PrivateDevices=no
PrivateUsers=no
ProtectSystem=no
ProtectHome=no
ProtectKernelTunables=no
ProtectKernelModules=no
ProtectKernelLogs=no
ProtectControlGroups=no
ProtectHostname=no
ProtectClock=no
ProtectProc=default
ReadOnlyPaths=
ReadWritePaths=
InaccessiblePaths=
ExecPaths=
NoExecPaths=
"""
CAP_SYS_RESOURCE = 24
# The shared memory of PostgreSQL is below its data, because no other node has this node's /dev/shm.
POSTGRES = (
    "/usr/lib/postgresql/15/bin/postgres -c config_file=/etc/postgresql/15/main/postgresql.conf "
    "-c dynamic_shared_memory_type=mmap"
)
PSQL = "setpriv --reuid=postgres --regid=postgres --clear-groups psql -XAtq"


def memcached(commands):
    return f"printf '{commands}quit\\r\\n' | nc -q 2 127.0.0.1 11211"


# `shared`: directories that both machines have in common, with files that a process has open.
# `writes` is run before the move, `reads` before and after it: its output is the same.
SERVICES = {
    "redis": SimpleNamespace(
        unit="redis-server",
        as_root=(
            "mkdir -p $D; printf '[Service]\\nUser=root\\nGroup=root\\n"
            "CapabilityBoundingSet=~\\n' >$D/root.conf"
        ),
        shared=["/var/lib/redis", "/var/log/redis"],
        writes="redis-cli set key value",
        reads="redis-cli get key; redis-cli info server | grep run_id",
        lives="redis-cli ping",
    ),
    "nginx": SimpleNamespace(
        unit="nginx",
        as_root="sed -i 's/^user .*/user root;/' /etc/nginx/nginx.conf",
        shared=["/var/log/nginx"],
        writes="curl -sf http://127.0.0.1/",
        reads="curl -sf http://127.0.0.1/; pgrep nginx",
        lives="curl -sf http://127.0.0.1/",
    ),
    "postgresql": SimpleNamespace(
        unit="postgresql@15-main",
        # A preloaded library makes PostgreSQL see another user than root.
        as_root=(
            "printf '[Service]\\nEnvironment=LD_PRELOAD=/root/libother_uid.so OTHER_UID=%s\\n"
            f"ExecStart=\\nExecStart=/usr/bin/unshare --ipc {POSTGRES}\\n' "
            "$(id -u postgres) >$D/root.conf"
        ),
        shared=["/var/lib/postgresql", "/var/log/postgresql"],
        # The System V memory of PostgreSQL moves with an IPC namespace of its own. PrivateIPC=
        # would also give it a mount namespace. The unit does not start pg_ctlcluster, which would
        # switch to the user who owns the data.
        more=(
            "User=root\nType=notify\nPIDFile=\nExecStop=\nExecReload=\nExecStart=\n"
            "ExecStart=/usr/bin/unshare --ipc /usr/bin/setpriv --reuid=postgres "
            f"--regid=postgres --init-groups {POSTGRES}\n"
        ),
        writes=f"{PSQL} -c 'create table kept as select generate_series(1, 1000) as n'",
        reads=f"{PSQL} -c 'select sum(n), pg_postmaster_start_time() from kept group by 2'",
        lives=f"{PSQL} -c 'create temporary table lives (n int)'",
    ),
    "memcached": SimpleNamespace(
        unit="memcached",
        as_root="sed -i 's/^-u .*/-u root/' /etc/memcached.conf",
        shared=[],
        writes=memcached("set key 0 0 5\\r\\nvalue\\r\\n"),
        reads=memcached("get key\\r\\n"),
        lives=memcached("version\\r\\n"),
    ),
    "a service of Type=notify": SimpleNamespace(
        unit="mosquitto",
        as_root="echo user root >/etc/mosquitto/conf.d/root.conf",
        shared=["/var/log/mosquitto", "/var/lib/mosquitto"],
        writes="mosquitto_pub -r -t topic -m value",
        reads="mosquitto_sub -t topic -C 1 -W 5",
        lives="mosquitto_pub -t other -m value",
    ),
}


@pytest.fixture(scope="module")
def debian_with_services(packages, tmp_path_factory):
    directory = tmp_path_factory.mktemp("services") / "root"
    debian_packages.make_root(directory, packages, [*PACKAGES, *CLIENTS])
    units = [service.unit for service in SERVICES.values() if "@" not in service.unit]
    debian_packages.run("chroot", directory, "systemctl", "disable", *units, "postgresql")
    return directory


def moves_other_users():
    status = Path("/proc/self/status").read_text()
    return bool(int(re.search(r"^CapEff:\s+(\w+)", status, re.M)[1], 16) >> CAP_SYS_RESOURCE & 1)


@pytest.fixture
def served(packages, debian_with_services, tmp_path, service):
    """The machines with both daemons, and the unit without its sandbox."""
    with debian_packages.two_machines(
        packages, debian_with_services, tmp_path, service.shared
    ) as machines:
        source, target = machines
        for machine in machines:
            machine.run("apt-get install --yes /root/ppmr_*.deb")
            shutil.copy2(find_program("libother_uid.so"), machine.root / "root")
            write_drop_in(machine, service)
        target.run("ppmr keygen /etc/ppmr/key")
        key = target.run("cat /etc/ppmr/key").stdout
        source.run(f"umask 077; printf %s '{key}' >/etc/ppmr/key")
        target.run(
            "sed -i 's/^allow-restart/allow-root-restart/' /etc/ppmr/target.conf"
        )
        source.run(
            "sed 's/TARGET/10.77.0.2/; s/NAME/out/' /usr/share/ppmr/source.conf "
            ">/etc/ppmr/source.d/out.conf"
        )
        target.run("systemctl enable --now ppmr-target")
        source.run("systemctl enable --now ppmr-source@out")
        # The pids of the service differ from those that the target uses.
        source.run("echo 20000 >/proc/sys/kernel/ns_last_pid")
        yield source, target


def write_drop_in(machine, service):
    directory = machine.root / f"etc/systemd/system/{service.unit}.service.d"
    directory.mkdir(parents=True)
    # systemd reads root.conf after movable.conf: in the order of their names.
    (directory / "movable.conf").write_text(WITHOUT_SANDBOX + getattr(service, "more", ""))
    if not moves_other_users():
        machine.run(f"D=/etc/systemd/system/{service.unit}.service.d; {service.as_root}")
    machine.run("systemctl daemon-reload")


def wait_for_life(machine, service):
    try:
        wait_until(
            lambda: machine.run(service.lives, check=False).returncode == 0, 30, "an answer"
        )
    except LabError as late:
        answer = machine.run(service.lives, check=False)
        journal = machine.run(f"journalctl -u {service.unit}").stdout
        raise LabError(f"{late}: {answer.stdout}{answer.stderr}\n{journal}") from late


def properties_of(machine, unit, *names):
    shown = machine.run(["systemctl", "show", "--property=" + ",".join(names), unit]).stdout
    found = dict(line.split("=", 1) for line in shown.splitlines())
    return [found[name] for name in names]


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_service_of_debian_moves_with_its_unit(served, service):
    source, target = served
    source.run(f"systemctl start {service.unit}")
    wait_for_life(source, service)
    source.run(service.writes)
    kept = source.run(service.reads).stdout
    names = ["MainPID", "ActiveState", "SubState", "Type"]
    before = properties_of(source, service.unit, *names)
    moved = source.run(
        ["ppmr", "migrate", "--json", "--mount", MOUNT, "--unit", service.unit], check=False
    )
    assert moved.returncode == 0, moved.stdout + moved.stderr
    [summary] = [
        event for event in map(json.loads, moved.stdout.splitlines()) if event["event"] == "summary"
    ]
    assert [tree["result"] for tree in summary["trees"]] == ["moved"], moved.stdout
    assert properties_of(source, service.unit, "ActiveState") == ["inactive"]
    assert not source.run(["sh", "-c", f"kill -0 {before[0]}"], check=False).returncode == 0
    wait_until(
        lambda: properties_of(target, service.unit, *names) == before, 20, "the unit to be there"
    )
    assert f"{service.unit}.service" in target.run(f"cat /proc/{before[0]}/cgroup").stdout
    assert target.run(service.reads).stdout == kept
    target.run(service.lives)
    target.run(f"systemctl restart {service.unit}")
    wait_for_life(target, service)
