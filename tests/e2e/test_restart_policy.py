"""The target decides what a peer may restart, from the contents of the images."""
import json

import pytest

from lab.criu import criu_that
from lab.migrations import Migrations
from lab.workers import check_moved, check_stayed, start_workers

ABORTED = 11


def in_json(text):
    return json.dumps(text)[1:-1]


@pytest.fixture
def start_migrations(lab, nodes):
    """start(policy) or start("--allow-restart"): returns migrations to a target with this policy or
    option.
    """
    started = []

    def start(policy):
        accepts = [policy]
        if isinstance(policy, dict):
            path = lab.directory / "policy.json"
            path.write_text(json.dumps(policy))
            path.chmod(0o644)
            accepts = ["--restart-policy", path]
        started.append(
            Migrations(
                nodes.source,
                nodes.target,
                lab.directory / "private",
                accepts=accepts,
            )
        )
        return started[-1].__enter__()

    yield start
    for migrations in started:
        migrations.__exit__(None, None, None)


def test_root_process_stays_unless_the_target_accepts_root(lab, nodes, start_migrations):
    migrations = start_migrations("--allow-restart")
    [worker] = start_workers(lab, nodes, 1)
    for options in (["--dry-run"], []):
        done = migrations.migrate(worker.pid, options=options)
        assert done.code not in (0, None), done.output
        assert f"process {worker.pid} runs as root" in done.output
        assert "--allow-root-restart" in done.output
        assert in_json('{"users": ["root"]}') in done.output
    assert migrations.records("target") == [], "the preflight did not stop the move"
    check_stayed(worker, nodes)
    worker.end()


def test_target_judges_the_images_and_not_the_announcement(lab, nodes, start_migrations):
    # The preflight does not check executables, so this is as if the source had lied.
    policy = {"users": ["root"], "executables": ["/opt/nothing/"]}
    migrations = start_migrations(policy)
    [worker] = start_workers(lab, nodes, 1)
    migrations.migrate(worker.pid, options=["--dry-run"]).ok()
    done = migrations.migrate(worker.pid)
    assert done.code == ABORTED, done.output
    executable = nodes.source.run(["readlink", f"/proc/{worker.pid}/exe"]).stdout.strip()
    sentence = f'runs "{executable}". To accept the tree, add "{executable}" to "executables"'
    assert in_json(sentence) in done.output
    log = migrations.target.log.read_text()
    assert "refused to restart process" in log and sentence in log
    check_stayed(worker, nodes)
    # The remedy in the message works without a restart of the daemon.
    policy["executables"].append(executable)
    (lab.directory / "policy.json").write_text(json.dumps(policy))
    migrations.migrate(worker.pid).ok()
    check_moved(worker, nodes)
    worker.end()


# CRIU runs in its work directory, where `images` has links into the checkpoint once it is asked to
# dump. It must not have children.
ADDS_A_LINK = """
case $PWD in *.source/work-*)
  ((until pages=$(readlink images/pages-1.img) && ln -s /etc/shadow "${pages%/*}/pages-99.img"; do :; done) 2>/dev/null >&2 &) ;;
esac"""


def test_link_in_a_checkpoint_is_not_followed(lab, nodes, start_migrations, tmp_path):
    criu = criu_that(tmp_path, ADDS_A_LINK)
    migrations = start_migrations("--allow-root-restart")
    [worker] = start_workers(lab, nodes, 1)
    done = migrations.migrate(worker.pid, environment={"PPMR_CRIU": str(criu)})
    assert done.code == ABORTED, done.output
    assert in_json('the symbolic link "pages-99.img"') in done.output
    check_stayed(worker, nodes)
    worker.end()
