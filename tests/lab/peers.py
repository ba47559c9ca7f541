"""The usual ways to move a process: CRIU into a tmpfs and tar over the network, or CRIU's page
server.

Both are tuned for speed.
"""
import subprocess
from pathlib import Path

from . import criu
from .move import Move, now
from .node import LabError
from .pace import patience

TAR_PORT = 7901
PAGE_PORT = 7802

# tar writes directly to a socket, because nc, ssh or a shell would slow it down.
SEND = "import os,socket,sys; s=socket.create_connection((sys.argv[1],int(sys.argv[2]))); os.dup2(s.fileno(),1); os.execvp('tar',['tar','-b2048','-cf','-','-C',sys.argv[3],'.'])"
RECEIVE = (
    "import os,socket,sys; l=socket.create_server((sys.argv[1],int(sys.argv[2]))); print('listening',flush=True); c,_=l.accept(); os.dup2(c.fileno(),0); "
    "os.execvp('tar',['tar','-b2048','-xf','-','-C',sys.argv[3]])"
)


class TarCopy:
    """A tar at the target that receives one directory of the source."""

    def __init__(self, source, target, into, port):
        self._source, self._target, self._port = source, target, port
        self._receiver = target.popen(
            ["/usr/bin/python3", "-SEc", RECEIVE, target.address, port, into],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._receiver.stdout.readline().strip() != "listening":
            raise LabError(
                f"tar cannot listen on {target.name}: {self._receiver.stderr.read().strip()}"
            )

    def copy(self, directory, timeout=120):
        self._source.run(
            ["/usr/bin/python3", "-SEc", SEND, self._target.address, self._port, directory],
            timeout=timeout,
        )
        if self._receiver.wait(timeout=patience(timeout)) != 0:
            raise LabError(
                f"tar on {self._target.name} failed: {self._receiver.stderr.read().strip()}"
            )

    def close(self):
        if self._receiver.poll() is None:
            # nsenter does not forward signals, so an empty connection ends the tar.
            self._source.run(
                [
                    "/usr/bin/python3",
                    "-SEc",
                    "import socket,sys; socket.create_connection((sys.argv[1],int(sys.argv[2])))",
                    self._target.address,
                    self._port,
                ],
                check=False,
            )
            self._receiver.wait(timeout=patience(10))
        self._receiver.stdout.close()
        self._receiver.stderr.close()


class _PeerMove(Move):
    """Images in a new tmpfs on both nodes. The receivers are ready when the dump begins."""

    def prepare(self, label):
        self._pages = None
        self._at_source = self.source.scratch(f"{label}-images", tmpfs=True)
        self._at_target = self.target.scratch(f"{label}-images", tmpfs=True)
        self._work_source, self._work_target = self.source.scratch(
            f"{label}-work"
        ), self.target.scratch(f"{label}-work")
        self._tar = TarCopy(self.source, self.target, self._at_target, TAR_PORT)

    def _restore(self, options):
        if self.lazily:
            self._pages = criu.restore_lazily(
                self.target, self._at_target, self._work_target, options
            )
        else:
            criu.restore(self.target, self._at_target, self._work_target, options)

    def check(self):
        if self._pages:
            self._pages.check()

    def finish(self):
        """Waits until a lazily restored tree has all its pages."""
        if self._pages:
            self._pages.finish()
            self._pages = None

    def clean(self):
        self.finish()
        self._tar.close()
        for node, scratch in (
            (self.source, self._at_source),
            (self.target, self._at_target),
            (self.source, self._work_source),
            (self.target, self._work_target),
        ):
            node.drop_scratch(scratch)


class TarMove(_PeerMove):
    name = "tmpfs + tar + restore"

    def _transfer(self, pid, timeline, dump_options, restore_options):
        timeline.dump_began = now()
        criu.dump(self.source, pid, self._at_source, self._work_source, dump_options)
        timeline.dump_done = now()
        self._tar.copy(self._at_source)
        timeline.arrived = now()
        self._restore(restore_options)


class PageServerMove(_PeerMove):
    name = "CRIU page server"

    def prepare(self, label):
        super().prepare(label)
        self._server = criu.PageServer(self.target, self._at_target, self._work_target, PAGE_PORT)

    def _transfer(self, pid, timeline, dump_options, restore_options):
        timeline.dump_began = now()
        criu.dump(
            self.source,
            pid,
            self._at_source,
            self._work_source,
            ["--page-server", "--address", self.target.address, "--port", PAGE_PORT, *dump_options],
        )
        timeline.dump_done = now()
        self._server.finish()
        self._tar.copy(self._at_source)
        timeline.arrived = now()
        self._restore(restore_options)


def image_bytes(at, images):
    return sum(
        file.stat().st_size for file in Path(at.host_path(images)).iterdir() if file.is_file()
    )
