"""`ppmr migrate` between two nodes: mounts whose target restarts processes, records of both nodes, and what became of a migration."""
import json
import os
import subprocess
import tempfile
from pathlib import Path

from .node import LabError, wait_until
from .ppmr import Mounts, find_ppmr


class MigrationWorld:
    """Both mounts on two nodes, with a state directory on each.

    with MigrationWorld(nodes.source, nodes.target, lab.directory / "private") as world:
        done = world.migrate(pid)            # Done: code, events, summary, said
        world.records("source")              # the latest version of each record there
    """

    def __init__(
        self,
        source,
        target,
        directory,
        source_options=(),
        target_options=(),
        name="mnt",
        environment=None,
    ):
        self.source, self.target = source, target
        self.states = {
            "source": source.scratch(f"{name}-state"),
            "target": target.scratch(f"{name}-state"),
        }
        self.environment = dict(environment or {})
        self.mounts = Mounts(
            source,
            target,
            directory,
            source_options,
            ["--allow-restart", "--state-dir", self.states["target"], *target_options],
            name=name,
            environment=self.environment,
        )

    def node(self, role):
        return self.source if role == "source" else self.target

    def start_migrate(self, *pids, options=(), criu_options=(), environment=None):
        self.target.keep_helpers_low()
        words = [
            find_ppmr(),
            "migrate",
            "--mount",
            self.mounts.out,
            "--state-dir",
            self.states["source"],
            "--json",
        ]
        for pid in pids:
            words += ["--pid", pid]
        words += [*options, *(["--", *criu_options] if criu_options else [])]
        return Running(
            self.source, words, {**os.environ, **self.environment, **(environment or {})}
        )

    def migrate(self, *pids, timeout=60, **options):
        return self.start_migrate(*pids, **options).wait(timeout)

    def evacuate(self, *options, timeout=60):
        words = [
            find_ppmr(),
            "evacuate",
            "--mount",
            self.mounts.out,
            "--state-dir",
            self.states["source"],
            "--json",
            *options,
        ]
        return Running(self.source, words, {**os.environ, **self.environment}).wait(timeout)

    def recover(self, role="source", timeout=60, options=(), check=True):
        done = Running(
            self.node(role),
            [
                find_ppmr(),
                "migrate",
                "--recover",
                "--state-dir",
                self.states[role],
                "--json",
                *options,
            ],
        ).wait(timeout)
        return done.ok() if check else done

    def records(self, role):
        """The latest version of every record of a node, oldest first."""
        found, node = [], self.node(role)
        for name in node.names(self.states[role]):
            if not name.endswith(f".{role}"):
                continue
            directory = self.states[role] / name
            versions = [
                int(version.removesuffix(".json"))
                for version in node.names(directory)
                if version.endswith(".json")
            ]
            if versions:
                found.append(json.loads(node.read_text(directory / f"{max(versions)}.json")))
        return sorted(found, key=lambda record: record["history"][0][1])

    def paused(self, role, state):
        """The markers of whoever waits at this state."""
        return list(self.node(role).host_path(self.states[role]).glob(f"*.{role}/paused-{state}"))

    def wait_until_paused(self, role, state, running=None, timeout=20):
        def there():
            ended = running and not running.running()
            if ended and not self.paused(role, state):
                raise LabError(f"ppmr migrate ended before {role}:{state}: {running.wait(1).said}")
            return self.paused(role, state)

        return wait_until(there, timeout, f"the migration to be {role}:{state}")

    def go_on(self, role, state):
        for marker in self.paused(role, state):
            marker.unlink(missing_ok=True)

    def logs(self, newest=1000):
        """What CRIU and the keepers said in the last migrations, for a failed test."""
        said = []
        for role in ("source", "target"):
            directories = sorted(
                self.node(role).host_path(self.states[role]).glob(f"*.{role}"),
                key=lambda path: path.stat().st_mtime,
            )
            for log in sorted(
                path for directory in directories[-newest:] for path in directory.glob("work-*/*")
            ):
                if log.suffix in (".log", ".out"):
                    said.append(f"--- {role} {log.name}\n{log.read_text(errors='replace')[-1500:]}")
        return "\n".join(said)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.mounts:
            self.mounts.close()


class Running:
    def __init__(self, node, words, env=None):
        self.node = node
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            node.command(words),
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env=env,
        )

    def running(self):
        return self.process.poll() is None

    @property
    def host_pid(self):
        children = (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        )
        return int(children[0]) if children else None

    def signal(self, number):
        pid = self.host_pid
        if pid:
            os.kill(pid, number)

    def wait(self, timeout=60):
        try:
            self.process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise LabError(
                f"ppmr migrate did not end within {timeout} s; it said: {self._read()[1]}"
            ) from None
        out, err = self._read()
        return Done(self.process.returncode, out, err)

    def kill(self):
        if self.running() and self.host_pid:
            os.kill(self.host_pid, 9)
        self.process.wait(timeout=20)

    def _read(self):
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return texts


class Done:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err
        self.events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    @property
    def said(self):
        return (self.err + self.out).strip()[-3000:]

    @property
    def summary(self):
        return next(event for event in self.events if event.get("event") == "summary")

    def ok(self):
        if self.code != 0:
            raise LabError(f"ppmr migrate ended with {self.code} and said: {self.said}")
        return self
