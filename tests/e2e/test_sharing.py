"""Memory that processes share by copy-on-write is sent once, and is shared again at the target."""
import hashlib

import pytest

from lab.memory import anonymous_mib
from lab.node import wait_until

MIB = 1 << 20
SIZE_MIB = 48
CHILDREN = 4

# A parent and children that share SIZE_MIB. Each child has memory of its own next to it, and has
# changed a page of what it shares. Asked for by a file, each process writes the digest of its
# memory.
PREFORK = f"""
import hashlib, os, sys, time
directory = sys.argv[1]
memory = bytearray(hashlib.shake_256(b"ppmr").digest({MIB}) * {SIZE_MIB})
number = 0
for child in range(1, {CHILDREN} + 1):
    if os.fork() == 0:
        number = child
        own = bytearray(os.urandom(child * 300_000))
        memory[{MIB} * number] = number
        break
open(f"{{directory}}/ready{{number}}", "w").close()
while not os.path.exists(f"{{directory}}/check"):
    time.sleep(0.05)
with open(f"{{directory}}/digest{{number}}.part", "w") as file:
    file.write(hashlib.sha256(memory).hexdigest())
os.rename(f"{{directory}}/digest{{number}}.part", f"{{directory}}/digest{{number}}")
time.sleep(1000)
"""


def digest_of(number):
    memory = bytearray(hashlib.shake_256(b"ppmr").digest(MIB) * SIZE_MIB)
    if number:
        memory[MIB * number] = number
    return hashlib.sha256(memory).hexdigest()


@pytest.mark.parametrize("options", [[], ["--post-copy"]], ids=["default", "post-copy"])
def test_prefork_server_shares_its_memory_at_the_target(lab, nodes, migrations, options):
    directory = lab.home / "prefork"
    directory.mkdir()
    pid = nodes.source.spawn(["python3", "-c", PREFORK, directory])
    wait_until(
        lambda: len(list(directory.glob("ready*"))) == CHILDREN + 1, 20, "the children to start"
    )
    before_mib = anonymous_mib(nodes.source, directory)
    assert before_mib < 2 * SIZE_MIB
    moved = migrations.migrate(pid, options=options).ok().summary["trees"][0]
    assert anonymous_mib(nodes.target, directory) < 1.15 * before_mib
    assert moved["bytes"] < 1.15 * before_mib * MIB, "shared pages were sent several times"
    (directory / "check").touch()
    for number in range(CHILDREN + 1):
        digest = directory / f"digest{number}"
        wait_until(digest.exists, 20, f"the digest of process {number}")
        assert digest.read_text() == digest_of(number)
    nodes.target.signal(pid, 9)
