"""Wrong flags, sizes, mount points and peers end ppmr soon, with an exit code and a message that
names the error."""
import socket
import struct
import threading

import pytest

from lab.node import HOST, free_port
from lab.pace import patience
from lab.ppmr import Daemon, find_ppmr
from lab.world import GRACE, MIB, PEER_TIMEOUT, digest_of_written

MOUNT = object()  # a fresh empty directory
LISTEN = ["--listen", "127.0.0.1:0"]
USAGE, PEER_FAILED = 2, 4
UNKNOWN_HOST = "no.such.host.invalid:7440"


def is_refused(world, words, *names, within=30):
    """ppmr ends with an error that contains one of the names, and leaves no mount."""
    before = world.mounts()
    ended = world.ppmr(*words, within=within)
    assert (
        ended.code > 0
    ), f"ppmr {' '.join(map(str, words))} ended with {ended.code}: {ended.output}"
    assert any(
        name in ended.err for name in names
    ), f"the message does not contain {' or '.join(names)}: {ended.output!r}"
    for crash in ("terminate called", "what():", "Assertion", "Sanitizer"):
        assert crash not in ended.output, ended.output
    assert world.mounts() == before
    return ended


TARGET, SOURCE, DISCARD = (
    ["target", MOUNT, *LISTEN],
    ["source", MOUNT, "--target", "127.0.0.1:1"],
    ["source", MOUNT, "--discard"],
)
WRONG_WORDS = [
    ([], "subcommand"),
    (["moved"], "moved"),
    (["target"], "mountpoint", "MOUNTPOINT"),
    (["target", MOUNT], "--listen"),
    (["source", MOUNT], "--target"),
    ([*TARGET, "--nonsense"], "--nonsense"),
    ([*SOURCE, "--nonsense"], "--nonsense"),
    (["migrate", "--nonsense"], "--nonsense"),
    (["evacuate", "--mount", MOUNT, "--nonsense"], "--nonsense"),
    (["job"], "subcommand"),
    (["job", "agent"], "--bridge"),
    (["job", "agent", "--bridge", "b"], "--key-file"),
    (["job", "agent", "--bridge", "b", "--insecure"], "--key-file"),
    (["job", "agent", "--bridge", "b", "--host", "a/b"], "'a/b'"),
    (["job", "agent", "--bridge", "b", "--share", "home"], "--share home"),
    (["job", "agent", "--bridge", "b", "--host-timeout", "soon"], "--host-timeout"),
    (["job", "run"], "COMMAND"),
    (["job", "run", "--nonsense", "--", "true"], "--nonsense"),
    (["job", "run", "--", "true"], "--hosts"),
    (["job", "run", "--hosts", "a,b", "--spares", "2", "--", "true"], "--spares 2"),
    (["job", "run", "--hosts", "a", "--socket", "/none", "--", "true"], "/none", "job agent"),
    (["job", "evacuate", "h", "--socket", "/none"], "/none"),
    (["job", "evacuate", "h", "--ranks", "0-3"], "share memory"),
    (["job", "status", "--socket", "/none"], "/none"),
    (["job", "rsh", "host", "true"], "/run/ppmr/token"),
    ([*SOURCE, "--discard"], "--discard"),
    ([*TARGET, "--chunk-size", "1MiB"], "--chunk-size"),  # an option of the source
    ([*DISCARD, "--memory-limit", "1MiB"], "--memory-limit"),  # an option of the target
    ([*DISCARD, "--chunk-size", "65537"], "65537 bytes"),
    *[
        ([*DISCARD, "--chunk-size", value], "--chunk-size")
        for value in ("lots", "0", "-1", "", "1", "63KiB", "2MiB", "1XiB", "99999999999999999999")
    ],
    *[
        ([*DISCARD, "--pool-size", value], "--pool-size")
        for value in ("lots", "0", "-5MiB", "", "64MB2", "99999999TiB", "99999999999999999999999")
    ],
    ([*DISCARD, "--pool-size", "512KiB", "--chunk-size", "1MiB"], "--pool-size"),
    ([*DISCARD, "--pool-size", "64KiB"], "--pool-size"),
    ([*DISCARD, "--pool-size", "1MiB", "--chunk-size", "1MiB"], "--pool-size"),
    *[
        ([*DISCARD, "--streams", value], "--streams")
        for value in ("0", "-1", "many", "100000", "1.5")
    ],
    *[([*SOURCE, "--peer-timeout", value], "--peer-timeout") for value in ("-1", "soon", "0", "")],
    *[([*TARGET, "--peer-timeout", value], "--peer-timeout") for value in ("-1", "soon", "0")],
    *[([*TARGET, "--memory-limit", value], "--memory-limit") for value in ("lots", "-1", "12QiB")],
    *[([*TARGET, "--transport", value], "--transport") for value in ("pigeon", "")],
    ([*TARGET, "--allow-restart"], "as root"),  # on loopback, without authentication
    ([*TARGET, "--spill-dir", "/does/not/exist"], "/does/not/exist"),
    ([*TARGET, "--spill-dir", "/etc/hostname"], "/etc/hostname"),
    ([*TARGET, "--keep-dir", "/tmp"], "ppmr keygen FILE", "--keep-key FILE"),
    ([*TARGET, "--keep-dir", "/tmp", "--keep-key", "/does/not/exist"], "/does/not/exist"),
    ([*TARGET, "--keep-key", "/tmp"], "--keep-dir"),
    ([*TARGET, "--keep-count", "3"], "--keep-dir"),
    ([*TARGET, "--keep-dir", "/tmp", "--consume"], "--consume"),
    ([*TARGET, "--keep-dir", "/tmp", "--keep-age", "soon"], "--keep-age"),
    ([*DISCARD, "--log-file", "/does/not/exist/log"], "/does/not/exist/log"),
    *[
        (["target", MOUNT, "--listen", value], "--listen", value or "--listen")
        for value in ("127.0.0.1:99999", "127.0.0.1:http!", "127.0.0.1:-1", UNKNOWN_HOST, "")
    ],
    (
        ["target", MOUNT, "--listen", "192.0.2.1:7440"],
        "192.0.2.1",
    ),  # TEST-NET-1: not an address of this machine
    *[
        (["source", MOUNT, "--target", value], "--target", value or "--target")
        for value in ("127.0.0.1:99999", "127.0.0.1:", UNKNOWN_HOST, "")
    ],
    (["commit"], "DIR", "dir"),
    (["commit", "/does/not/exist"], "/does/not/exist"),
    (["commit", "/usr"], "/usr"),
    (["restart", "/does/not/exist"], "/does/not/exist"),
    (["restart", "/usr"], "/usr"),
    (["restart", "/usr", "--timeout", "soon"], "--timeout"),
    *[
        (["migrate", "--recover", *words], "--recover")
        for words in (["--dry-run"], ["--eager"], ["--jobs", "3"], ["--pid", "1"])
    ],
    (["status", "/does/not/exist"], "/does/not/exist"),
    (["status", "/usr"], "/usr"),
]


def _words(words):
    return " ".join("MOUNT" if word is MOUNT else word or "''" for word in words) or "(nothing)"


@pytest.mark.parametrize("case", WRONG_WORDS, ids=lambda case: _words(case[0]).replace("/", "|"))
def test_wrong_command_line_is_refused(world, case):
    words, *names = case
    ended = is_refused(
        world, [world.mountpoint() if word is MOUNT else word for word in words], *names
    )
    if names[0].startswith("--"):
        no_such_peer = "--target" in words and UNKNOWN_HOST in words
        assert ended.code == (PEER_FAILED if no_such_peer else USAGE), ended.output


def test_version_and_help_are_printed(world):
    assert any(character.isdigit() for character in world.succeeds([find_ppmr(), "--version"]).out)
    for words in (["--help"], ["target", "--help"], ["source", "--help"], ["restart", "--help"]):
        assert "--" in world.succeeds([find_ppmr(), *words]).out


def test_status_without_mounts_succeeds(nodes, ppmr):
    nodes.source.run([ppmr, "status", "--json"])


# -- mount points


@pytest.mark.parametrize("role", ["target", "source"])
def test_mount_point_that_cannot_be_made_is_refused(world, role):
    options = LISTEN if role == "target" else ["--discard"]
    below = world.directory / "file"
    below.write_text("x")
    is_refused(world, [role, below / "missing", *options], str(below / "missing"))


def test_missing_mount_point_is_made(world):
    mountpoint = world.directory / "not" / "there"
    daemon = Daemon(HOST, "source", mountpoint, ["--discard"])
    daemon.close()
    assert mountpoint.is_dir()


@pytest.mark.parametrize("role", ["target", "source"])
def test_file_as_mount_point_is_refused(world, role):
    path = world.directory / "file"
    path.write_text("x")
    is_refused(world, [role, path, *(LISTEN if role == "target" else ["--discard"])], str(path))


@pytest.mark.parametrize("role", ["target", "source"])
def test_second_mount_on_ppmr_mount_is_refused_and_first_keeps_working(world, role):
    source, target = world.pair()
    busy = target.mountpoint if role == "target" else source.mountpoint
    options = ["--listen", f"127.0.0.1:{free_port()}"] if role == "target" else ["--discard"]
    is_refused(world, [role, busy, *options], str(busy))
    moves_a_file(world, source, target)


def test_second_target_on_same_port_is_refused(world):
    source, target = world.pair()
    is_refused(
        world, ["target", world.mountpoint(), "--listen", target.peer_address], str(target.port)
    )
    moves_a_file(world, source, target)


# -- peers


def moves_a_file(world, source, target, name="file"):
    world.write(source.mountpoint / name, 3 * MIB + 1).succeeds()
    assert world.read(target.mountpoint / name).succeeds()["sha256"] == digest_of_written(
        3 * MIB + 1
    )


def test_error_message_names_unreachable_target(world):
    address = f"127.0.0.1:{free_port()}"
    is_refused(
        world,
        ["source", world.mountpoint(), "--target", address, "--peer-timeout", PEER_TIMEOUT],
        address,
        within=PEER_TIMEOUT + 10,
    )


class ForeignServer:
    """A TCP server that is no ppmr target. It sends `answer` on each connection; None: no bytes."""

    def __init__(self, answer, after_request=False):
        self._answer, self._after_request = answer, after_request
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open = []
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._open.append(connection)
            try:
                if self._after_request:
                    connection.recv(4096)
                if self._answer is not None:
                    connection.sendall(self._answer)
                    connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def close(self):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(timeout=patience(5))
        for connection in self._open:
            connection.close()


@pytest.fixture
def foreign_server():
    made = []

    def make(*words, **options):
        made.append(ForeignServer(*words, **options))
        return made[-1]

    yield make
    for server in made:
        server.close()


VERSION = 2


def prefix(version, kind, length, magic=b"PPMR"):
    """Returns the start of every handshake, which is the same in all versions
    (rdma_stream/wire/wire.h).
    """
    return magic + struct.pack("<HHI", version, kind, length)


@pytest.mark.parametrize(
    "banner",
    [b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", b"220 mail.example.org ESMTP ready\r\n"],
    ids=["ssh", "smtp"],
)
def test_error_message_quotes_ssh_or_smtp_banner_of_wrong_server(world, foreign_server, banner):
    server = foreign_server(banner)
    ended = is_refused(
        world,
        ["source", world.mountpoint(), "--target", server.address, "--peer-timeout", PEER_TIMEOUT],
        server.address,
        within=PEER_TIMEOUT + 10,
    )
    assert banner[:7].decode() in ended.err


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"",
        b"P",
        b"PPMR",
        b"\0" * 4096,
        b"\xff" * 65536,
        prefix(VERSION, 3, 0xFFFFFFFF),
        prefix(VERSION, 3, 4) + b"abcd",
        prefix(VERSION, 77, 0),
        prefix(VERSION, 4, 6) + b"\1\0\xff\xff\xff\xff",
    ],
    ids=[
        "http",
        "hangs-up",
        "one-byte",
        "magic-only",
        "zeroes",
        "ones",
        "endless-welcome",
        "short-welcome",
        "unknown-kind",
        "broken-reject",
    ],
)
def test_peer_with_invalid_answer_is_refused(world, foreign_server, answer):
    server = foreign_server(answer, after_request=True)
    is_refused(
        world,
        ["source", world.mountpoint(), "--target", server.address, "--peer-timeout", PEER_TIMEOUT],
        server.address,
        within=PEER_TIMEOUT + 10,
    )


def test_silent_peer_is_abandoned_after_peer_timeout(world, foreign_server):
    server = foreign_server(None)
    is_refused(
        world,
        ["source", world.mountpoint(), "--target", server.address, "--peer-timeout", PEER_TIMEOUT],
        server.address,
        within=PEER_TIMEOUT + 10,
    )


def test_error_message_names_version_of_incompatible_target(world, foreign_server):
    server = foreign_server(prefix(999, 3, 0), after_request=True)
    ended = is_refused(
        world,
        ["source", world.mountpoint(), "--target", server.address, "--peer-timeout", PEER_TIMEOUT],
        "version",
        within=PEER_TIMEOUT + 10,
    )
    assert "999" in ended.err


def send_to(target, message, wait=True):
    """Sends the bytes to the target and returns its answer, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", target.port), timeout=patience(5)) as connection:
        connection.settimeout(patience(PEER_TIMEOUT + GRACE + 5))
        answer = b""
        try:
            connection.sendall(message)
            while wait:
                some = connection.recv(4096)
                if not some:
                    break
                answer += some
        except ConnectionError:
            pass
        return answer


def test_target_rejects_source_of_another_version_with_reason(world):
    target = world.target()
    answer = send_to(target, prefix(999, 1, 0))
    assert answer[:4] == b"PPMR", answer
    _, kind, length = struct.unpack("<HHI", answer[4:12])
    reason, text_length = struct.unpack("<HI", answer[12:18])
    assert (kind, reason) == (4, 1), "expected a rejection because of the version"
    assert (
        b"version" in answer[18 : 18 + text_length] and len(answer) == 12 + length + 4
    ), "the rejection does not consist of prefix, body and checksum"
    moves_a_file(world, world.source(target), target)


@pytest.mark.parametrize(
    "message",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\0" * 100_000,
        b"\x16\x03\x01\x02\x00" + bytes(500),
        prefix(VERSION, 1, 0xFFFFFFFF),
        prefix(VERSION, 1, 0),
        prefix(VERSION, 1, 70) + b"\xff" * 70,
        prefix(VERSION, 2, 60) + bytes(60),
        prefix(VERSION, 9, 0),
        prefix(VERSION, 3, 0),
        b"PP",
        b"",
    ],
    ids=[
        "http",
        "ssh",
        "zeroes",
        "tls",
        "endless-hello",
        "empty-hello",
        "hello-of-ones",
        "data-without-session",
        "unknown-kind",
        "welcome",
        "half-a-prefix",
        "nothing",
    ],
)
def test_foreign_client_at_target_port_does_not_disturb_sessions(world, message):
    source, target = world.pair()
    moves_a_file(world, source, target, "before")
    send_to(target, message, wait=message not in (b"PP", b""))
    moves_a_file(world, source, target, "after")
    assert target.running() and source.running()


def test_fifty_silent_clients_do_not_block_a_source(world):
    target = world.target()
    clients = [
        socket.create_connection(("127.0.0.1", target.port), timeout=patience(5)) for _ in range(50)
    ]
    try:
        moves_a_file(world, world.source(target), target)
    finally:
        for client in clients:
            client.close()
