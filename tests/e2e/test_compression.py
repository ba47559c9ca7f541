"""Processes that move compressed need fewer bytes on the wire, and have the same memory at the
target.
"""
import json

import pytest

from lab.node import wait_until
from lab.tap import TappedMigrations

MIB = 1 << 20
TEXT_MIB = 48
WORDS = b"the source compresses a chunk before it encrypts it, and the target does the reverse; "

# Has 48 MiB of text in which no line repeats, and reports every 20 ms that the text is unchanged.
KEEPER = """
import hashlib, sys, time
lines = (b"%d %s" % (number * 7919 % 1000003, sys.argv[1].encode()) for number in range(10**9))
text = bytearray()
while len(text) < 48 << 20:
    text += next(lines)
digest = hashlib.blake2b(text).digest()
with open(sys.argv[2], "ab", buffering=0) as log:
    while True:
        log.write(b"right\\n" if hashlib.blake2b(text).digest() == digest else b"WRONG\\n")
        time.sleep(0.02)
"""


class Keeper:
    def __init__(self, lab, node):
        self.log = lab.home / "keeper.log"
        self.pid = node.spawn(
            ["/usr/bin/python3", "-SEc", KEEPER, WORDS.decode(), self.log],
            log=lab.home / "errors",
        )
        self.goes_on()

    def goes_on(self):
        before = self.log.stat().st_size if self.log.exists() else 0
        wait_until(
            lambda: self.log.exists() and self.log.stat().st_size > before + 12,
            30,
            "the keeper of the text to go on",
        )
        assert b"WRONG" not in self.log.read_bytes()


@pytest.mark.parametrize("how", ["off", "lz4", "zstd"])
def test_text_of_a_moving_process_takes_fewer_bytes_on_the_wire(ppmr, lab, nodes, how):
    migrations = TappedMigrations(
        nodes.source, nodes.target, lab.directory / "private", ["--compress", how], []
    )
    try:
        keeper = Keeper(lab, nodes.source)
        migrations.migrate(keeper.pid).ok()
        assert nodes.target.alive(keeper.pid) and not nodes.source.alive(keeper.pid)
        keeper.goes_on()
        _, on_the_wire = migrations.recorded(WORDS)
        (at_source,), (at_target,) = (
            daemon.status()["peers"] for daemon in (migrations.source, migrations.target)
        )
        text = migrations.source.at.run([ppmr, "status", migrations.source.mountpoint]).stdout
        nodes.target.signal(keeper.pid, 9)
    finally:
        migrations.close()
    assert at_source["bytes"] == at_target["bytes"] > TEXT_MIB * MIB, json.dumps(at_source)
    assert at_source["wire_bytes"] == at_target["wire_bytes"]
    if how == "off":
        assert on_the_wire > at_source["bytes"] and at_source["wire_bytes"] == at_source["bytes"]
        assert "compression" not in text
    else:
        assert on_the_wire < at_source["bytes"] / 2
        assert at_source["compression"] == {"lz4": "lz4", "zstd": "zstd:1"}[how]
        assert f"compression: {at_source['compression']} " in text and " to 1" in text
