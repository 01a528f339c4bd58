"""Converts settings files of other trainers, dropped on the page, to a workflow with an account of each setting.

Nothing is read from disk or written to it. Files that the settings name, but the request lacks, are listed as missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...wan_core.migrate import UnknownSettingsError, canvas_graph, note_lines, read_texts
from .guard import Refused

SETTINGS_LIMIT = 1 << 20
"""bytes of a request with settings files"""
_MOST_FILES = 16
_NAME = re.compile(r"[^/\\\x00-\x1f]{1,200}")


def graph_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the workflow for {"files": {name: text}}; `known` is false if no file is of a known trainer.

    Raises Refused(400) for any other body, and ConfigError or DatasetError for settings that cannot be converted.
    """
    files = body.get("files")
    if not isinstance(files, dict) or not 1 <= len(files) <= _MOST_FILES:
        raise Refused(400, 'Reading settings needs {"files": {<name>: <text>}}, with 1 to 16 files.')
    for name, text in files.items():
        if not _NAME.fullmatch(name) or not isinstance(text, str):
            raise Refused(400, "A settings file has a plain name and a text.")
    try:
        job, missing = read_texts(files)
    except UnknownSettingsError as error:
        return {"version": 1, "known": False, "reason": str(error)}
    return {
        "version": 1,
        "known": True,
        "trainer": job.trainer,
        "source": job.source,
        "graph": canvas_graph(job),
        "note": note_lines(job),
        "counts": job.ledger.counts(),
        "data": job.data,
        "missing": list(missing),
    }
