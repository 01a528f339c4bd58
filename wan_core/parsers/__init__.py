"""Parses untrusted files with third-party libraries in a child process that has time and memory limits.

In the server, a Python parser would block, and a C parser could crash. The child imports pyarrow, yaml and tomllib, but
not torch.
"""

from __future__ import annotations

from .process import Tables, parsed
from .tables import MOST_COLUMNS, MOST_ROWS, too_many_rows
