"""`ppmr migrate` over RDMA between two machines. Their kernels track memory, which many hosts' do
not."""
import contextlib
import itertools
import shutil
import tempfile
from pathlib import Path

import pytest

from lab.migrations import Migrations
from lab.node import HOST, wait_until
from lab.programs import SteadyWorker
from lab.proofs import Before, prove

MIB = 1 << 20
MOVED, ABORTED = 0, 11
_numbers = itertools.count(1)


@pytest.fixture
def make_migrations(ppmr, machines):
    """make_migrations("--allow-restart") returns migrations to a target with this option."""
    with contextlib.ExitStack() as stack:
        yield lambda *accepts: stack.enter_context(start_migrations(machines, accepts))


@pytest.fixture
def migrations(make_migrations):
    return make_migrations("--allow-root-restart")


@contextlib.contextmanager
def start_migrations(machines, accepts):
    with Migrations(
        machines.a,
        machines.b,
        f"/tmp/migrations-{next(_numbers)}",
        ["--pool-size", "16MiB", "--transport", "verbs"],
        ["--memory-limit", "512MiB", "--pool-size", "192MiB"],
        name=f"migrations{next(_numbers)}",
        accepts=accepts,
    ) as migrations:
        migrations.await_ready()
        yield migrations


def events(done, what):
    return [event for event in done.events if event.get("event") == what]


def start_worker(machines, **options):
    worker = SteadyWorker(
        machines.a, machines.home / f"worker-{next(_numbers)}", threads=2, **options
    )
    worker.wait_for_lines(10)
    return worker


@pytest.mark.long
def test_dry_run_succeeds_and_changes_nothing(machines, migrations):
    worker = start_worker(machines, size_mib=8)
    done = migrations.migrate(worker.pid, options=["--dry-run"])
    assert done.code == MOVED, done.output
    assert not [finding for finding in events(done, "finding") if finding["stops"]], done.output
    assert migrations.records("source") == migrations.records("target") == []
    worker.wait_for_lines(10, machines.a)
    worker.end()


@pytest.mark.long
def test_dry_run_reports_file_that_is_missing_at_target(machines, migrations):
    machines.a.run(["sh", "-c", "cp /bin/sleep /tmp/only-here"])
    pid = machines.a.spawn(["/tmp/only-here", "1000"], log=machines.home / "only-here.log")
    done = migrations.migrate(pid, options=["--dry-run"])
    machines.a.signal(pid, 9)
    assert done.code == ABORTED and any(
        "/tmp/only-here" in finding["sentence"] and finding["stops"]
        for finding in events(done, "finding")
    ), done.output


def test_migrate_moves_process_over_rdma(machines, migrations):
    worker = start_worker(machines, size_mib=32)
    before = Before(worker)
    for daemon in (migrations.source, migrations.target):
        peer = daemon.status()["peers"][0]
        assert (peer["transport"], peer["encryption"]) == ("verbs", "aes-256-gcm"), peer
    read_before = migrations.target.status()["rdma"]["bytes_read"]
    done = migrations.migrate(worker.pid, timeout=120).ok()
    assert migrations.target.status()["rdma"]["bytes_read"] > read_before + 30 * MIB
    worker.node = machines.b
    worker.wait_for_lines(30, machines.b)
    claims = prove(worker, before, *machines.nodes)
    worker.end()
    assert [claim for claim in claims if not claim[1]] == []
    assert done.summary["trees"][0]["lazily"]
    for role in ("source", "target"):
        assert (migrations.records(role)[-1]["state"], migrations.records(role)[-1]["owner"]) == (
            "finished",
            "target",
        )


def test_process_of_a_user_moves_to_a_target_that_does_not_accept_root(machines, make_migrations):
    migrations = make_migrations("--allow-restart")
    command = "exec setpriv --reuid=nobody --regid=nogroup --clear-groups sleep 1000 </dev/null >/dev/null"
    log = machines.home / "user.log"
    pid = machines.a.spawn(["sh", "-c", f"{command} 2>&1"], log=log)
    done = migrations.migrate(pid, timeout=120).ok()
    assert done.summary["trees"][0]["result"] == "moved"
    status = machines.b.read_text(f"/proc/{pid}/status")
    machines.b.signal(pid, 9)
    assert "Uid:\t65534\t65534\t65534\t65534" in status
    # The log file belongs to root. The tree has it open although its user may not open it.
    inherits = machines.a.spawn(["sh", "-c", command], log=log)
    refused = migrations.migrate(inherits, timeout=120)
    machines.a.signal(inherits, 9)
    assert refused.code == ABORTED and "not write there" in refused.output, refused.output


# ---- PostgreSQL: several processes, shared memory, its own user, data on a shared file system ----


class Postgres:
    BIN = str(next(Path("/usr/lib/postgresql").glob("*/bin"), "no PostgreSQL"))

    def __init__(self, machines, directory):
        if not machines.a.exists(f"{self.BIN}/postgres"):
            pytest.skip("PostgreSQL is not installed: run third_party/install")
        self.a, self.data, self.log = machines.a, directory / "data", directory / "log"
        # on the host, which is faster; there, other users have no access to the machines' directory
        with tempfile.TemporaryDirectory() as made:
            shutil.chown(made, "postgres")
            self.as_postgres(
                HOST,
                [
                    f"{self.BIN}/initdb",
                    "-D",
                    f"{made}/data",
                    "-A",
                    "trust",
                    "--no-sync",
                    "-E",
                    "UTF8",
                ],
            )
            HOST.run(["install", "-d", "-o", "postgres", "-m", "0700", directory])
            HOST.run(["cp", "-a", f"{made}/data", self.data])
        # Soon after boot the inodes of shared memory have the numbers of System V segments, and
        # CRIU confuses the two.
        machines.a.run(
            [
                "/usr/bin/python3",
                "-SEc",
                "import os\nfor _ in range(100): os.close(os.memfd_create('one'))",
            ]
        )
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "dynamic_shared_memory_type": "sysv",
            "shared_buffers": "16MB",
        }
        # The server runs in a new IPC namespace, because its System V shared memory moves with it.
        server = [
            "setpriv",
            "--reuid=postgres",
            "--regid=postgres",
            "--init-groups",
            f"{self.BIN}/postgres",
            "-D",
            self.data,
        ]
        for key, value in options.items():
            server += ["-c", f"{key}={value}"]
        self.pid = machines.a.spawn(["unshare", "--ipc", *server], log=self.log)
        wait_until(lambda: self.answers(machines.a), 60, "PostgreSQL to answer", interval=0.5)

    @staticmethod
    def as_postgres(node, argv, **options):
        return node.run(
            ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", *argv], **options
        )

    def answers(self, node):
        return (
            node.run([f"{self.BIN}/pg_isready", "-q", "-h", "127.0.0.1"], check=False).returncode
            == 0
        )

    def sql(self, node, text):
        return self.as_postgres(
            node,
            [
                f"{self.BIN}/psql",
                "-h",
                "127.0.0.1",
                "-d",
                "postgres",
                "-XAtq",
                "-v",
                "ON_ERROR_STOP=1",
                "-c",
                text,
            ],
            timeout=60,
        ).stdout.strip()


@pytest.mark.long
def test_postgres_moves_with_its_rows(machines, migrations):
    postgres = Postgres(machines, machines.home / "postgres")
    a, b = machines.nodes
    postgres.sql(
        a, "create table numbers as select n, md5(n::text) as hash from generate_series(1, 20000) n"
    )
    question = "select count(*), sum(n), md5(string_agg(hash, '' order by n)) from numbers"
    before = postgres.sql(a, question)
    assert before.startswith("20000|")
    migrations.migrate(postgres.pid, timeout=180).ok()
    try:
        assert postgres.sql(b, question) == before
        postgres.sql(
            b, "insert into numbers select n, md5(n::text) from generate_series(20001, 21000) n"
        )
        postgres.sql(b, "checkpoint")
        assert postgres.sql(b, "select count(*) from numbers") == "21000"
        a.await_end(postgres.pid)
        assert not postgres.answers(a)
        assert (
            postgres.sql(b, "select pg_postmaster_start_time() < now() - interval '1 second'")
            == "t"
        )
    finally:
        b.signal(postgres.pid, 2)
        b.await_end(postgres.pid, timeout=60)
    assert "database system is shut down" in postgres.log.read_text()
