"""workflow.json of a run: the graph it came from, without paths of this machine."""

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


def scrubbed(graph: Any) -> Any:
    """A copy of JSON data with every absolute path in its texts replaced, and without ComfyUI's own fingerprints."""
    if isinstance(graph, dict):
        return {str(key): scrubbed(value) for key, value in graph.items() if key != "is_changed"}
    if isinstance(graph, list | tuple):
        return [scrubbed(value) for value in graph]
    if isinstance(graph, str):
        return _ABSOLUTE.sub("[path removed]", graph)
    return graph
