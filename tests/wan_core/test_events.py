"""Every event leaves the worker as a line that any JSON reader takes, whatever its numbers are."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, NoReturn, get_type_hints

import pytest

from wan_core import events
from wan_core.events import Event, to_line

KINDS = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]
ODD = (math.nan, math.inf, -math.inf)


def filled(kind: type[Event], odd: float) -> Event:
    """An event in which each number that may be one, also inside lists and tables, is `odd`."""
    hints = get_type_hints(kind)
    return kind(**{field.name: value_of(str(hints[field.name]), odd) for field in dataclasses.fields(kind)})


def value_of(hint: str, odd: float) -> Any:
    if hint.startswith("list[float"):
        return [0.5, odd]
    if hint.startswith("dict[str, float"):
        return {"500": odd}
    if hint.startswith("dict[str, dict"):
        return {"cpu": {"now": odd}}
    if "float" in hint:
        return odd
    return {} if hint.startswith("dict") else [] if hint.startswith(("list", "tuple")) else 1 if "int" in hint else ""


def refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.parametrize("kind", [k for k in KINDS if k is not Event], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("odd", ODD)
def test_no_number_keeps_an_event_from_being_written(kind: type[Event], odd: float) -> None:
    line = to_line(filled(kind, odd))
    assert json.loads(line, parse_constant=refuse)["event"] == kind.name


def test_of_an_evaluation_that_is_not_finite_the_rest_is_kept() -> None:
    said = json.loads(to_line(events.Evaluated(step=3, eval_loss=math.nan, per_clip=[0.5, math.nan])))
    assert (said["eval_loss"], said["per_clip"]) == (None, [0.5, None])
