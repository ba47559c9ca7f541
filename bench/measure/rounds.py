"""Alternating rounds: each round runs every way once, the order rotates from round to round, and
the first round warms up and is not counted."""


def rotate(ways, by):
    by %= len(ways)
    return ways[by:] + ways[:by]


def alternate(ways, runs, warm_ups=1):
    """ways: {name: callable that returns one sample}. Returns {name: [samples]} in the order of
    `ways`."""
    samples = {name: [] for name in ways}
    for number in range(runs + warm_ups):
        for name in rotate(list(ways), number):
            sample = ways[name]()
            if number >= warm_ups:
                samples[name].append(sample)
    return samples
