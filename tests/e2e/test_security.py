"""Access to a target: wrong credentials are refused at once, both sides log why, and other sessions
go on."""
import math
import json
import os
import resource
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from lab.certificates import Authority
from lab.node import HOST, free_port, wait_until
from lab.pace import patience, slowness
from lab.ppmr import Daemon, find_ppmr, make_key
from lab.relay import Relay
from lab.world import MIB, PEER_TIMEOUT, digest_of_written

LONG_TIMEOUT = math.ceil(30 * slowness())  # seconds: how long a target waits for silent clients
AT_ONCE = 15 * slowness()  # seconds, from the start of ppmr to its end: less than LONG_TIMEOUT
CONNECTIONS_MAX = 256  # rdma_stream/connection/acceptor.cc
REFUSED_WITHIN = slowness()  # seconds, without the time that ppmr needs to start
SMALL = ["--pool-size", "4MiB"]  # touching the pool counts, too


def audited_target(world, *options):
    """A target with an audit file, `audit`."""
    audit = world.directory / f"audit-{len(world.daemons)}.json"
    target = world.target("--audit-file", audit, *options)
    target.audit = audit
    return target


def audit_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def start_seconds(world):
    """Returns how long ppmr takes to start and to refuse a key file."""
    ended = world.ppmr(
        "source", world.mountpoint("none"), "--target", "127.0.0.1:1", "--key-file", "/missing"
    )
    assert ended.code == 2, ended.output
    return ended.seconds


def reload(daemon):
    """Makes a daemon read its keys and certificates again."""
    before = daemon.log.read_text().count("reload:")
    daemon.signal(signal.SIGHUP)
    wait_until(
        lambda: daemon.log.read_text().count("reload:") > before, 5, f"the {daemon.role} to reload"
    )


def is_refused(world, target, credentials, source_message, target_message):
    """A source with these credentials ends at once. Both sides log these messages, and the target's
    audit trail has its own message.
    """
    log_before = len(target.log.read_text())
    audit_before = len(audit_lines(target.audit))
    start = start_seconds(world)
    ended = world.ppmr(
        "source",
        world.mountpoint("refused"),
        "--target",
        target.peer_address,
        *SMALL,
        *credentials,
        within=PEER_TIMEOUT + 10,
    )
    assert (
        ended.code == 4
    ), f"ended with {ended.code}: {ended.output}"  # the peer failed: base/exit_code.h
    assert source_message in ended.err, f"the source does not log '{source_message}': {ended.err!r}"
    assert target.peer_address in ended.err, ended.err
    wait_until(
        lambda: target_message in target.log.read_text()[log_before:],
        2,
        f"the target to log '{target_message}'",
    )
    took = ended.seconds - start
    assert took < REFUSED_WITHIN, f"refused only after {took:.2f} s"
    refused = [
        line
        for line in audit_lines(target.audit)[audit_before:]
        if line["outcome"] == "refused" and target_message in line["reason"]
    ]
    assert refused and refused[0]["event"] == "connection", audit_lines(target.audit)
    assert refused[0]["address"].startswith("127.0.0.1:")


def threads_of(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


class Stream:
    """A transfer of another source that is in progress during the whole test."""

    SIZE = 48 * MIB

    def __init__(self, world, source, target, pause=0.1):
        self._writer = world.write(source.mountpoint / "undisturbed", self.SIZE, pause=pause)
        self._writer.wait_for(2)
        self._target = target
        self._world = world

    def ends_well(self):
        assert self._writer.running(), "the transfer ended before the last refusal"
        self._writer.succeeds()
        assert self._world.read(self._target.mountpoint / "undisturbed").succeeds()[
            "sha256"
        ] == digest_of_written(self.SIZE)


# -- wrong credentials


def test_target_with_key_refuses_sources_without_that_key(world, authority):
    target = audited_target(world)
    source = world.source(target, *SMALL)
    stream = Stream(world, source, target)
    wrong_key = make_key(world.directory / "wrong", HOST)
    is_refused(world, target, wrong_key, "has another key", "has another key")
    is_refused(world, target, [], "start the source with the same --key-file", "plain text")
    is_refused(
        world, target, ["--insecure"], "start the source with the same --key-file", "plain text"
    )
    is_refused(world, target, authority.issue("node1", "target"), "TLS", "TLS handshake")
    stream.ends_well()


def test_target_with_certificate_accepts_only_valid_certificates_of_allowed_peers(
    world, authority, tmp_path
):
    crl = authority.revoke()
    target = audited_target(world, *authority.issue("target", "node1", "node2"), "--crl", crl)
    source = world.source(target, *SMALL, *authority.issue("node1", "target"))
    stream = Stream(world, source, target, pause=0.25)
    foreign = Authority(tmp_path / "foreign", name="foreign")
    foreign.issue("node1")
    is_refused(
        world,
        target,
        foreign.options("node1", "target", authority=authority),
        "unknown CA",
        "certificate 'node1' of the peer: unable to get",
    )
    is_refused(
        world,
        target,
        foreign.options("node1", "target"),
        "certificate 'target' of the peer",
        "unknown CA",
    )
    is_refused(
        world,
        target,
        authority.issue("node2", "target", days=-1),
        "certificate expired",
        "certificate 'node2' of the peer: certificate has expired",
    )
    is_refused(world, target, authority.issue("node3", "target"), "'node3'", "'node3' of 127.0.0.1")
    is_refused(
        world,
        target,
        authority.issue("node2", "target", usage="serverAuth"),
        "this node's certificate does not allow this role",
        "a node that connects needs clientAuth",
    )
    is_refused(
        world,
        target,
        [*authority.issue("node2", "target", "another"), "--target-name", "another"],
        "none of its names is allowed",
        "the source refused",
    )
    revoked = authority.issue("node2", "target")
    world.source(target, *SMALL, *revoked).stop()
    authority.revoke("node2")
    reload(target)
    is_refused(world, target, revoked, "certificate of this node was revoked", "revoked")
    is_refused(
        world,
        target,
        authority.issue("node2", "another"),
        "none of its names is allowed",
        "the source refused",
    )
    is_refused(
        world,
        target,
        [],
        "start the source with the same --key-file, or with a certificate",
        "plain text",
    )
    is_refused(
        world,
        target,
        make_key(world.directory / "wrong", HOST),
        "has a certificate",
        "TLS handshake",
    )
    stream.ends_well()


def test_source_with_key_is_refused_by_target_without_key(world):
    target = audited_target(world, "--insecure")
    source = world.source(target, *SMALL, "--insecure")
    stream = Stream(world, source, target)
    is_refused(
        world,
        target,
        make_key(world.directory / "key", HOST),
        "this target has none",
        "this target has none",
    )
    stream.ends_well()


def test_silent_and_slow_clients_do_not_delay_a_source(world):
    target = world.target(peer_timeout=LONG_TIMEOUT)
    clients = [
        socket.create_connection(("127.0.0.1", target.port), timeout=patience(20))
        for _ in range(60)
    ]
    try:
        for client in clients[::2]:
            client.send(b"\x16")  # the first byte of TLS
        began = time.monotonic()
        source = world.source(target, *SMALL)
        assert time.monotonic() - began < AT_ONCE
        stream = Stream(world, source, target)
        for client in clients[::4]:
            client.send(b"\x03")
        stream.ends_well()
    finally:
        for client in clients:
            client.close()


def test_a_thousand_half_open_connections_do_not_disturb_sessions(world):
    source, target = world.pair(SMALL, peer_timeout=LONG_TIMEOUT)
    files, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, min(files_max, 4096)), files_max))
    clients = []
    try:
        for number in range(1000):
            clients.append(
                socket.create_connection(("127.0.0.1", target.port), timeout=patience(20))
            )
            if number % 2:
                clients[-1].send(b"\x16\x03\x01\x02")  # the beginning of a TLS record
        assert threads_of(target.host_pid) < CONNECTIONS_MAX + 100
        began = time.monotonic()
        world.source(target, *SMALL)
        assert time.monotonic() - began < AT_ONCE
        world.write(source.mountpoint / "later", 4 * MIB).succeeds()
        assert world.read(target.mountpoint / "later").succeeds()["sha256"] == digest_of_written(
            4 * MIB
        )
    finally:
        for client in clients:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files_max))


def test_a_source_refuses_a_target_with_another_name(world):
    target = world.target()
    for name, code in (("another", 4), (socket.gethostname(), 0)):
        ended = world.ppmr(
            "source",
            world.mountpoint("named"),
            "--target",
            target.peer_address,
            *SMALL,
            *world.credentials([]),
            "--target-name",
            name,
        )
        assert ended.code == code, ended.output
        assert ("not 'another' (--target-name)" in ended.err) == (code == 4), ended.err


def test_only_named_peers_may_restart_processes(world):
    process = world.start(["sleep", "1000"], stdin=subprocess.DEVNULL)
    for name, may in (("another", False), (socket.gethostname(), True)):
        state = world.directory / f"state-{name}"
        target = audited_target(world, "--allow-restart-from", name, "--state-dir", state)
        source = world.source(target, *SMALL)
        tried = world.ppmr(
            "migrate", "--dry-run", "--pid", process.pid, "--mount", source.mountpoint
        )
        message = f"does not restart processes for '{socket.gethostname()}'"
        assert (message in tried.err) == (not may), tried.output
        agents = [line for line in audit_lines(target.audit) if line.get("service") == "migrate"]
        assert {line["outcome"] for line in agents} == (
            {"accepted", "ended"} if may else {"refused"}
        )
    world.refuses_to_start(
        [
            *("target", world.mountpoint(), "--listen", "127.0.0.1:0", "--allow-peer", "a"),
            *("--allow-restart-from", "b", *world.credentials([])),
        ],
        "add --allow-peer b",
    )


def ask(daemon, request):
    """Sends a request to the control socket of a daemon."""
    (path,) = [
        line.split()[0]
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if line.split()[1] == str(daemon.mountpoint)
    ]
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(10)
        control.connect(path)
        control.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(control.makefile().readline())


def test_a_checkpoint_belongs_to_the_identity_that_sent_it(world, authority):
    target = world.target(*authority.issue("target", "node1", "node2"))
    options = {name: authority.issue(name, "target") for name in ("node1", "node2")}
    first = world.source(target, *SMALL, *options["node1"])
    for name in ("sealed", "open"):
        (first.mountpoint / name).mkdir()
        world.write(first.mountpoint / name / "file", MIB).succeeds()
    world.succeeds([find_ppmr(), "commit", first.mountpoint / "sealed"])
    first.kill()  # so its open checkpoint fails

    def states():
        status = world.status(target.mountpoint)
        return {c["name"]: (c["state"], c["owner"]) for c in status["checkpoints"]}

    owned = {"sealed": ("sealed", "tls-cert node1"), "open": ("failed", "tls-cert node1")}
    wait_until(lambda: states() == owned, 3 * PEER_TIMEOUT, f"the checkpoints to be {owned}")
    for words in ({"op": "wait", "until": "sealed"}, {"op": "remove"}):
        answer = ask(target, {**words, "checkpoint": "sealed", "owner": "tls-cert node2"})
        assert not answer["ok"] and "belongs to tls-cert node1" in answer["error"], answer
    assert ask(target, {"op": "wait", "checkpoint": "sealed", "owner": "tls-cert node1"})["ok"]
    second = world.source(target, *SMALL, *options["node2"])
    for name in owned:
        with pytest.raises(FileExistsError):
            (second.mountpoint / name).mkdir()
    assert states() == owned
    again = world.source(target, *SMALL, *options["node1"])
    (again.mountpoint / "open").mkdir()
    assert states()["open"] == ("open", "tls-cert node1")


def test_key_is_replaced_while_a_transfer_continues(world):
    key = world.directory / "rotated"
    options = make_key(key, HOST)
    make_key(world.directory / "new", HOST)
    old, new = key.read_text(), (world.directory / "new").read_text()
    target = audited_target(world, *options)
    source = world.source(target, *SMALL, *options)
    stream = Stream(world, source, target)
    for keys in (old + new, new + old, new):
        key.write_text(keys)
        reload(target)
        reload(source)
        world.source(target, *SMALL, *options).stop()
    key.write_text(old)
    is_refused(world, target, options, "has another key", "has another key")
    key.write_text("nonsense")
    reload(target)
    assert "the old keys and certificates stay in use" in target.log.read_text()
    key.write_text(new)
    world.source(target, *SMALL, *options).stop()
    stream.ends_well()
    assert world.status(source.mountpoint)["reconnections"] == 0


# -- right credentials


def logs_that_it_is_insecure(daemon):
    wait_until(
        lambda: "--insecure: peers are not authenticated" in daemon.log.read_text(),
        2,
        f"the {daemon.role} to log that it is insecure",
    )


def shows_encryption(world, daemon, encryption, why):
    """Checks that `ppmr status` shows this in both forms, and that the daemon has logged it."""
    peers = world.status(daemon.mountpoint)["peers"]
    text = world.succeeds([find_ppmr(), "status", daemon.mountpoint]).out
    return (
        [(peer["encryption"], peer["encryption_why"]) for peer in peers] == [(encryption, why)]
        and f"encryption: {encryption} ({why})" in text
        and f"encryption of the data: {encryption}, because {why}" in daemon.log.read_text()
    )


def test_both_daemons_must_trust_the_fabric_to_send_plaintext(world):
    trust, lone = ["--trusted-fabric"], "the other side does not have --trusted-fabric"
    authenticated, both = "the peers authenticate", "both sides have --trusted-fabric"
    for target_options, source_options, encryption, at_target, at_source in (
        ([], trust, "aes-256-gcm", authenticated, lone),
        (trust, [], "aes-256-gcm", lone, authenticated),
        (trust, trust, "none", both, both),
    ):
        target = world.target(*target_options)
        source = world.source(target, *SMALL, *source_options)
        assert shows_encryption(world, target, encryption, at_target)
        assert shows_encryption(world, source, encryption, at_source)
        warned = "--trusted-fabric: data is not encrypted" in target.log.read_text()
        assert warned == bool(target_options)
        Stream(world, source, target).ends_well()


def test_restart_for_every_peer_on_a_network_requires_an_option(world):
    for address in ("0.0.0.0:0", "[::]:0", ":0"):
        world.refuses_to_start(
            [
                "target",
                world.mountpoint(),
                "--listen",
                address,
                "--allow-restart",
                "--insecure",
            ],
            "--allow-restart with --insecure",
            "--trusted-fabric",
        )
    for address, options in (("127.0.0.1", []), ("0.0.0.0", ["--trusted-fabric"])):
        world.daemons.append(
            Daemon(
                HOST,
                "target",
                world.mountpoint(),
                [
                    "--listen",
                    f"{address}:{free_port()}",
                    "--allow-restart",
                    "--insecure",
                    "--state-dir",
                    world.directory / "state",
                    *options,
                ],
            )
        )


def test_status_shows_how_each_peer_is_authenticated(world, authority):
    source, target = world.pair(SMALL)
    certified = world.target(*authority.issue("target", "node1"))
    certified_source = world.source(certified, *SMALL, *authority.issue("node1", "target"))
    open_target = world.target("--insecure")
    open_source = world.source(open_target, *SMALL, "--insecure")
    for daemon, security in (
        (source, f"tls-psk {socket.gethostname()}"),
        (target, f"tls-psk {socket.gethostname()}"),
        (certified, "tls-cert node1"),
        (certified_source, "tls-cert target"),
        (open_target, "none (insecure)"),
        (open_source, "none (insecure)"),
    ):
        assert [peer["security"] for peer in world.status(daemon.mountpoint)["peers"]] == [security]
        assert (
            f"security: {security}"
            in world.succeeds([find_ppmr(), "status", daemon.mountpoint]).out
        )
        encrypted = security.startswith("tls")
        assert shows_encryption(
            world,
            daemon,
            "aes-256-gcm" if encrypted else "none",
            "the peers authenticate" if encrypted else "the peers do not authenticate",
        )
    for daemon in (open_target, open_source):
        logs_that_it_is_insecure(daemon)
    for daemon in (source, target, certified, certified_source):
        assert "insecure" not in daemon.log.read_text()


def test_insecure_option_beyond_loopback_is_logged_at_start(world):
    target = Daemon(
        HOST, "target", world.mountpoint(), ["--listen", f"0.0.0.0:{free_port()}", "--insecure"]
    )
    world.daemons.append(target)
    logs_that_it_is_insecure(target)


# -- what is encrypted


def test_file_names_and_small_files_travel_encrypted(world):
    """A relay records the control connection. Such a small file travels in its announcement."""
    target = world.target()
    with Relay(("127.0.0.1", target.port)) as relay:
        target.peer_address = relay.address
        source = world.source(target, *SMALL)
        (source.mountpoint / "TheNameOfTheFile").write_bytes(b"TheContentOfTheFile" * 10)
        world.succeeds([find_ppmr(), "commit", source.mountpoint / "TheNameOfTheFile"])
        recorded = relay.recorded()
        assert len(recorded) > 1000 and b"PPMR" in recorded, "the relay recorded no connection"
        for secret in (b"TheNameOfTheFile", b"TheContentOfTheFile"):
            assert secret not in recorded


def test_replayed_hello_is_refused(world):
    target = audited_target(world)
    with Relay(("127.0.0.1", target.port)) as relay:
        target.peer_address = relay.address
        source = world.source(target, *SMALL)
        world.write(source.mountpoint / "before", 3 * MIB).succeeds()
        hellos = [hello for hello in relay.hellos() if hello[:4] == b"PPMR"]
        assert hellos, "the relay recorded no data hello"
        for hello in hellos:
            with socket.create_connection(("127.0.0.1", target.port), timeout=patience(5)) as thief:
                thief.sendall(hello)
                thief.settimeout(patience(5))
                began = time.monotonic()
                answer = thief.recv(4096)
                assert time.monotonic() - began < REFUSED_WITHIN
                assert b"used before" in answer, answer

        def replays():
            lines = audit_lines(target.audit)
            return [line for line in lines if "used before" in line.get("reason", "")]

        wait_until(lambda: len(replays()) == len(hellos), 5, "the audit trail to have each replay")
        assert {(line["outcome"], line["service"]) for line in replays()} == {("refused", "data")}
        world.write(source.mountpoint / "after", 3 * MIB).succeeds()
        assert world.read(target.mountpoint / "after").succeeds()["sha256"] == digest_of_written(
            3 * MIB
        )


def test_session_resumes_over_tls_after_its_connections_were_cut(world):
    target = world.target()
    with Relay(("127.0.0.1", target.port)) as relay:
        target.peer_address = relay.address
        source = world.source(target, *SMALL)
        writer = world.write(source.mountpoint / "file", 48 * MIB, pause=0.02)
        for mib in (4, 16, 28):
            writer.wait_for(mib)
            relay.cut()
        writer.succeeds()
        assert world.read(target.mountpoint / "file").succeeds()["sha256"] == digest_of_written(
            48 * MIB
        )
        status = world.status(source.mountpoint)
        assert status["reconnections"] >= 1 and status["peers"][0]["security"].startswith("tls-psk")
