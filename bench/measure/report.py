"""One Markdown page of a run: the targets, every series as a table with medians, extremes and
ratios, and the pictures."""
import datetime
from statistics import mean

from . import pictures, scale
from .rows import name_of
from .spread import figure, ratio, spread
from .verdict import number
from .targets import TARGETS

CHAPTERS = {
    "ceilings": "The limits of this machine, each measured alone.",
    "aggregation": "Writers -> source mount -> pool, the chunks discarded. The null sink is a separate FUSE file system that discards every byte.",
    "network": "Pool -> image store over TCP, no FUSE. iperf3 with as many streams, on the same path.",
    "pipeline": "Writers -> source mount -> stream -> target mount -> readers, until the last reader has read the end of its file.",
    "dumps": "`criu dump` of a process that continues to run, into each destination.",
    "restore": "CRIU's restore alone, from images that are already in memory.",
    "moves": "A whole move: from the start of the dump until the program has written its first line on the target.",
    "application": "Run time of an MPI program, undisturbed and with migrations.",
    "shapes": "Moves of trees of many shapes, with `ppmr migrate`: live (the default), `--post-copy` and `--eager`. Downtime: from the last sign of life of a tree before its move to the first one after it. "
    "Plain CRIU does not move the tree: dump into tmpfs and restore from there, together.",
    "epochs": "How long a process stands still for an epoch of `ppmr protect`, which reaches another node, and for a dump into tmpfs at its own node: the longest time without a sign of life.",
    "costs": "Moves of one process with and without encryption, with each method of compression, and while strangers connect: from the freeze until all memory is in place.",
    "pipelined moves": "Several processes over a limited link with one `ppmr migrate`, against one command per process, and against the time that the link alone needs for their bytes.",
    "jobs": "MPI programs in job nodes with and without evacuations, against plain `mpirun`; and the stall of a ring of ranks in an evacuation.",
    "job growth": "What a job costs as its nodes, or the processes of a node, grow.",
    "scale": "What each stage of a move costs, and what a model makes of it for larger machines. Both nodes share the cores here, and all figures are the difference between a large and a small process.",
    "growth": "CPU and memory of the daemons as the checkpoint grows in bytes and files.",
    "machines": "Real RDMA verbs between two emulated machines: only ratios are meaningful.",
    "machine moves": "Whole moves between these machines.",
}
FASTER_IS = {"GB/s": "more", "s": "less", "µs": "less"}
NOT_COMPARED = ("MB", "MiB", "s more")
# Chapters whose samples are of one way: a ratio between them has no meaning.
ONE_WAY = ("ceilings", "job growth", "scale")
# The ways that a wide table compares with the first way. Any other table compares all ways.
COMPARED = {"shapes": ("plain CRIU, tmpfs", "tmpfs + tar", "CRIU lazy pages")}


def cell(samples):
    found = spread(samples)
    if found.count == 1:
        return f"{figure(found.median)}"
    return f"{figure(found.median)} ({figure(found.low)} to {figure(found.high)})"


def compared(ours, other, unit):
    """Returns the ratio of ppmr's samples to the samples of another way."""
    if unit in NOT_COMPARED:
        return ""
    quotient = ratio(other, ours) if FASTER_IS.get(unit) == "less" else ratio(ours, other)
    if quotient is None:
        return ""
    return f"{figure(quotient)} x" if FASTER_IS.get(unit) == "less" else f"{100 * quotient:.0f}%"


def columns_of(rows, what):
    """Returns the names in the order of the row that has most names."""
    complete_first = sorted(rows, key=lambda row: -len(row.get(what, ())))
    return list(dict.fromkeys(name for row in complete_first for name in row.get(what, ())))


def table(head, lines):
    return "\n".join(
        [
            "| " + " | ".join(head) + " |",
            "| " + " | ".join("---" for _ in head) + " |",
            *("| " + " | ".join(line) + " |" for line in lines),
        ]
    )


def peers_of(section, ways, unit):
    if section in ONE_WAY or unit in NOT_COMPARED:
        return []
    return [way for way in ways[1:] if way in COMPARED.get(section, ways)]


def unit_of(name, unit):
    """Returns the unit of further samples: the last word of a name like "sent, MB", else the
    unit of the row."""
    return name.rsplit(", ", 1)[1] if ", " in name else unit


def series_table(rows):
    """Returns the rows of one series: a column per way, and the ratio of the first way to each
    other way."""
    unit, ways = rows[0]["unit"], columns_of(rows, "results")
    if len(rows) == 1:
        row = rows[0]
        if row["section"] == "application":
            return table(
                [name_of(row), "s", "longer by"],
                [
                    [
                        way,
                        cell(samples),
                        ""
                        if way == "undisturbed"
                        else f"{100 * (ratio(samples, row['results']['undisturbed']) - 1):.1f}%",
                    ]
                    for way, samples in row["results"].items()
                ],
            )
        own = row["results"][ways[0]]
        lines = [
            [
                way,
                cell(row["results"][way]),
                ""
                if way == ways[0] or row["section"] in ONE_WAY
                else compared(own, row["results"][way], unit),
            ]
            for way in ways
        ]
        return table(
            [
                name_of(row),
                unit,
                ""
                if row["section"] in ONE_WAY or unit in NOT_COMPARED
                else f"{ways[0]} is faster by"
                if FASTER_IS.get(unit) == "less"
                else f"{ways[0]} reaches",
            ],
            lines,
        )
    head = [rows[0]["series"], *(f"{way}, {unit}" for way in ways)]
    peers = peers_of(rows[0]["section"], ways, unit)
    head += [
        f"{way} / {ways[0]}" if FASTER_IS.get(unit) == "less" else f"{ways[0]} / {way}"
        for way in peers
    ]
    lines = []
    for row in rows:
        line = [name_of(row)]
        line += [cell(row["results"][way]) if row["results"].get(way) else "-" for way in ways]
        line += [
            compared(row["results"].get(ways[0]), row["results"].get(way), unit) for way in peers
        ]
        lines.append(line)
    return table(head, lines)


def line_through(points):
    """(at zero, per n, largest deviation of a point) of the straight line with the least
    squares."""
    mean_x, mean_y = mean(x for x, _ in points), mean(y for _, y in points)
    square = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / square if square else 0.0
    base = mean_y - slope * mean_x
    return base, slope, max(abs(y - base - slope * x) for x, y in points)


def lines_table(rows):
    """The line through each fact as the parameter `n` grows; empty if it does not."""
    if len({row["parameters"].get("n") for row in rows}) < 2:
        return ""
    lines = []
    for name in columns_of(rows, "facts"):
        points = [
            (row["parameters"]["n"], row["facts"][name]) for row in rows if name in row["facts"]
        ]
        base, slope, off = line_through(points)
        sign = "-" if slope < 0 else "+"
        lines.append([name, f"{figure(base)} {sign} {figure(abs(slope))} n", figure(off)])
    return table(["", "line through these", "off by at most"], lines)


def facts_table(rows):
    names = columns_of(rows, "facts")
    if not names:
        return ""
    # The longer dimension goes down the page.
    if len(rows) > len(names):
        return table(
            [rows[0]["series"], *names],
            [
                [
                    name_of(row),
                    *(
                        figure(row["facts"][name]) if name in row["facts"] else "-"
                        for name in names
                    ),
                ]
                for row in rows
            ],
        )
    return table(
        ["", *(name_of(row) for row in rows)],
        [
            [name, *(figure(row["facts"][name]) if name in row["facts"] else "-" for row in rows)]
            for name in names
        ],
    )


def places(keys, rows):
    """Names the rows of a series; empty if they are all rows."""
    names = [name_of(row) for row in rows if row["key"] in keys]
    return "" if len(names) == len(rows) else f" ({'; '.join(names)})"


def not_measured(rows):
    reasons = {}
    for row in rows:
        for way, why in row["not_measured"].items():
            reasons.setdefault((way, why), []).append(row["key"])
    return [
        f"- {way}{places(keys, rows)}: not measured: {why}" for (way, why), keys in reasons.items()
    ]


def derived_tables(row):
    """Returns the tables of what the model makes of a row of the chapter scale."""
    text = []
    for title, (head, lines) in (
        ("The model's prediction beside the measured rate", scale.check_table(row)),
        ("Threads that the product uses", scale.threads_table(row)),
        ("**Modelled, not measured**: two nodes of so many cores", scale.predictions_table(row)),
    ):
        cells = [
            [figure(one) if isinstance(one, float) else one for one in line] for line in lines
        ]
        text += [f"{title}:", "", table(head, cells), ""]
    return text


def targets_table(rows):
    lines = []
    for target in TARGETS:
        verdict = target.verdict(rows)
        found = number(verdict.value, target.unit) if verdict.value is not None else "-"
        lines.append(
            [
                target.what,
                ("at least " if target.at_least else "at most ")
                + number(target.wanted, target.unit),
                found,
                verdict.text(),
            ]
        )
    return table(["what", "target", "measured", ""], lines)


RESULTS_HEAD = (
    "date, commit",
    "machine",
    "move: ppmr",
    "tmpfs + tar",
    "page server",
    "dump: mount / null sink / tmpfs",
    "source daemon, most memory",
)


def results_row(rows, today):
    """Returns the row of this run for the table in bench/README.md; None if the measurements
    for that row are missing."""
    move, dump = rows.get("moves/size/1024 MiB"), rows.get("dumps/one process/1024 MiB")
    if (
        not move
        or not dump
        or not {"ppmr, lazy", "tmpfs + tar", "CRIU page server"} <= set(move["results"])
    ):
        return None

    def median(row, way):
        return spread(row["results"][way]).median

    def peer(way):
        return f"{median(move, way):.2f} ({median(move, way) / median(move, 'ppmr, lazy'):.1f} x)"

    memory = max(row["facts"]["source daemon, most memory (MiB)"] for row in (move, dump))
    environment = rows.environment
    return [
        f"{today}, {environment['commit']}",
        f"{environment['host'].split(': ', 1)[-1]}, Linux {environment['kernel'].split('-')[0]}, veth {environment.get('link', 'unlimited')}",
        f"{median(move, 'ppmr, lazy'):.2f}",
        peer("tmpfs + tar"),
        peer("CRIU page server"),
        " / ".join(
            f"{median(dump, place):.2f}"
            for place in ("source mount, streaming", "ppmr source --discard", "fresh tmpfs")
        ),
        f"{memory:.0f} MiB",
    ]


def write(rows, directory):
    """Writes report.md and pictures/ there; returns the path of the report and a sentence about the
    pictures."""
    drawn, word = pictures.draw(rows, directory / "pictures")
    text = ["# ppmr: measured", ""]
    text += ["\n".join(f"- {name}: {value}" for name, value in rows.environment.items()), ""]
    text += [
        "Medians, with the lowest and highest sample in brackets. Ratios are of medians of one run. Only ratios can be compared between machines.",
        "",
    ]
    effort = rows.environment.get("effort", "")
    if effort.startswith("pictures"):
        chapters = {row["section"] for row in rows}
        drawn_chapters = {chapter for chapter, _ in pictures.DRAWN}
        only = "" if chapters == drawn_chapters else "".join(f" --only {one}" for one in sorted(chapters))
        text += [f"What the pictures show, in few rounds: `bench/run --pictures{only}`.", ""]
    elif not effort.startswith("full"):
        text += [
            "**This was not a full run**: few samples of few bytes. It shows that everything works, not how fast ppmr is.",
            "",
        ]
    text += ["## Targets", "", targets_table(rows), ""]
    for chapter, sentence in CHAPTERS.items():
        found = rows.of(chapter)
        if not found:
            continue
        text += [f"## {chapter.capitalize()}", "", sentence, ""]
        for series in dict.fromkeys(row["series"] for row in found):
            of_series = rows.of(chapter, series)
            text += [f"### {series}", ""]
            if any(row["results"] for row in of_series):
                text += [series_table([row for row in of_series if row["results"]]), ""]
            for name in columns_of(of_series, "also"):
                text += [
                    f"{name}:",
                    "",
                    series_table(
                        [
                            {
                                **row,
                                "results": row["also"][name],
                                "unit": unit_of(name, row["unit"]),
                            }
                            for row in of_series
                            if row.get("also", {}).get(name)
                        ]
                    ),
                    "",
                ]
            text += [*not_measured(of_series), ""] if not_measured(of_series) else []
            if chapter == scale.SECTION:
                text += [line for row in of_series for line in derived_tables(row)]
            for facts in (facts_table(of_series), lines_table(of_series)):
                text += [facts, ""] if facts else []
            text += [
                f"![{title}](pictures/{name})\n"
                for (where, name, title) in drawn
                if where == (chapter, series)
            ]
    if row := results_row(rows, datetime.date.fromtimestamp(rows.path.stat().st_mtime)):
        text += ["## For the table in bench/README.md", "", table(RESULTS_HEAD, [row]), ""]
    if word:
        text += [word, ""]
    path = directory / "report.md"
    path.write_text("\n".join(text).rstrip() + "\n")
    return path, word
