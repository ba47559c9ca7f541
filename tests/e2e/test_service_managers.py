"""A move must not be doubled: what a service manager or a loop would start again at the source
stays there, until the remedy in the finding was applied."""
import json
import re
import shutil
import signal

import pytest

from lab.node import FIRST_PROGRAM_PID, wait_until
from lab.programs import find_program
from lab.terminal import Terminal

MOVED, ABORTED, REPLACED = 0, 11, 13
# Has no open file but /dev/null, and a session of its own.
SERVER = "setsid --wait sleep 1000 </dev/null >/dev/null 2>&1"
MAIN_PID = "systemctl show --property=MainPID --value server"


def findings(done):
    return [event for event in done.events if event.get("event") == "finding"]


def servers_on(node):
    found = node.run(["pgrep", "--exact", "--full", "sleep 1000"], check=False).stdout
    return [int(pid) for pid in found.split()]


def await_server(node):
    wait_until(lambda: servers_on(node), 10, "the server to run")
    [pid] = servers_on(node)
    return pid


def end_server(node, pid):
    node.signal(pid, signal.SIGKILL)
    node.await_end(pid)


@pytest.mark.parametrize("kind", ["text", "script"])
def test_process_of_a_shell_loop_stays_until_the_loop_has_ended(lab, nodes, migrations, kind):
    loop = f"while true; do {SERVER}; done"
    script = lab.home / "loop"
    script.write_text(f"#!/bin/bash\n{loop}\n")
    shell = nodes.source.spawn(["sh", "-c", loop] if kind == "text" else ["bash", script])
    pid = await_server(nodes.source)
    for options in (["--dry-run"], []):
        done = migrations.migrate(pid, options=options)
        assert done.code == ABORTED, done.output
        [finding] = findings(done)
        assert finding["stops"] and f"{shell} (" in finding["sentence"]
        assert f"kill -KILL {shell}`" in finding["remedy"]
    assert servers_on(nodes.source) == [pid] and servers_on(nodes.target) == []
    nodes.source.signal(shell, signal.SIGKILL)
    nodes.source.await_end(shell)
    done = migrations.migrate(pid).ok()
    assert findings(done) == []
    assert servers_on(nodes.target) == [pid] and servers_on(nodes.source) == []
    end_server(nodes.target, pid)


def test_loop_moves_together_with_its_process(nodes, migrations):
    shell = nodes.source.spawn(["sh", "-c", f"while true; do {SERVER}; done"])
    await_server(nodes.source)
    assert findings(migrations.migrate(shell).ok()) == []
    pid = await_server(nodes.target)
    assert servers_on(nodes.source) == []
    nodes.target.signal(pid, signal.SIGKILL)
    wait_until(lambda: servers_on(nodes.target) not in ([], [pid]), 10, "the loop to go on")
    nodes.target.signal(shell, signal.SIGKILL)
    end_server(nodes.target, await_server(nodes.target))


def test_background_job_of_an_interactive_shell_moves(nodes, migrations):
    with Terminal(nodes.source, ["bash", "--norc", "--noprofile", "-i"]) as terminal:
        last = f"echo {FIRST_PROGRAM_PID} >/proc/sys/kernel/ns_last_pid"
        terminal.type(f"cd /; {last}; {SERVER} &\n")
        pid = await_server(nodes.source)
        done = migrations.migrate(pid).ok()
        assert findings(done) == []
        assert servers_on(nodes.target) == [pid] and servers_on(nodes.source) == []
        end_server(nodes.target, pid)


def test_script_that_waits_for_a_process_is_a_warning(nodes, migrations):
    nodes.source.spawn(["sh", "-c", f"{SERVER}; exec sleep 77"])
    pid = await_server(nodes.source)
    done = migrations.migrate(pid).ok()
    [finding] = findings(done)
    assert not finding["stops"] and "goes on here" in finding["sentence"]
    assert servers_on(nodes.target) == [pid] and servers_on(nodes.source) == []
    end_server(nodes.target, pid)
    nodes.source.run(["pkill", "--exact", "--full", "sleep 77"])


# --- systemd, on two Debian machines ---

UNIT = """[Service]
ExecStart=/bin/sleep 1000
StandardOutput=null
StandardError=null
Restart=always
RestartSec=100ms
[Install]
WantedBy=multi-user.target
"""
MOUNT = "/run/ppmr/out"


@pytest.fixture
def served(two_machines):
    """The machines with both daemons as services."""
    source, target = two_machines
    for machine in two_machines:
        machine.run("apt install --yes /root/ppmr_*.deb")
    target.run("ppmr keygen /etc/ppmr/key")
    key = target.run("cat /etc/ppmr/key").stdout
    source.run(f"umask 077; printf %s '{key}' >/etc/ppmr/key")
    target.run(
        "sed -i 's/^allow-restart/allow-root-restart/' /etc/ppmr/target.conf"
    )
    source.run(
        "sed 's/TARGET/10.77.0.2/; s/NAME/out/' /usr/share/ppmr/source.conf >/etc/ppmr/source.d/out.conf"
    )
    target.run("systemctl enable --now ppmr-target")
    source.run("systemctl enable --now ppmr-source@out")
    # The pids of the programs differ from those that the target uses.
    source.run("echo 20000 >/proc/sys/kernel/ns_last_pid")
    return source, target


def write_file(machine, path, text):
    (machine.root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    (machine.root / path.lstrip("/")).write_text(text)


def machine_migrate(machine, pid, *options):
    words = ["ppmr", "migrate", "--json", "--mount", MOUNT, "--pid", pid, *options]
    done = machine.run(words, check=False)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    found = [event for event in events if event.get("event") == "finding"]
    return done.returncode, found, done.stdout + done.stderr


@pytest.mark.xdist_group("package")
def test_main_process_of_a_service_moves_only_after_the_remedy(served):
    source, target = served
    write_file(source, "/etc/systemd/system/server.service", UNIT)
    write_file(source, "/etc/systemd/system/server.timer", "[Timer]\nOnActiveSec=1h\n")
    source.run("systemctl daemon-reload; systemctl enable --now server.service server.timer")
    pid = int(source.run(MAIN_PID).stdout)
    code, found, output = machine_migrate(source, pid, "--dry-run")
    assert code == ABORTED, output
    stops = [finding for finding in found if finding["stops"]]
    assert len(stops) == 2, output
    restart, trigger = stops
    assert "server.service" in restart["sentence"] and "Restart=always" in restart["sentence"]
    assert "server.timer" in trigger["sentence"]
    # The remedies: `systemctl edit` as an editor would leave it, and the command for the timer.
    assert "systemctl edit --runtime server.service" in restart["remedy"]
    drop_in = "/run/systemd/system/server.service.d"
    source.run(f"mkdir -p {drop_in}; printf '[Service]\\nRestart=no\\n' >{drop_in}/override.conf")
    source.run("systemctl daemon-reload")
    source.run(re.search("`(systemctl stop .*)`", trigger["remedy"])[1])
    assert int(source.run(MAIN_PID).stdout) == pid, "a remedy ended the service"
    code, found, output = machine_migrate(source, pid)
    assert code == MOVED, output
    [finding] = found
    assert "ends here" in finding["sentence"] and "systemctl disable server" in finding["remedy"]
    states = "systemctl show --property=ActiveState --value server"
    wait_until(lambda: source.run(states).stdout == "failed\n", 20, "the service to fail")
    assert source.run("pgrep -xf '/bin/sleep 1000'", check=False).stdout == ""
    assert target.run("pgrep -xf '/bin/sleep 1000'").stdout == f"{pid}\n"


@pytest.mark.xdist_group("package")
def test_process_in_a_scope_moves_without_a_finding_about_systemd(served):
    source, target = served
    source.run(f"systemd-run --scope --unit=batch sh -c '{SERVER} &' </dev/null >/dev/null 2>&1")
    wait_until(lambda: source.run("pgrep -x sleep", check=False).stdout, 10, "the server to run")
    pid = int(source.run("pgrep -x sleep").stdout)
    assert "batch.scope" in source.run(f"cat /proc/{pid}/cgroup").stdout
    code, found, output = machine_migrate(source, pid)
    assert (code, found) == (MOVED, []), output
    assert target.run("pgrep -x sleep").stdout == f"{pid}\n"


def properties_of(machine, *names):
    shown = machine.run(["systemctl", "show", "--property=" + ",".join(names), "server"]).stdout
    return dict(line.split("=", 1) for line in shown.splitlines())


@pytest.mark.xdist_group("package")
def test_unit_moves_with_its_processes_and_is_as_before_after_an_abort(served):
    source, target = served
    unit = UNIT.replace("StandardOutput=null\nStandardError=null\n", "")  # they go to the journal
    # What a unit preloads is not for ppmr, which systemd starts in its place at the target.
    unit += "[Service]\nEnvironment=LD_PRELOAD=/root/libother_uid.so OTHER_UID=1000\n"
    for machine in served:
        shutil.copy2(find_program("libother_uid.so"), machine.root / "root")
        write_file(machine, "/etc/systemd/system/server.service", unit)
        machine.run("systemctl daemon-reload")
    source.run("systemctl enable --now server")
    names = ["MainPID", "ActiveState", "UnitFileState", "Restart", "DropInPaths"]
    before = properties_of(source, *names)
    move = ["ppmr", "migrate", "--mount", MOUNT, "--unit", "server"]
    target.run("systemctl start server")
    refused = source.run(move, check=False)
    assert refused.returncode == ABORTED and "stop it there first" in refused.stderr, refused
    assert properties_of(source, *names) == before
    target.run("systemctl stop server")
    source.run(move)
    after = properties_of(source, *names)
    assert (after["ActiveState"], after["UnitFileState"]) == ("inactive", "disabled")
    assert after["DropInPaths"] == "" and source.run("pgrep -x sleep", check=False).stdout == ""
    wait_until(lambda: properties_of(target, *names) == before, 20, "the unit to be as it was")
    assert "server.service" in target.run(f"cat /proc/{before['MainPID']}/cgroup").stdout
    target.run("systemctl kill --signal=KILL server")
    wait_until(
        lambda: properties_of(target, "MainPID")["MainPID"] not in ("0", before["MainPID"]),
        20,
        "systemd to restart the service",
    )


COUNTER = UNIT.replace("/bin/sleep 1000", "/usr/bin/perl /usr/local/bin/counter").replace(
    "StandardOutput=null\nStandardError=null\n", ""
)
PROGRAM = "$| = 1; for ($n = 1; ; $n++) { print \"at $n\\n\"; select undef, undef, undef, 0.05; }\n"
STATE = ["MainPID", "ActiveState", "UnitFileState", "Restart", "NRestarts", "ControlGroup"]


def state_of(machine, unit, *names):
    shown = machine.run(["systemctl", "show", "--property=" + ",".join(names), unit]).stdout
    found = dict(line.split("=", 1) for line in shown.splitlines())
    return [found[name] for name in names]


def counted(machine):
    said = machine.run("journalctl --output=cat --unit=server").stdout
    return [int(line.split()[1]) for line in said.splitlines() if line.startswith("at ")]


def said(machine, unit):
    return machine.run(f"journalctl --output=cat --unit={unit}").stdout


def await_epochs(machine, more=2):
    def epochs():
        return said(machine, "ppmr-protect@server").count("\nepoch ")

    wanted = epochs() + more
    wait_until(lambda: epochs() >= wanted, 60, f"{more} epochs")


@pytest.mark.xdist_group("package")
def test_service_protects_a_unit_which_is_taken_over_with_its_unit(served):
    source, target = served
    for machine in served:
        write_file(machine, "/etc/systemd/system/server.service", COUNTER)
        write_file(machine, "/usr/local/bin/counter", PROGRAM)
        machine.run("systemctl daemon-reload")
    lines = f"unit = server\nmount = {MOUNT}\nevery = 1s\n"
    write_file(source, "/etc/ppmr/protect.d/server.conf", lines)
    source.run("ppmr config check")
    protect = "ppmr protect --config /etc/ppmr/protect.d/server.conf"
    service = ["ppmr-protect@server", "ActiveState", "ExecMainStatus"]
    source.run("systemctl enable --now ppmr-protect@server")
    wait_until(lambda: "waiting: " in said(source, service[0]), 20, "the service to wait")
    source.run("systemctl enable --now server")
    await_epochs(source)
    source.run("systemctl restart server ppmr-source@out")
    await_epochs(source)
    source.run("systemctl stop ppmr-protect@server")
    assert state_of(source, *service) == ["inactive", "130"]
    before = properties_of(source, *STATE)
    source.run("systemctl start ppmr-protect@server")
    await_epochs(source)
    assert properties_of(source, *STATE) == before
    kept = map(json.loads, target.run("ppmr takeover --json").stdout.splitlines())
    assert [(each["name"], each["unit"]) for each in kept] == [("server.service",) * 2]
    source.run("ip link set eth0 down")
    reached = counted(source)[-1]
    target.run("ppmr takeover server.service --fence true")
    source.run("ip link set eth0 up")
    wait_until(lambda: properties_of(target, *STATE) == before, 20, "the unit to be as it was")
    wait_until(lambda: len(counted(target)) > 20, 20, "its lines in the journal")
    goes_on = counted(target)
    assert goes_on == list(range(goes_on[0], goes_on[0] + len(goes_on)))
    assert 1 < goes_on[0] <= reached + 1
    wait_until(lambda: state_of(source, *service) == ["failed", str(REPLACED)], 60, "its end")
    assert state_of(source, "server", "ActiveState", "UnitFileState", "DropInPaths") == [
        "inactive",
        "disabled",
        "",
    ]
    source.run("systemctl start server")  # as the boot of a lost node may do
    again = source.run(protect, check=False)
    assert again.returncode == REPLACED, again
    assert state_of(source, "server", "ActiveState") == ["inactive"]
    target.run("systemctl kill --signal=KILL server")
    wait_until(
        lambda: properties_of(target, "MainPID")["MainPID"] not in ("0", before["MainPID"]),
        20,
        "systemd to restart the service",
    )


@pytest.mark.xdist_group("package")
def test_unit_that_the_partner_cannot_take_over_is_not_protected(served):
    source, target = served
    write_file(source, "/etc/systemd/system/server.service", UNIT)
    source.run("systemctl daemon-reload; systemctl start server")
    protect = f"ppmr protect --mount {MOUNT} --unit server"
    unknown = source.run(protect, check=False)
    assert unknown.returncode == 1 and "no unit server.service" in unknown.stderr, unknown
    write_file(target, "/etc/systemd/system/server.service", UNIT)
    target.run("systemctl daemon-reload; systemctl start server")
    active = source.run(protect, check=False)
    assert active.returncode == 1 and "stop it there first" in active.stderr, active
    assert target.run("ppmr takeover --json").stdout == ""
