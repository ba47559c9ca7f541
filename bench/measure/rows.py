"""Finished rows, appended to a file as lines of JSON, so that an interrupted run can continue.

The first line names the machine, kernel, commit and build of all rows. Rows of another environment
are refused.
A row:

    key          names the measurement in the plan, once per file
    section      the chapter of the report: aggregation, network, pipeline ...
    series       the sweep it belongs to: rows of one series make one table and one curve
    parameters   the values that were set
    unit         of the samples: GB/s (more is better), s (less is better), CPU-s/GB ...
    results      way -> samples, ppmr first; the others are its ceilings and alternatives, from the
                 same minutes
    facts        further figures of the same runs: name -> number
    not_measured way -> reason
    also         further samples of the same runs: name -> way -> samples; in the same unit, or in
                 the one that ends the name ("sent, MB")
    curves       way -> [[x, y], ...], for a picture
    spans        way -> [[phase, begin, end], ...] of one sample, in seconds since the dump began
"""
import json
import os
from pathlib import Path


def name_of(row):
    """A row's name within its series."""
    return row["key"][len(f"{row['section']}/{row['series']}/") :]


class RowsError(Exception):
    pass


class Rows:
    def __init__(self, path, environment=None):
        """Opens or creates the file. `environment` None: reads an existing file of any
        environment."""
        self.path = Path(path)
        self._rows = {}
        if self.path.exists():
            self._read(environment)
        elif environment is None:
            raise RowsError(f"{self.path}: no figures here")
        else:
            self.environment = environment
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"environment": environment})

    def _read(self, environment):
        text = self.path.read_text()
        whole = text[: text.rfind("\n") + 1]
        lines = whole.splitlines()
        try:
            parsed = [json.loads(line) for line in lines]
            self.environment = parsed[0]["environment"]
            self._rows = {row["key"]: row for row in parsed[1:]}
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise RowsError(
                f"{self.path}: not a file of figures ({error}); remove it or use another --output"
            ) from None
        if environment is not None:
            other = [
                key for key in self.environment if self.environment[key] != environment.get(key)
            ]
            if other:
                raise RowsError(
                    f"{self.path}: its rows come from another {', '.join(other)} ({'; '.join(str(self.environment[key]) for key in other)}, "
                    f"here {'; '.join(str(environment.get(key)) for key in other)}); use another --output"
                )
        if whole != text:  # the run was interrupted while it wrote the last line
            with open(self.path, "r+") as file:
                file.truncate(len(whole.encode()))

    def _append(self, line):
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def __contains__(self, key):
        return key in self._rows

    def __iter__(self):
        return iter(self._rows.values())

    def __len__(self):
        return len(self._rows)

    def get(self, key):
        return self._rows.get(key)

    def add(self, row):
        if row["key"] in self._rows:
            raise RowsError(f"{row['key']} has been measured already")
        if not any(row["results"].values()) and not row.get("not_measured"):
            raise RowsError(f"{row['key']}: no samples and no reason")
        self._append(row)
        self._rows[row["key"]] = row

    def of(self, section, series=None):
        return [
            row for row in self if row["section"] == section and series in (None, row["series"])
        ]
