"""Starts a program for which system calls fail, as they do on another kernel or machine."""
import os

# The numbers of the system calls that tests filter, for each architecture.
NUMBERS = {
    "x86_64": {"ptrace": 101, "userfaultfd": 323},
    "aarch64": {"ptrace": 117, "userfaultfd": 282},
}

# Starts a program behind a filter of system calls, which its children inherit. Root may set the
# filter without PR_SET_NO_NEW_PRIVS.
FILTER = """
import ctypes, os, struct, sys
calls = [[int(number) for number in word.split(":")] for word in sys.argv[1].split(",")]
load, equal, give, allow, fail = 0x20, 0x15, 0x06, 0x7fff0000, 0x00050000
code = struct.pack("HBBI", load, 0, 0, 0)
for number, error in calls:
    code += struct.pack("HBBI", equal, 0, 1, number) + struct.pack("HBBI", give, 0, 0, fail | error)
code += struct.pack("HBBI", give, 0, 0, allow)
code = ctypes.create_string_buffer(code, len(code))
program = ctypes.create_string_buffer(
    struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
filtering, by_program = 22, 2
if libc.prctl(filtering, by_program, program, 0, 0) != 0:
    sys.exit("filter: " + os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[2], sys.argv[2:])
"""


def without(**errors):
    """Words to put before those of a program: for it, and for what it starts, these system calls
    fail, e.g. userfaultfd=errno.ENOSYS."""
    numbers = NUMBERS[os.uname().machine]
    calls = ",".join(f"{numbers[name]}:{error}" for name, error in errors.items())
    return ["/usr/bin/python3", "-SEc", FILTER, calls]
