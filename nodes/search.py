"""Other words people type when they look for a node."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from comfy_api.latest import io

__all__ = ["searched_as"]


def searched_as(*words: str) -> dict[str, Any]:
    """Keywords of `io.Schema` that make a node found by `words`, beside its id and its name.

    Nothing where the running ComfyUI knows no such words (before 0.10): the search of its page reads id and name only.
    """
    known = {field.name for field in fields(io.Schema)}
    return {"search_aliases": list(words)} if "search_aliases" in known else {}
