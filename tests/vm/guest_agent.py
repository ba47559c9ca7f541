"""Process 1 of a virtual machine: runs commands for the host (see protocol.py) and reaps orphans.

It listens in the network namespace that is connected to the host, and runs commands in the
machine's default one. A thread per connection. Only the main thread reaps, so the exit status of a
child has one owner.
"""
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

import protocol
from protocol import ANSWER, CHUNK, EXIT, FAILED, PID, SIGNAL, STDERR, STDIN, STDOUT, WINDOW

TOKEN = os.environ.pop("token")
ENVIRONMENT = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "PPMR_CRIU")}


class Children:
    """The children of this process. Stores the status of each until `forget`."""

    def __init__(self):
        self._changed = threading.Condition()
        self._status = {}  # pid -> None while it runs, then its returncode as in subprocess

    def start(self, argv, **options):
        with self._changed:  # reap() must not run before the status is stored
            child = subprocess.Popen(argv, **options)
            self._status[child.pid] = None
            return child

    def reap(self):
        with self._changed:
            while True:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    return
                if pid == 0:
                    return
                if pid in self._status:
                    self._status[pid] = os.waitstatus_to_exitcode(status)
                    self._changed.notify_all()

    def await_status(self, pid):
        with self._changed:
            self._changed.wait_for(lambda: self._status[pid] is not None)
            return self._status[pid]

    def signal(self, pid, number, group=False):
        with self._changed:
            if self._status.get(pid, 0) is None:  # the pid is still this child's
                try:
                    (os.killpg if group else os.kill)(pid, number)
                except ProcessLookupError:
                    pass

    def forget(self, pid):
        with self._changed:
            del self._status[pid]


children = Children()


class Command:
    def __init__(self, connection, request):
        self._connection = connection
        self._terminal = None
        options = {
            "cwd": request.get("cwd") or "/",
            "env": {**ENVIRONMENT, **request.get("env", {})},
        }
        argv = request["argv"]
        if request.get("window"):
            self._terminal, inner = os.openpty()
            self._set_window(*request["window"])
            # setsid sets the controlling terminal, start_new_session does not.
            self._child = children.start(
                ["setsid", "--ctty", "--wait", *argv],
                stdin=inner,
                stdout=inner,
                stderr=inner,
                **options,
            )
            os.close(inner)
            self._outlets = {self._terminal: STDOUT}
        else:
            stdin = subprocess.PIPE if request.get("stdin") else subprocess.DEVNULL
            self._child = children.start(
                argv,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                **options,
            )
            self._outlets = {
                self._child.stdout.fileno(): STDOUT,
                self._child.stderr.fileno(): STDERR,
            }

    def run(self):
        pid = self._child.pid
        exited = os.pidfd_open(pid)
        try:
            protocol.send(self._connection, PID, str(pid).encode())
            listener = threading.Thread(target=self._listen, daemon=True)
            listener.start()
            poll = select.poll()
            poll.register(exited, select.POLLIN)
            for fd in self._outlets:
                poll.register(fd, select.POLLIN)
            ended = False
            # A pipe delivers output until its last holder has closed it, which may be later than
            # the exit.
            while not ended or (self._outlets and self._terminal is None):
                for fd, _ in poll.poll():
                    if fd == exited:
                        ended = True
                        poll.unregister(exited)
                    else:
                        self._forward(fd, poll)
            protocol.send_json(self._connection, EXIT, children.await_status(pid))
        except OSError:
            children.signal(pid, signal.SIGKILL, group=True)  # the host closed the connection
        finally:
            os.close(exited)
            self._end(pid)

    def _forward(self, fd, poll):
        try:
            data = os.read(fd, CHUNK)
        except OSError:  # a terminal returns this error after the last process has closed it
            data = b""
        if data:
            protocol.send(self._connection, self._outlets[fd], data)
        else:
            poll.unregister(fd)
            del self._outlets[fd]

    def _listen(self):
        """Handles standard input and signals, until the host closes the connection."""
        pid = self._child.pid
        to = (
            self._terminal
            if self._terminal is not None
            else self._child.stdin and self._child.stdin.fileno()
        )
        try:
            while (frame := protocol.receive(self._connection)) is not None:
                kind, payload = frame
                if kind == STDIN:
                    to = self._feed(to, payload)
                elif kind == SIGNAL:
                    children.signal(pid, int(payload))
                elif kind == WINDOW:
                    self._set_window(*json.loads(payload))
        except (OSError, ValueError):
            pass
        children.signal(pid, signal.SIGKILL, group=True)

    def _feed(self, to, payload):
        if to is None:
            return None
        try:
            while payload:
                payload = payload[os.write(to, payload) :]
                if not payload:
                    return to
        except BrokenPipeError:
            pass
        if self._child.stdin:  # end of input, or the command has closed its end
            self._child.stdin.close()
        return None

    def _set_window(self, rows, columns):
        if self._terminal is not None:
            fcntl.ioctl(
                self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0)
            )

    def _end(self, pid):
        self._child.returncode = children.await_status(pid)
        children.forget(pid)
        for pipe in (self._child.stdout, self._child.stderr):
            if pipe:
                pipe.close()
        if self._terminal is not None:
            os.close(self._terminal)


def read_file(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def set_clock(host_ns):
    time.clock_settime_ns(time.CLOCK_REALTIME, host_ns)


# Requests that start no process.
REQUESTS = {
    "hello": lambda request: None,
    "set_clock": lambda request: set_clock(request["host_ns"]),
    "clock": lambda request: time.time_ns(),
    "signal": lambda request: os.kill(request["pid"], request["number"]),
    "read": lambda request: read_file(request["path"]),
    "exists": lambda request: os.path.exists(request["path"]),
    "names": lambda request: os.listdir(request["path"]),
    "readlink": lambda request: os.readlink(request["path"]),
}


def serve(connection):
    with connection:
        try:
            frame = protocol.receive(connection)
            if frame is None:
                return
            request = json.loads(frame[1])
            if request.get("token") != TOKEN:
                return
            try:
                if request["do"] == "run":
                    command = Command(connection, request)
                else:
                    protocol.send_json(connection, ANSWER, REQUESTS[request["do"]](request))
                    return
            except OSError as error:
                protocol.send_json(
                    connection, FAILED, {"errno": error.errno or 0, "message": str(error)}
                )
                return
            command.run()
        except (OSError, ValueError) as error:
            print(f"ppmr-vm: request failed: {error}", file=sys.stderr, flush=True)


def listen(namespace):
    """A listening socket in another network namespace; the calling thread returns to its
    namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    clone_newnet = 0x40000000

    def enter(path):
        with open(path) as ns:
            if libc.setns(ns.fileno(), clone_newnet) != 0:
                raise OSError(ctypes.get_errno(), f"setns to {path}")

    with open("/proc/self/ns/net") as home:
        enter(namespace)
        listener = socket.create_server(("", protocol.AGENT_PORT), backlog=64)
        if libc.setns(home.fileno(), clone_newnet) != 0:
            raise OSError(ctypes.get_errno(), "setns back")
    return listener


def main():
    child_ends, wake = os.pipe()
    for fd in (child_ends, wake):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    listener = listen("/run/netns/agent")
    print("ppmr-vm: ready", flush=True)
    while True:
        readable, _, _ = select.select([listener, child_ends], [], [])
        if child_ends in readable:
            os.read(child_ends, 4096)
            children.reap()
        if listener in readable:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
