"""How much memory processes use."""


def anonymous_mib(node, words):
    """What the processes with `words` in their command line use: each shared page counts once."""
    pids = node.run(["pgrep", "-f", words]).stdout.split()
    assert len(pids) > 1
    rollups = node.run(["cat", *(f"/proc/{pid}/smaps_rollup" for pid in pids)]).stdout
    lines = [line.split() for line in rollups.splitlines() if line.startswith("Pss_Anon:")]
    assert len(lines) == len(pids)
    return sum(int(line[1]) for line in lines) / 1024
