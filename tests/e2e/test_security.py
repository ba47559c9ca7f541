"""Who may talk to a target: the wrong ones are refused at once, both sides say why, and nobody else notices."""
import os
import socket
import time

import pytest

from lab.certificates import Authority
from lab.node import HOST, free_port, wait_until
from lab.ppmr import Daemon, find_ppmr, make_key
from lab.relay import Relay
from lab.world import MIB, PEER_TIMEOUT, World, digest_of_written

AT_ONCE = 1.0  # seconds, from the start of ppmr to its end
SMALL = ["--pool-size", "4MiB"]  # memory that is touched at start counts, too


@pytest.fixture
def world(ppmr, tmp_path):
    world = World(tmp_path)
    yield world
    world.close()


@pytest.fixture
def authority(need_command, tmp_path):
    need_command("openssl")
    return Authority(tmp_path / "authority")


def is_refused(world, target, credentials, source_says, target_says):
    """A source with these credentials: ended at once, with these words at both sides."""
    heard_before = len(target.log.read_text())
    ended = world.ppmr(
        "source",
        world.mountpoint("stranger"),
        "--target",
        target.peer_address,
        *SMALL,
        *credentials,
        within=PEER_TIMEOUT + 10,
    )
    assert (
        ended.code == 4
    ), f"ended with {ended.code}: {ended.output}"  # the peer failed: mount/command_line/exit_code.h
    assert source_says in ended.err, f"the source does not say '{source_says}': {ended.err!r}"
    assert target.peer_address in ended.err, ended.err
    deadline = time.monotonic() + 2
    while target_says not in target.log.read_text()[heard_before:]:
        assert (
            time.monotonic() < deadline
        ), f"the target does not say '{target_says}': {target.log.read_text()[heard_before:]!r}"
        time.sleep(0.02)
    assert ended.seconds < AT_ONCE, f"refused only after {ended.seconds:.2f} s"


class Stream:
    """A session of somebody else, under way all the time."""

    SIZE = 48 * MIB

    def __init__(self, world, source, target):
        self._writer = world.write(source.mountpoint / "undisturbed", self.SIZE, pause=0.03)
        self._writer.wait_for(2)
        self._target = target
        self._world = world

    def ends_well(self):
        assert self._writer.running(), "it ended before the others were refused: nothing was shown"
        self._writer.succeeds()
        assert self._world.read(self._target.mountpoint / "undisturbed").succeeds()[
            "sha256"
        ] == digest_of_written(self.SIZE)


# -- the wrong ones


def test_with_a_key_only_those_who_have_it_are_let_in_and_others_undisturbed(world, authority):
    source, target = world.pair(SMALL)
    stream = Stream(world, source, target)
    wrong_key = make_key(world.directory / "wrong", HOST)
    is_refused(world, target, wrong_key, "has another key", "has another key")
    is_refused(world, target, [], "give the source the same --key-file", "in plain text")
    is_refused(
        world, target, ["--insecure"], "give the source the same --key-file", "in plain text"
    )
    is_refused(world, target, authority.issue("node1", "target"), "TLS", "TLS handshake")
    stream.ends_well()


def test_with_certificates_only_the_valid_ones_of_allowed_peers_are_let_in_and_others_undisturbed(
    world, authority, tmp_path
):
    target = world.target(*authority.issue("target", "node1", "node2"))
    source = world.source(target, *SMALL, *authority.issue("node1", "target"))
    stream = Stream(world, source, target)
    foreign = Authority(tmp_path / "foreign", name="foreign")
    foreign.issue("node1")
    is_refused(
        world,
        target,
        foreign.options("node1", "target", authority=authority),
        "unknown CA",
        "certificate 'node1' of the other side: unable to get",
    )
    is_refused(
        world,
        target,
        foreign.options("node1", "target"),
        "certificate 'target' of the other side",
        "unknown CA",
    )
    is_refused(
        world,
        target,
        authority.issue("node2", "target", days=-1),
        "certificate expired",
        "certificate 'node2' of the other side: certificate has expired",
    )
    is_refused(world, target, authority.issue("node3", "target"), "'node3'", "'node3' of 127.0.0.1")
    is_refused(
        world,
        target,
        authority.issue("node2", "another"),
        "none of its names is allowed",
        "the source refused",
    )
    is_refused(
        world, target, [], "give the source the same --key-file, or a certificate", "in plain text"
    )
    is_refused(
        world,
        target,
        make_key(world.directory / "wrong", HOST),
        "has a certificate",
        "TLS handshake",
    )
    stream.ends_well()


def test_a_source_with_a_key_does_not_talk_to_a_target_without(world):
    target = world.target("--insecure")
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


def test_silent_and_trickling_strangers_hold_up_nobody(world):
    target = world.target()
    strangers = [socket.create_connection(("127.0.0.1", target.port), timeout=5) for _ in range(60)]
    try:
        for stranger in strangers[::2]:
            stranger.send(b"\x16")  # the first byte of TLS
        began = time.monotonic()
        source = world.source(target, *SMALL)
        assert time.monotonic() - began < AT_ONCE
        stream = Stream(world, source, target)
        for stranger in strangers[::4]:
            stranger.send(b"\x03")
        stream.ends_well()
    finally:
        for stranger in strangers:
            stranger.close()


# -- the right ones


def says_it_is_insecure(daemon):
    wait_until(
        lambda: "--insecure: peers do not prove who they are" in daemon.log.read_text(),
        2,
        f"the {daemon.role} to say that it is insecure",
    )


def test_a_key_and_certificates_are_what_status_says(world, authority):
    source, target = world.pair(SMALL)
    certified = world.target(*authority.issue("target", "node1"))
    certified_source = world.source(certified, *SMALL, *authority.issue("node1", "target"))
    open_target = world.target("--insecure")
    open_source = world.source(open_target, *SMALL, "--insecure")
    for daemon, security in (
        (source, "tls-psk"),
        (target, "tls-psk"),
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
    for daemon in (open_target, open_source):
        says_it_is_insecure(daemon)
    for daemon in (source, target, certified, certified_source):
        assert "insecure" not in daemon.log.read_text()


# -- keys, certificates and addresses that are refused at start


def refused_at_start(world, words, *says):
    ended = world.ppmr(*words, within=10)
    assert ended.code == 2, f"ended with {ended.code}: {ended.output}"
    for word in says:
        assert word in ended.err, f"the message does not say '{word}': {ended.err!r}"


@pytest.mark.parametrize("role", ["target", "source"])
def test_beyond_loopback_a_key_is_needed(world, role):
    for address in (
        ("0.0.0.0:0", "[::]:0", ":0")
        if role == "target"
        else ("192.0.2.1:7440", "[2001:db8::1]:7440")
    ):
        refused_at_start(
            world,
            [
                role,
                world.mountpoint(),
                *(["--listen"] if role == "target" else ["--target"]),
                address,
            ],
            "--key-file",
            "--insecure",
        )


def test_insecure_beyond_loopback_is_said_at_start(world):
    target = Daemon(
        HOST, "target", world.mountpoint(), ["--listen", f"0.0.0.0:{free_port()}", "--insecure"]
    )
    world.daemons.append(target)
    says_it_is_insecure(target)


@pytest.fixture
def key(world):
    path = world.directory / "some-key"
    world.succeeds([find_ppmr(), "keygen", path])
    return path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_key_that_others_can_use_is_refused(world, key, mode):
    key.chmod(mode)
    refused_at_start(
        world,
        ["target", world.mountpoint(), "--listen", "127.0.0.1:0", "--key-file", key],
        str(key),
        "others can use it",
        "chmod",
    )


def test_a_key_of_another_user_is_refused(world, key):
    os.chown(key, 65534, 65534)
    refused_at_start(
        world,
        ["target", world.mountpoint(), "--listen", "127.0.0.1:0", "--key-file", key],
        str(key),
        "65534",
    )


@pytest.mark.parametrize(
    "content, says",
    [("", "is empty"), ("0123456789abcdef\n", "16 characters"), ("x" * 64, "hexadecimal")],
    ids=["empty", "short", "not-hexadecimal"],
)
def test_a_key_file_with_something_else_is_refused(world, key, content, says):
    key.write_text(content)
    refused_at_start(
        world,
        ["target", world.mountpoint(), "--listen", "127.0.0.1:0", "--key-file", key],
        str(key),
        says,
    )


def test_a_private_key_that_others_can_read_is_refused(world, authority):
    options = authority.issue("node1", "target")
    (authority.directory / "node1.key").chmod(0o644)
    refused_at_start(
        world,
        ["target", world.mountpoint(), "--listen", "127.0.0.1:0", *options],
        "node1.key",
        "others can use it",
    )


def test_credentials_that_contradict_each_other_are_refused(world, key, authority):
    certificate = authority.issue("node1", "target")
    listen = ["target", world.mountpoint(), "--listen", "127.0.0.1:0"]
    refused_at_start(world, [*listen, "--key-file", key, *certificate], "one of them")
    refused_at_start(world, [*listen, "--key-file", key, "--insecure"], "one of them")
    refused_at_start(world, [*listen, *certificate[:6]], "--allow-peer is missing")
    refused_at_start(world, [*listen, *certificate[:2], "--allow-peer", "x"], "all three or none")
    refused_at_start(world, [*listen, "--allow-peer", "x"], "without --tls-cert")


def test_keygen_makes_a_key_and_overwrites_nothing(world):
    path = world.directory / "new"
    said = world.succeeds([find_ppmr(), "keygen", path])
    assert path.stat().st_mode & 0o777 == 0o600
    content = path.read_text()
    assert len(content) == 65 and content.strip() not in said.output
    again = world.ppmr("keygen", path)
    assert again.code == 2 and "overwritten" in again.err
    assert path.read_text() == content


# -- what travels


def test_names_and_small_files_do_not_travel_in_plain_text(world):
    """The control connection is listened to at a relay; a file so small that it travels in its announcement must not be seen."""
    target = world.target()
    with Relay(target.port) as relay:
        target.peer_address = relay.address
        source = world.source(target, *SMALL)
        (source.mountpoint / "TheNameOfTheFile").write_bytes(b"TheContentOfTheFile" * 10)
        world.succeeds([find_ppmr(), "commit", source.mountpoint / "TheNameOfTheFile"])
        heard = relay.heard()
        assert len(heard) > 1000 and b"PPMR" in heard, "the relay heard nothing: nothing was shown"
        for secret in (b"TheNameOfTheFile", b"TheContentOfTheFile"):
            assert secret not in heard


def test_a_hello_that_was_overheard_is_of_no_use(world):
    target = world.target()
    with Relay(target.port) as relay:
        target.peer_address = relay.address
        source = world.source(target, *SMALL)
        world.write(source.mountpoint / "before", 3 * MIB).succeeds()
        hellos = [bytes(said) for said in relay.first_words() if said[:4] == b"PPMR"]
        assert hellos, "no data hello was heard"
        for hello in hellos:
            with socket.create_connection(("127.0.0.1", target.port), timeout=5) as thief:
                thief.sendall(hello)
                thief.settimeout(5)
                answer = thief.recv(4096)
                assert b"used before" in answer, answer
        world.write(source.mountpoint / "after", 3 * MIB).succeeds()
        assert world.read(target.mountpoint / "after").succeeds()["sha256"] == digest_of_written(
            3 * MIB
        )


def test_a_session_goes_on_over_tls_after_its_connections_were_cut(world):
    target = world.target()
    with Relay(target.port) as relay:
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
        assert status["reconnections"] >= 1 and status["peers"][0]["security"] == "tls-psk"
