"""Converts jobs of other trainers to a graph of our nodes, with an account of every key: imported, changed or dropped.

This room reads the training settings; importers/trainers reads the dataset settings, when the graph runs.
"""

from __future__ import annotations

from .graph import api_graph, canvas_graph, note_lines
from .read import TRAINERS, UnknownSettingsError, read_job, read_texts
