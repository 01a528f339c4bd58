"""Parses strangers' files with other libraries, in a process of its own with limits of time and memory.

A parser of Python holds a server while it runs, and one of C can end it. The child imports pyarrow, yaml and tomllib,
never torch.
"""

from __future__ import annotations

from .process import Tables, parsed
from .tables import MOST_COLUMNS, MOST_ROWS, too_many_rows

__all__ = ["MOST_COLUMNS", "MOST_ROWS", "Tables", "parsed", "too_many_rows"]
