"""Numbers of a queued graph that are none, such as steps "abc": kept from ComfyUI until our node can refuse them.

ComfyUI turns the values of number widgets into numbers before it asks a node. Where that fails it drops the node and
what stands behind it, runs the other outputs of the graph, and answers with a success in which nothing was trained. So
such a value goes through the check as a number that nobody writes, and the node, once it runs, says what it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, cast

from ...wan_core.errors import ConfigError

_KINDS = {"INT": int, "FLOAT": float}
_FIRST = -(10**15)
"""a whole number that a float holds exactly, far below what any widget takes"""
_KEPT = 1000
_texts: OrderedDict[int, str] = OrderedDict()
"""number that stands for a value -> what the value was"""


def with_readable_numbers(asked: Any, schemas: Mapping[str, Any]) -> Any:
    """Returns the body of POST /prompt with numbers in the place of values that are none; anything else as it came.

    `schemas`: node id -> class, of the nodes that ask `check_readable`.
    """
    prompt = cast("dict[str, Any]", asked).get("prompt") if isinstance(asked, dict) else None
    for node in prompt.values() if isinstance(prompt, dict) else ():
        kind = schemas.get(str(node.get("class_type"))) if isinstance(node, dict) else None
        inputs: Any = node.get("inputs") if kind is not None else None
        if kind is not None and isinstance(inputs, dict):
            known = kind.INPUT_TYPES()
            for name, said in {**known.get("required", {}), **known.get("optional", {})}.items():
                number = _KINDS.get(said[0]) if isinstance(said[0], str) else None
                if number is not None and name in inputs and not _is_readable(inputs[name], number):
                    inputs[name] = number(_stand_in(inputs[name]))
    return asked


def check_readable(widgets: Mapping[str, Any]) -> None:
    """Raises ConfigError for a number that stands for a value that was none."""
    for name, value in widgets.items():
        if isinstance(value, int | float) and (text := _texts.get(cast("int", value))) is not None:
            raise ConfigError(f'{name} is "{text}"; it must be a number.')


def _is_readable(value: Any, number: type[int] | type[float]) -> bool:
    if isinstance(value, list):
        return len(cast("list[Any]", value)) == 2  # a link
    try:
        number(value)
    except (TypeError, ValueError, OverflowError):
        return isinstance(value, dict)  # ComfyUI's own way to say a value
    return True


def _stand_in(value: Any) -> int:
    text = str(value)[:200]
    number = next((number for number, known in _texts.items() if known == text), None)
    if number is None:
        number = min(_texts, default=_FIRST + 1) - 1
        _texts[number] = text
        while len(_texts) > _KEPT:
            _texts.popitem(last=False)
    return number
