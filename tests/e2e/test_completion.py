"""Completion in real shells: each shell offers every option of every command, and no other option.
"""
import os
import pty
import re
import select
import subprocess
import time

import pytest

from lab.ppmr import find_ppmr
from test_documentation import options_of_help

COMMANDS = [["target"], ["source"], ["migrate"], ["evacuate"], ["status"], ["job", "run"]]


def script(ppmr, shell):
    return subprocess.check_output([ppmr, "completion", shell], text=True)


class Terminal:
    """A shell on a terminal that is wide enough for every list."""

    def __init__(self, command, environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(environment, TERM="dumb", COLUMNS="500", LINES="500", PS1="> ")
            os.execvp(command[0], command)

    def expect(self, pattern, seconds=20):
        text, end = "", time.monotonic() + seconds
        while not re.search(pattern, text):
            ready, _, _ = select.select([self.fd], [], [], end - time.monotonic())
            assert ready, f"no {pattern!r} in {text!r}"
            text += os.read(self.fd, 65536).decode(errors="replace")
        return text

    def type(self, text):
        os.write(self.fd, text.encode())

    def close(self):
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def options_in(text):
    return set(re.findall(r"(?<![\w-])(--?[a-z][a-z0-9-]*)", text))


def bash_offers(ppmr, command, tmp_path):
    (tmp_path / "completion").write_text(script(ppmr, "bash"))
    words = ["ppmr", *command, "-"]
    ask = (
        f"source {tmp_path}/completion; COMP_WORDS=({' '.join(words)}); "
        f"COMP_CWORD={len(words) - 1}; _ppmr; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "--norc", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return options_in(done.stdout)


def zsh_offers(ppmr, command, tmp_path):
    (tmp_path / "_ppmr").write_text(script(ppmr, "zsh"))
    zsh = Terminal(["zsh", "-f", "-i"], {"HOME": str(tmp_path)})
    try:
        zsh.type(f"fpath=({tmp_path} $fpath); LISTMAX=9999; autoload -U compinit; compinit -u -D\r")
        zsh.type("print rea''dy\r")
        zsh.expect("ready")
        line = f"ppmr {' '.join(command)} -"
        zsh.type(line)
        zsh.expect(re.escape(line))
        zsh.type("\t")
        text = zsh.expect("--help")
        zsh.type("\x15print do''ne\r")  # ^U empties the line
        text += zsh.expect("done")
    finally:
        zsh.close()
    return options_in(text)


def fish_offers(ppmr, command, tmp_path):
    (tmp_path / "completion.fish").write_text(script(ppmr, "fish"))
    line = " ".join(["ppmr", *command])
    # fish lists long options after "--" and short ones after "-".
    ask = f"source {tmp_path}/completion.fish; complete -C '{line} -'; complete -C '{line} --'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", ask],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HOME": str(tmp_path), "PATH": f"{ppmr.parent}:{os.environ['PATH']}"},
    )
    assert done.stderr == ""
    # A line of the answer is "--name<TAB>description".
    return set(re.findall(r"^(--?[a-z][a-z0-9-]*)(?=\t|$)", done.stdout, re.M))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    "shell, offers", [("bash", bash_offers), ("zsh", zsh_offers), ("fish", fish_offers)]
)
def test_shell_offers_every_option(ppmr, need_command, tmp_path, shell, offers, command):
    need_command(shell)
    assert offers(ppmr, command, tmp_path) >= options_of_help(ppmr, command)


def test_scripts_hold_exactly_the_options_of_help(ppmr):
    text = script(ppmr, "bash")
    for command in COMMANDS:
        found = re.search(rf"^ *'{' '.join(command)}'\) .*options='([^']*)'", text, re.M)
        assert set(found.group(1).split()) == options_of_help(ppmr, command)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_have_no_internal_command(ppmr, shell):
    assert "migration-agent" not in script(ppmr, shell)


def bash_completes(ppmr, words, tmp_path):
    """What bash offers for the last of these words."""
    (tmp_path / "completion").write_text(script(ppmr, "bash"))
    quoted = " ".join(f"'{word}'" for word in words)
    ask = (
        f"source {tmp_path}/completion; COMP_WORDS=({quoted}); "
        f"COMP_CWORD={len(words) - 1}; _ppmr; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    path = {**os.environ, "PATH": f"{ppmr.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", ask], capture_output=True, text=True, check=True, env=path
    )
    return done.stdout.split()


def test_bash_offers_pids_users_and_groups_of_this_node(ppmr, tmp_path):
    process = subprocess.Popen(["sleep", "600"])
    try:
        offered = bash_completes(ppmr, ["ppmr", "migrate", "--pid", ""], tmp_path)
        assert str(process.pid) in offered and "1" not in offered
        few = bash_completes(ppmr, ["ppmr", "migrate", "--pid", str(process.pid)], tmp_path)
        assert str(process.pid) in few and len(few) < len(offered)
    finally:
        process.kill()
        process.wait()
    assert "root" in bash_completes(ppmr, ["ppmr", "evacuate", "--user", "ro"], tmp_path)
    assert bash_completes(ppmr, ["ppmr", "commit", ""], tmp_path) == []  # the files of bash


def test_mounts_are_offered_to_options_and_arguments(mounts):
    words = [find_ppmr(), "completion-values", "mounts"]
    assert mounts.source_at.run(words).stdout.split() == [str(mounts.out)]


@pytest.mark.parametrize("shell, run", [("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])])
def test_scripts_with_values_have_no_syntax_error(ppmr, need_command, tmp_path, shell, run):
    need_command(shell)
    (tmp_path / "script").write_text(script(ppmr, shell))
    subprocess.run([*run, tmp_path / "script"], check=True)
