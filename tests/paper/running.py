"""Runs a unit of an experiment without a folder."""

import json

import numpy as np

from gdpa.paper.records import Record


class Rows:
    """Keeps the rows a unit reports."""

    def __init__(self):
        self.rows = []

    def row(self, **columns):
        self.rows.append(columns)

    def progress(self, fraction, note=""):
        assert 0 <= fraction <= 1


def record(experiment, unit):
    """Return the record of a unit, its summary as JSON would give it back."""
    log = Rows()
    summary = json.loads(json.dumps(experiment.run(unit, log)))
    columns = {name: np.array([row[name] for row in log.rows]) for name in log.rows[0]}
    return Record(unit, summary, columns, {})
