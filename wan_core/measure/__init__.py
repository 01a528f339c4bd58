"""Measures on the user's own card the steps that others publish, and what its three constants are."""

from __future__ import annotations

from .apart import DONE, ERROR, LEFT_OUT, NEEDS, Figures, Needs, NoTime, Outcome, run_apart, run_here, ways_apart
from .machine import machine_facts
from .measuring import Measurement
from .one_row import Where, measure_row, write_base
from .page import names_of, table
from .rows import ROWS, SHAPES, Published, Row, Size, rows_numbered, space_of

__all__ = [
    "DONE",
    "ERROR",
    "LEFT_OUT",
    "NEEDS",
    "ROWS",
    "SHAPES",
    "Figures",
    "Measurement",
    "Needs",
    "NoTime",
    "Outcome",
    "Published",
    "Row",
    "Size",
    "Where",
    "machine_facts",
    "measure_row",
    "names_of",
    "rows_numbered",
    "run_apart",
    "run_here",
    "space_of",
    "table",
    "ways_apart",
    "write_base",
]
