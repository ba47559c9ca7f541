"""Runs one command over QEMU's monitor (QMP). Each call makes its own connection, so several
processes can use the monitor."""
import json
import socket

from lab.node import LabError


def execute(path, command, timeout=10, **arguments):
    """Returns the result of the command. Raises LabError if the monitor does not answer, or
    refuses.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            lines = connection.makefile("rw")

            def reply():
                while line := lines.readline():
                    message = json.loads(line)
                    if "return" in message or "error" in message:
                        return message  # this is the answer, not an event
                raise LabError(f"QEMU's monitor {path} closed the connection during {command}")

            json.loads(lines.readline())  # reads the greeting
            for name, words in (("qmp_capabilities", {}), (command, arguments)):
                lines.write(json.dumps({"execute": name, "arguments": words}) + "\n")
                lines.flush()
                found = reply()
                if "error" in found:
                    raise LabError(f"QEMU refused {name} {words}: {found['error']['desc']}")
            return found["return"]
    except (OSError, ValueError) as error:
        raise LabError(f"{command} over QEMU's monitor {path}: {error}") from None
