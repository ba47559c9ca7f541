"""Starts the QEMUs of one laboratory and ends them with their owner, even if the owner is killed.

    machine_supervisor.py DIRECTORY          DIRECTORY/machines.json: name -> command line of its
                                             QEMU

The owner holds the other end of standard input, a pipe. When the pipe closes, this process kills
the machines and removes DIRECTORY. If this process is killed, the kernel kills the machines
(parent-death signal), and the next laboratory removes the directory, whose lock is then free.
DIRECTORY/supervisor.sock accepts one request per connection: `boot NAME`, `kill NAME`, `state`.
"""
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path


PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_supervisor = os.getpid()


def die_with_supervisor():
    """Runs in a new child. Lets the kernel kill it when the supervisor ends. Ends the child if the
    supervisor has already ended."""
    if _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != _supervisor:
        os._exit(1)


class MachineSupervisor:
    def __init__(self, directory):
        self._directory = directory
        self._commands = json.loads((directory / "machines.json").read_text())
        self._running = {}  # name -> Popen

    def _is_running(self, name):
        return name in self._running and self._running[name].poll() is None

    def boot(self, name):
        if self._is_running(name):
            return f"error {name} is already running"
        home = self._directory / name
        console = home / "console.log"
        if console.exists():  # from the previous boot
            console.rename(home / f"console-{len(list(home.glob('console-*.log'))) + 1}.log")
        with open(home / "qemu.log", "ab") as log:
            self._running[name] = subprocess.Popen(
                self._commands[name],
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_supervisor,
            )
        return f"ok {self._running[name].pid}"

    def kill(self, name):
        if not self._is_running(name):
            return f"error {name} is not running"
        self._running[name].kill()
        self._running[name].wait()
        return "ok"

    def state(self):
        return "ok " + " ".join(name for name in self._commands if self._is_running(name))

    def handle(self, words):
        if words == ["state"]:
            return self.state()
        if len(words) == 2 and words[0] in ("boot", "kill") and words[1] in self._commands:
            return {"boot": self.boot, "kill": self.kill}[words[0]](words[1])
        return f"error unknown request '{' '.join(words)}'"

    def close(self):
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def main():
    directory = Path(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner handles Ctrl-C
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    supervisor = MachineSupervisor(directory)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(directory / "supervisor.sock"))
            listener.listen(8)
            print("ready", flush=True)
            while True:
                readable, _, _ = select.select([0, listener], [], [])
                if 0 in readable and not os.read(0, 1):
                    return
                if listener in readable:
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(5)
                        try:
                            connection.sendall(
                                supervisor.handle(connection.recv(200).decode().split()).encode()
                            )
                        except OSError as error:
                            print(f"machine_supervisor: {error}", file=sys.stderr)
    finally:
        supervisor.close()


if __name__ == "__main__":
    main()
