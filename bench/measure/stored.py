"""Stores a run in the repository: `bench/results`. All pictures there are then of one run.

A chapter that has a folder of its own there, with pictures, gets its rows in it; all other rows are
in `bench/results` itself.
"""
import shutil

from . import report
from .rows import Rows

PICTURES = "pictures"


def store(rows, results):
    """Replaces rows.jsonl, report.md and the pictures. Returns the reports."""
    own = {
        folder.name: folder
        for folder in sorted(results.iterdir())
        if (folder / PICTURES).is_dir() and rows.of(folder.name)
    }
    reports = []
    for folder in [results, *own.values()]:
        shutil.rmtree(folder / PICTURES, ignore_errors=True)
        path = folder / "rows.jsonl"
        path.unlink(missing_ok=True)
        stored = Rows(path, rows.environment)
        for row in rows:
            if own.get(row["section"], results) == folder:
                stored.add(row)
        reports.append(report.write(stored, folder)[0])
    return reports
