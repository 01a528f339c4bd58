"""Measures training steps with published timings on this machine's card."""

from __future__ import annotations

from .apart import DONE, ERROR, LEFT_OUT, NEEDS, Figures, Needs, run_apart, ways_apart
from .machine import machine_facts
from .measuring import Measurement
from .one_row import Where, measure_row, write_base
from .page import names_of, table
from .rows import ROWS, SHAPES, Row, Size, rows_numbered, space_of

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
    "Row",
    "Size",
    "Where",
    "machine_facts",
    "measure_row",
    "names_of",
    "rows_numbered",
    "run_apart",
    "space_of",
    "table",
    "ways_apart",
    "write_base",
]
