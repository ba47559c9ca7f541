"""The performance targets of the chapter jobs."""
from .jobs import MOVES_IN, PLAIN, way_of
from .job_programs import PROGRAMS
from .spread import ratio, spread
from .verdict import Target

UNDISTURBED_MORE, MOVES_MORE, STALL_MORE_S = 1.01, 0.05, 0.3


def _undisturbed(name):
    def value(rows):
        row = rows.get(f"jobs/run time/{name}")
        return row and ratio(row["results"].get(way_of(0)), row["results"].get(PLAIN))

    return value


def _moves(name):
    """Returns the time that three moves add to a run of a minute, as a share of the minute."""
    moves, seconds = MOVES_IN

    def value(rows):
        results = (rows.get(f"jobs/run time/{name}") or {}).get("results", {})
        if not results.get(way_of(moves)) or not results.get(PLAIN):
            return None
        return (spread(results[way_of(moves)]).median - spread(results[PLAIN]).median) / seconds

    return value


def _stalls(rows):
    """Returns the share of moves whose stall is at most STALL_MORE_S longer than the downtime."""
    more = [
        seconds
        for row in rows.of("jobs", "stall")
        for seconds in row["also"].get("gap - downtime", {}).get("gap", ())
    ]
    return sum(seconds <= STALL_MORE_S for seconds in more) / len(more) if more else None


TARGETS = (
    *(
        Target(
            f"run time of {program.name} in job nodes, of plain mpirun's",
            UNDISTURBED_MORE,
            _undisturbed(program.name),
            at_least=False,
        )
        for program in PROGRAMS.values()
    ),
    *(
        Target(
            f"{MOVES_IN[0]} evacuations of {program.name}, of {MOVES_IN[1]} s",
            MOVES_MORE,
            _moves(program.name),
            at_least=False,
            unit="%",
        )
        for program in PROGRAMS.values()
    ),
    Target(
        f"evacuations that stall a ring of ranks for at most {STALL_MORE_S} s more than the downtime",
        1.0,
        _stalls,
        unit="%",
    ),
)
