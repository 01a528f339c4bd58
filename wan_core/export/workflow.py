"""The graph a run came from, as ComfyUI finds it in a file that is dropped on its canvas."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import WanTrainerError
from ..files import read_json

__all__ = ["workflow_metadata"]

_LIMIT_BYTES = 2 << 20
"""ComfyUI's page reads the first 4 MiB of a file, and the names of the tensors stand there too"""


def workflow_metadata(directory: Path) -> dict[str, str]:
    """workflow.json of a run as header texts: `workflow` for the canvas form, `prompt` for the API form.

    Empty when the run has none, or one that is no graph or does not fit into what the page reads.
    """
    try:
        graph = read_json(directory / "workflow.json", limit_bytes=_LIMIT_BYTES)
    except WanTrainerError:
        return {}
    if not isinstance(graph, dict) or not graph:
        return {}
    text = json.dumps(graph, ensure_ascii=False, separators=(",", ":"))
    # Half of a character, which a header cannot hold, as JSON spells it.
    return {"workflow" if "nodes" in graph else "prompt": text.encode("utf-8", "backslashreplace").decode("utf-8")}
