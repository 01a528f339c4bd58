"""Parses untrusted files with third-party libraries, in a child process with time and memory limits.

A Python parser would block the server, and a C parser can crash it. The child imports pyarrow, yaml and tomllib, never
torch.
"""

from __future__ import annotations

from .process import Tables, parsed
from .tables import MOST_COLUMNS, MOST_ROWS, too_many_rows

__all__ = ["MOST_COLUMNS", "MOST_ROWS", "Tables", "parsed", "too_many_rows"]
