"""A question to a QEMU over its monitor (QMP): one connection each, so that several owners can ask."""
import json
import socket

from lab.node import LabError


def ask(path, command, timeout=10, **arguments):
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            lines = connection.makefile("rw")

            def answer():
                while line := lines.readline():
                    said = json.loads(line)
                    if "return" in said or "error" in said:
                        return said
                raise LabError(f"QEMU's monitor {path} closed at {command}")

            json.loads(lines.readline())  # the greeting
            for name, words in (("qmp_capabilities", {}), (command, arguments)):
                lines.write(json.dumps({"execute": name, "arguments": words}) + "\n")
                lines.flush()
                said = answer()
                if "error" in said:
                    raise LabError(f"QEMU refused {name} {words}: {said['error']['desc']}")
            return said["return"]
    except (OSError, ValueError) as error:
        raise LabError(f"QEMU's monitor {path} at {command}: {error}") from None
