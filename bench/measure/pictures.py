"""The pictures of a report, as SVG, with matplotlib: the paper's figures, with ppmr and the other
ways in one plot. At most SERIES_MAX of them, chosen by a rule: the report's tables have all.

Without matplotlib there are no pictures, and the report contains a remark."""
from .rows import name_of
from .spread import size_text, spread

# These colours are distinguishable in grey and by colour-blind people (Okabe and Ito).
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
SERIES_MAX = 6
BESIDE_REDIS = "shapes/downtime/1 GiB"
# The moves that are drawn on one clock.
TIMELINES = ("size/1024 MiB", "processes/8")
# Series of the pictures. A picture of curves has a curve for some values of this parameter.
DRAWN = {
    ("aggregation", "writers and write size"): "writers",
    ("aggregation", "chunk and pool size"): "chunk",
    ("network", "links and streams"): None,
    ("pipeline", "links and writers"): "writers",
    ("pipeline", "write size"): None,
    ("pipeline", "chunk and pool size"): "chunk",
    ("restore", "from memory"): None,
    ("moves", "size"): None,
    ("moves", "processes"): None,
    ("application", "run time"): None,
    ("jobs", "run time"): None,
    ("epochs", "loss of a host"): None,
    ("shapes", "first pass"): None,
    ("shapes", "redis under load"): None,
}
WAYS_OF_MOVES = [
    "ppmr migrate",
    "ppmr, lazy",
    "tmpfs + tar",
    "CRIU page server",
    "CRIU lazy pages",
    "RDMA+Local (bytes over TCP)",
]


def drawn_ways(ways):
    """Returns those of the ways that a picture has, in their order."""
    first = [way for way in WAYS_OF_MOVES if way in ways]
    chosen = [*first, *(way for way in ways if way not in first)][:SERIES_MAX]
    return [way for way in ways if way in chosen]


def drawn_curves(row):
    """Returns {way: points} of the ways that a picture has."""
    return {way: row["curves"][way] for way in drawn_ways(list(row["curves"]))}


def drawn_values(values, count):
    """Returns so many of the values, evenly spread, with the first and the last."""
    last = len(values) - 1
    if last < count:
        return values
    return [values[place] for place in sorted({round(i * last / (count - 1)) for i in range(count)})]


def drawn_items(items):
    """Returns those items of a plan that the pictures show, and the move beside which README.md
    puts the figures of redis."""
    kept = []
    for item in items:
        by = DRAWN.get((item.section, item.series), "not drawn")
        if by == "not drawn":
            if item.key == BESIDE_REDIS:
                kept.append(item)
            continue
        of_series = [one for one in items if (one.section, one.series) == (item.section, item.series)]
        values = sorted({one.parameters[by] for one in of_series}) if by else []
        if not by or item.parameters[by] in drawn_values(values, SERIES_MAX // 2):
            kept.append(item)
    return kept


def until_complete(row):
    """Returns a row of moves with the times until all memory is in place. These times compare ways
    that wait for all memory before the program runs with ways that do not."""
    complete = row.get("also", {}).get("complete")
    return {**row, "results": complete} if complete else row


def _legend(axes, **options):
    """Beside the plot, where it covers nothing."""
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1), **options)


def _plots():
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "ppmr",
            "font.size": 9,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "figure.figsize": (7, 4),
        }
    )
    from matplotlib import pyplot

    return pyplot


def _points(rows, x, way):
    """Returns the medians of one curve and their distances to the extremes."""
    found = sorted(
        (row["parameters"][x], spread(row["results"][way]))
        for row in rows
        if row["results"].get(way)
    )
    xs = [at for at, _ in found]
    return (
        xs,
        [one.median for _, one in found],
        [[one.median - one.low for _, one in found], [one.high - one.median for _, one in found]],
    )


def curves(pyplot, rows, x, by, by_text, x_text, title):
    """Draws a curve per value of `by`: ppmr solid, the ceiling dashed in the same colour."""
    figure, axes = pyplot.subplots()
    ways = list(dict.fromkeys(way for row in rows for way in row["results"]))[:2]
    values = sorted({row["parameters"][by] for row in rows}, key=str if by == "link" else None)
    for colour, value in zip(COLOURS, drawn_values(values, SERIES_MAX // 2)):
        of_value = [row for row in rows if row["parameters"][by] == value]
        for way, style in zip(ways, ("o-", "x--")):
            xs, medians, errors = _points(of_value, x, way)
            if xs:
                axes.errorbar(
                    xs,
                    medians,
                    yerr=errors,
                    fmt=style,
                    color=colour,
                    capsize=2,
                    markersize=4,
                    linewidth=1,
                    label=f"{way}, {by_text(value)}",
                )
    axes.set_xscale("log", base=2)
    ticks = sorted({row["parameters"][x] for row in rows})
    axes.set_xticks(ticks, [size_text(tick) if tick >= 1024 else str(tick) for tick in ticks])
    axes.set_xlabel(x_text)
    axes.set_ylabel("GB/s")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    _legend(axes)
    return figure


def bars(pyplot, rows, title):
    """Draws a group of bars per row, with a bar per way."""
    ways = drawn_ways(list(dict.fromkeys(way for row in rows for way in row["results"])))
    figure, axes = pyplot.subplots(figsize=(max(7, 0.3 * len(rows) * len(ways)), 4))
    width = 0.8 / len(ways)
    for number, way in enumerate(ways):
        for place, row in enumerate(rows):
            if row["results"].get(way):
                found = spread(row["results"][way])
                axes.bar(
                    place + number * width,
                    found.median,
                    width,
                    color=COLOURS[number % len(COLOURS)],
                    label=way if place == 0 else None,
                    yerr=[[found.median - found.low], [found.high - found.median]],
                    capsize=2,
                )
    axes.set_xticks(
        [place + 0.4 - width / 2 for place in range(len(rows))],
        [name_of(row) for row in rows],
        rotation=30,
        ha="right",
    )
    axes.set_ylabel(rows[0]["unit"])
    axes.set_title(title)
    _legend(axes)
    return figure


def phases(pyplot, row, title):
    """Draws the phases of each way on one clock, and the downtime. Each phase has its own
    track, so that overlaps are visible."""
    spans = {way: row["spans"][way] for way in drawn_ways(list(row["spans"]))}
    figure, axes = pyplot.subplots(figsize=(8, 0.7 * len(spans) + 1.5))
    names = list(dict.fromkeys(name for of_way in spans.values() for name, _, _ in of_way))
    labelled = set()
    for place, of_way in enumerate(spans.values()):
        height = 0.8 / len(of_way)
        for track, (name, begin, end) in enumerate(of_way):
            axes.barh(
                place - 0.4 + (track + 0.5) * height,
                end - begin,
                left=begin,
                height=height,
                color=COLOURS[names.index(name) % len(COLOURS)],
                label=None if name in labelled else name,
            )
            labelled.add(name)
    axes.set_yticks(range(len(spans)), list(spans))
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the dump began")
    axes.set_title(title)
    _legend(axes)
    return figure


def latencies(pyplot, row, title):
    """Draws, for each duration, the share of page touches that took at least as long. Each way
    has a curve."""
    figure, axes = pyplot.subplots()
    for colour, (way, points) in zip(COLOURS, drawn_curves(row).items()):
        axes.step(
            [at for at, _ in points],
            [share for _, share in points],
            where="pre",
            color=colour,
            label=way,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("ms that a touch takes")
    axes.set_ylabel("share of the touches that take at least as long")
    axes.set_title(title)
    _legend(axes)
    return figure


def rates(pyplot, row, title):
    """Draws the answers per second over time: a track per way, on one clock."""
    curves = drawn_curves(row)
    figure, tracks = pyplot.subplots(
        len(curves), 1, sharex=True, sharey=True, squeeze=False, figsize=(8, 1.1 * len(curves) + 1)
    )
    for axes, colour, (way, points) in zip(tracks[:, 0], COLOURS, curves.items()):
        axes.fill_between(
            [at for at, _ in points],
            [rate / 1000 for _, rate in points],
            step="mid",
            color=colour,
        )
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_ylim(bottom=0)
        axes.set_title(way, fontsize=8, loc="right", pad=2)
    tracks[len(curves) // 2, 0].set_ylabel("thousand answers per second")
    tracks[-1, 0].set_xlabel("seconds since the last answer before the move")
    figure.suptitle(title, fontsize=10)
    return figure


def _pictures(pyplot, rows):
    """(chapter, series), name, title, figure."""
    where = ("aggregation", "writers and write size")
    found = rows.of(*where)
    if len(found) > 1:
        title = "Aggregation bandwidth against write size"
        yield where, "aggregation-writes.svg", title, curves(
            pyplot,
            found,
            "request",
            "writers",
            lambda count: f"{count} writer{'s' if count > 1 else ''}",
            "bytes of a write",
            title,
        )
    for chapter in ("aggregation", "pipeline"):
        found = rows.of(chapter, "chunk and pool size")
        if len(found) > 1:
            title = f"{chapter.capitalize()} bandwidth against pool size"
            figure = curves(
                pyplot,
                found,
                "pool",
                "chunk",
                lambda chunk: f"chunks of {size_text(chunk)}",
                "pool",
                title,
            )
            yield (chapter, "chunk and pool size"), f"{chapter}-pool.svg", title, figure
    for chapter, series in (
        ("network", "links and streams"),
        ("pipeline", "links and writers"),
        ("pipeline", "write size"),
        ("moves", "size"),
        ("moves", "processes"),
        ("restore", "from memory"),
        ("application", "run time"),
        ("jobs", "run time"),
        ("epochs", "loss of a host"),
    ):
        found = [until_complete(row) for row in rows.of(chapter, series) if row["results"]]
        if found:
            until = ", until all memory is in place" if chapter == "moves" else ""
            beside = ", with and without moves, beside plain mpirun" if chapter == "jobs" else ""
            title = f"{chapter.capitalize()}: {series}{until}{beside}"
            yield (chapter, series), f"{chapter}-{series.replace(' ', '-')}.svg", title, bars(
                pyplot, found, title
            )
    for series, draw_row, title in (
        ("first pass", latencies, "Touching memory for the first time after a move"),
        ("redis under load", rates, "redis under load, while it moves"),
    ):
        for row in rows.of("shapes", series):
            if row.get("curves"):
                name = f"shapes-{series}.svg".replace(" ", "-")
                of_row = f"{title}: {name_of(row)}"
                yield ("shapes", series), name, of_row, draw_row(pyplot, row, of_row)
    for row in rows.of("moves"):
        if row.get("spans") and f"{row['series']}/{name_of(row)}" in TIMELINES:
            name = f"{row['series']}-{name_of(row)}".replace(" ", "-")
            title = f"A move on one clock: {row['series']} {name_of(row)}"
            yield ("moves", row["series"]), f"timeline-{name}.svg", title, phases(
                pyplot, row, title
            )


def draw(rows, directory):
    """Draws every picture for which there are rows. Returns [((chapter, series), file name, title)]
    and a remark, empty if there is none."""
    pyplot = _plots()
    if pyplot is None:
        return (
            [],
            "No pictures: python3-matplotlib is missing (third_party/install installs it).",
        )
    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    for where, name, title, figure in _pictures(pyplot, rows):
        figure.tight_layout()
        figure.savefig(directory / name, metadata={"Date": None}, bbox_inches="tight")
        pyplot.close(figure)
        drawn.append((where, name, title))
    return drawn, ""
