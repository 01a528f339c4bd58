"""workflow.json of a run: the graph it came from, without paths of this machine and without secrets."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["scrubbed"]

# An absolute POSIX path of two parts or more that is not the tail of a URL or of a relative path; a drive
# or share path; a home folder.
_ABSOLUTE = re.compile(
    r"(?<![\w.:/~])/(?:[^/\s\"'<>|]+/)+[^/\s\"'<>|]*"
    r"|\b[A-Za-z]:[\\/][^\s\"'<>|]*"
    r"|\\\\[^\s\"'<>|]+"
    r"|~/[^\s\"'<>|]*"
)
# Tokens as their makers begin them, and what follows a word that announces one (rule S13).
_SECRET = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abprs]-|r8_|npm_)[A-Za-z0-9_-]{16,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"
    r"|(?i:\bbearer\s+)[A-Za-z0-9._~+/-]{16,}"
)


def scrubbed(graph: Any) -> Any:
    """A copy of JSON data with absolute paths and tokens in its texts replaced, without ComfyUI's own fingerprints."""
    if isinstance(graph, dict):
        return {str(key): scrubbed(value) for key, value in graph.items() if key != "is_changed"}
    if isinstance(graph, list | tuple):
        return [scrubbed(value) for value in graph]
    if isinstance(graph, str):
        return _ABSOLUTE.sub("[path removed]", _SECRET.sub("[secret removed]", graph))
    return graph
