"""Keys, certificates and addresses that a daemon refuses when it starts."""
import os

import pytest

from lab.ppmr import find_ppmr


@pytest.mark.parametrize("role", ["target", "source"])
def test_key_is_required_beyond_loopback(world, role):
    for address in (
        ("0.0.0.0:0", "[::]:0", ":0")
        if role == "target"
        else ("192.0.2.1:7440", "[2001:db8::1]:7440")
    ):
        world.refuses_to_start(
            [
                role,
                world.mountpoint(),
                *(["--listen"] if role == "target" else ["--target"]),
                address,
            ],
            "--key-file",
            "--insecure",
        )


@pytest.fixture
def key(world):
    path = world.directory / "some-key"
    world.succeeds([find_ppmr(), "keygen", path])
    return path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_key_that_other_users_can_access_is_refused(world, key, mode):
    key.chmod(mode)
    world.refuses_to_start(
        ["target", world.mountpoint(), "--listen", "127.0.0.1:0", "--key-file", key],
        str(key),
        "other users can access it",
        "chmod",
    )


def test_key_file_owned_by_another_user_is_refused(world, key):
    os.chown(key, 65534, 65534)
    world.refuses_to_start(
        ["target", world.mountpoint(), "--listen", "127.0.0.1:0", "--key-file", key],
        str(key),
        "65534",
    )


@pytest.mark.parametrize(
    "content, message",
    [("", "is empty"), ("0123456789abcdef\n", "16 characters"), ("x" * 64, "hexadecimal")],
    ids=["empty", "short", "not-hexadecimal"],
)
def test_invalid_key_file_is_refused(world, key, content, message):
    key.write_text(content)
    world.refuses_to_start(
        ["target", world.mountpoint(), "--listen", "127.0.0.1:0", "--key-file", key],
        str(key),
        message,
    )


def test_private_key_that_other_users_can_read_is_refused(world, authority):
    options = authority.issue("node1", "target")
    (authority.directory / "node1.key").chmod(0o644)
    world.refuses_to_start(
        ["target", world.mountpoint(), "--listen", "127.0.0.1:0", *options],
        "node1.key",
        "other users can access it",
    )


def test_contradictory_credentials_are_refused(world, key, authority):
    certificate = authority.issue("node1", "target")
    listen = ["target", world.mountpoint(), "--listen", "127.0.0.1:0"]
    world.refuses_to_start([*listen, "--key-file", key, *certificate], "excludes")
    world.refuses_to_start([*listen, "--key-file", key, "--insecure"], "excludes")
    world.refuses_to_start([*listen, *certificate[:6]], "--allow-peer is missing")
    world.refuses_to_start([*listen, *certificate[:2], "--allow-peer", "x"], "required together")
    world.refuses_to_start([*listen, "--allow-peer", "x"], "requires --tls-cert or --key-file")
    world.refuses_to_start([*listen, "--key-file", key, "--crl", key], "--crl requires --tls-cert")
    link = world.directory / "link"
    link.symlink_to(key)
    world.refuses_to_start([*listen, "--key-file", key, "--audit-file", link], "symbolic link")


def test_keygen_creates_key_and_does_not_overwrite_files(world):
    path = world.directory / "new"
    done = world.succeeds([find_ppmr(), "keygen", path])
    assert path.stat().st_mode & 0o777 == 0o600
    content = path.read_text()
    assert len(content) == 65 and content.strip() not in done.output
    again = world.ppmr("keygen", path)
    assert again.code == 2 and "does not overwrite keys" in again.err
    assert path.read_text() == content
