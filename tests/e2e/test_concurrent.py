"""Two commands about one process or one mount: the second says what the first is doing, and changes
nothing."""
from lab.node import wait_until
from lab.ppmr import find_ppmr
from lab.programs import SteadyWorker

ABORTED, TIMED_OUT = 11, 8


def state_of(migrations):
    records = migrations.records("source")
    return records[-1]["history"][-1][0] if records else ""


def test_second_command_says_what_the_first_is_doing(lab, nodes, migrations):
    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=96, threads=1)
    worker.wait_for_lines(5)
    nodes.link.limit("100mbit")  # so slow that the first command is still busy at the end
    first = migrations.start_migrate(worker.pid)
    wait_until(lambda: state_of(migrations) == "dumping", 20, "the first move to copy memory")
    (record,) = migrations.records("source")
    state = ["--state-dir", migrations.states["source"]]
    at = ["--mount", migrations.out, *state]

    def second(*words):
        done = nodes.source.run([find_ppmr(), *words], check=False)
        return done.returncode, done.stderr

    for words in (
        ["migrate", "--pid", worker.pid, *at],
        ["migrate", "--pid", worker.pid, *at, "--dry-run"],
        ["migrate", "--pid", worker.pid, *at, "--independent"],
        ["evacuate", "--match", "steady_worker", *at],
        ["evacuate", "--match", "steady_worker", *at, "--dry-run"],
        ["evacuate", "--match", "steady_worker", *at, "--rehearse"],
        ["protect", "--pid", worker.pid, *at],
    ):
        code, said = second(*words)
        assert code == ABORTED, (words, said)
        for wanted in (record["id"], "copying memory", "ppmr migrations", "--cancel"):
            assert wanted in said, (words, said)

    code, said = second("drain", migrations.out, "--timeout", "0.2")
    assert code == TIMED_OUT and record["id"][:8] in said and "waiting for" in said, said
    code, said = second("migrate", "--pid", worker.pid, *at)
    assert code == ABORTED and f"ppmr drain --resume {migrations.out}" in said, said
    assert second("drain", migrations.out, "--resume")[0] == 0
    assert second("migrate", "--cancel", record["id"], *state)[0] == 0
    assert first.wait(30).code == ABORTED
    worker.wait_for_lines(5)
    assert len(migrations.records("source")) == 1, "no second migration has begun"
    worker.end()


def test_drained_target_refuses_in_the_dry_run(lab, nodes, migrations):
    worker = SteadyWorker(nodes.source, lab.home / "worker", size_mib=8, threads=1)
    worker.wait_for_lines(5)
    nodes.target.run([find_ppmr(), "drain", migrations.in_])
    words = ["migrate", "--pid", worker.pid, "--mount", migrations.out, "--dry-run"]
    done = nodes.source.run([find_ppmr(), *words], check=False)
    assert done.returncode == ABORTED
    assert f"ppmr drain --resume {migrations.in_}" in done.stderr, done.stderr
    worker.end()
