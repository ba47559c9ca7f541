"""Runs a command in a machine and acts like the command: standard streams, signals, exit code
(128 + N if signal N ended it).

    exec.py [--terminal] [--pid-fd N] MACHINE-DIRECTORY -- COMMAND...

Killing this process kills the command. Exit code 125: the machine is not running, or ended.
"""
import argparse
import json
import os
import queue
import signal
import sys
import termios
import threading
import tty
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab.node import LabError  # noqa: E402
from vm import protocol  # noqa: E402
from vm.agent_client import Agent  # noqa: E402

GONE = 125
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGQUIT,
)


def machine_gone(text):
    print(f"exec: {text}", file=sys.stderr)
    return GONE


def feed(send):
    try:
        while data := os.read(0, protocol.CHUNK):
            send(protocol.STDIN, data)
        send(protocol.STDIN)
    except OSError:
        pass


def forward(frames, send):
    try:
        while True:
            send(*frames.get())
    except OSError:
        pass


def write_whole(fd, data):
    while data:
        data = data[os.write(fd, data) :]


def serve(connection, pid_fd, window):
    lock = threading.Lock()  # two threads send frames

    def send(kind, payload=b""):
        with lock:
            protocol.send(connection, kind, payload)

    # A signal handler must not take `lock`: the interrupted thread may hold it.
    frames = queue.SimpleQueue()
    for number in () if window else FORWARDED:
        signal.signal(
            number, lambda number, _: frames.put((protocol.SIGNAL, str(int(number)).encode()))
        )
    if window:
        signal.signal(
            signal.SIGWINCH, lambda *_: frames.put((protocol.WINDOW, json.dumps(window()).encode()))
        )
    threading.Thread(target=feed, args=(send,), daemon=True).start()
    threading.Thread(target=forward, args=(frames, send), daemon=True).start()
    while (frame := protocol.receive(connection)) is not None:
        kind, payload = frame
        if kind == protocol.STDOUT:
            write_whole(1, payload)
        elif kind == protocol.STDERR:
            write_whole(2, payload)
        elif kind == protocol.PID and pid_fd is not None:
            write_whole(pid_fd, payload)
            os.close(pid_fd)
        elif kind == protocol.EXIT:
            code = json.loads(payload)
            return code if code >= 0 else 128 - code
        elif kind == protocol.FAILED:
            print(f"exec: {json.loads(payload)['message']}", file=sys.stderr)
            return 127
    return machine_gone("the machine ended")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--terminal", action="store_true")
    parser.add_argument("--pid-fd", type=int)
    parser.add_argument("--environment", type=json.loads, default={})
    parser.add_argument("directory")
    # argparse would also remove a "--" of the command.
    end = sys.argv.index("--")
    arguments, command = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    request = {"do": "run", "argv": command, "stdin": True, "env": arguments.environment}
    window = saved = None
    if arguments.terminal:

        def window():
            size = os.get_terminal_size(0)
            return [size.lines, size.columns]

        request["window"] = window()
        request["env"] = {"TERM": os.environ.get("TERM", "linux"), **request["env"]}
    try:
        connection = Agent(arguments.directory).connect(request)
        connection.settimeout(None)
        if arguments.terminal:
            saved = termios.tcgetattr(0)
            tty.setraw(0)
        return serve(connection, arguments.pid_fd, window)
    except (LabError, OSError, ValueError) as error:
        return machine_gone(error)
    finally:
        if saved:
            termios.tcsetattr(0, termios.TCSADRAIN, saved)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # does not wait for the thread that reads standard input
