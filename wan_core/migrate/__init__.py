"""Other trainers' whole jobs, read into the nodes of a new graph: each key is taken, changed, or named.

The data half is read by importers/trainers when the graph runs; this room reads the training half.
"""

from __future__ import annotations

from .graph import api_graph, canvas_graph
from .job import SPLIT
from .read import UnknownSettingsError, read_job, read_texts
from .tables import TRAINERS

__all__ = ["SPLIT", "TRAINERS", "UnknownSettingsError", "api_graph", "canvas_graph", "read_job", "read_texts"]
