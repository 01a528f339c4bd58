"""Replaces values of number widgets that are no numbers, such as steps "abc", until our node refuses them.

ComfyUI converts these values before it calls a node. Where that fails, it drops the node and the nodes after it, runs
the other outputs, and reports success, although nothing was trained. Such a value is therefore replaced by a number far
outside of every range, which the node refuses when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ...wan_core.errors import ConfigError

_KINDS = {"INT": int, "FLOAT": float}
_STAND_IN = -(10**15)
"""integer far below the minimum of any widget, which a float represents exactly"""


def with_readable_numbers(body: Any, schemas: Mapping[str, Any]) -> Any:
    """Returns the body of POST /prompt with `_STAND_IN` for values that are no numbers, in nodes of `schemas`."""
    prompt = cast("dict[str, Any]", body).get("prompt") if isinstance(body, dict) else None
    for node in prompt.values() if isinstance(prompt, dict) else ():
        kind = schemas.get(str(node.get("class_type"))) if isinstance(node, dict) else None
        inputs: Any = node.get("inputs") if kind is not None else None
        if kind is not None and isinstance(inputs, dict):
            known = kind.INPUT_TYPES()
            for name, said in {**known.get("required", {}), **known.get("optional", {})}.items():
                number = _KINDS.get(said[0]) if isinstance(said[0], str) else None
                if number is not None and name in inputs and not _is_readable(inputs[name], number):
                    inputs[name] = number(_STAND_IN)
    return body


def check_readable(widgets: Mapping[str, Any]) -> None:
    """Raises ConfigError for a stand-in."""
    for name, value in widgets.items():
        if isinstance(value, int | float) and value == _STAND_IN:
            raise ConfigError(f"{name} is not a number. Set it to one.")


def _is_readable(value: Any, number: type[int] | type[float]) -> bool:
    if isinstance(value, list):
        return len(cast("list[Any]", value)) == 2  # a link
    try:
        number(value)
    except (TypeError, ValueError, OverflowError):
        return isinstance(value, dict)  # ComfyUI's own form of a wrapped value
    return True
