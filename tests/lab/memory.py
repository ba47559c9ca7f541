"""Measures how much memory processes use."""


def anonymous_mib(node, words):
    """Returns the memory of the processes with `words` in their command line. Each shared page
    counts once.
    """
    pids = node.run(["pgrep", "-f", words]).stdout.split()
    assert len(pids) > 1
    files = [f"/proc/{pid}/smaps_rollup" for pid in pids]
    rollups = node.run(["cat", *files], check=False).stdout  # some processes may have ended
    lines = [line.split() for line in rollups.splitlines() if line.startswith("Pss_Anon:")]
    assert len(lines) > 1
    return sum(int(line[1]) for line in lines) / 1024
