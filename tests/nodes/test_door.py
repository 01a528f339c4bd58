"""The door of every node looks at every text that comes in."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytestmark = pytest.mark.comfy

HALF = "cat \ud83d"


@pytest.fixture
def door(pack_nodes: dict[str, Any]) -> Any:
    return sys.modules[pack_nodes["TrainLoRA"].__module__.rpartition(".")[0] + ".bridge.door"]


@pytest.mark.parametrize("value", [HALF, [HALF], [["a", [HALF]]], {"a": HALF}, {HALF: 1}, [{"a": ("b", [HALF])}]])
def test_half_of_a_character_is_refused_however_deep_it_lies(door: Any, value: object) -> None:
    with pytest.raises(Exception, match="captions holds half of a character") as refused:
        door._check_texts({"captions": value})
    assert type(refused.value).__name__ == "ConfigError"


def test_what_is_whole_passes_and_what_holds_itself_ends(door: Any) -> None:
    loop: list[Any] = ["a"]
    loop.append(loop)
    door._check_texts({"a": loop, "b": {"x": [1, None, object(), "\U0001f63a"]}})
