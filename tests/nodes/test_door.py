"""The door of every node looks at every text that comes in."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from route_server import our_module

pytestmark = pytest.mark.comfy

HALF = "cat \ud83d"


@pytest.fixture
def door(pack_nodes: dict[str, Any]) -> Any:
    return sys.modules[pack_nodes["TrainLoRA"].__module__.rpartition(".")[0] + ".bridge.door"]


@pytest.mark.parametrize("value", [HALF, [HALF], [["a", [HALF]]], {"a": HALF}, {HALF: 1}, [{"a": ("b", [HALF])}]])
def test_half_of_a_character_is_refused_however_deep_it_lies(door: Any, value: object) -> None:
    with pytest.raises(Exception, match="captions contains half a character") as refused:
        door._check_texts({"captions": value})
    assert type(refused.value).__name__ == "ConfigError"


def test_an_error_of_the_disk_becomes_a_sentence_without_a_path(door: Any, tmp_path: Path) -> None:
    """As when roots.json, run.json or workflow.json finds no room: Python says the number and the whole path."""

    class Node:
        @classmethod
        def define_schema(cls) -> Any:
            return SimpleNamespace(inputs=[])

        @classmethod
        def execute(cls, number: int) -> None:
            raise OSError(number, os.strerror(number), str(tmp_path / "output" / "wan_trainer" / "cat" / "run.json"))

    (tmp_path / "output" / "wan_trainer").mkdir(parents=True)
    node: Any = door.guarded(Node)
    for number, words in (
        (errno.ENOSPC, "which holds folder output/wan_trainer/cat, is too full to write run.json"),
        (errno.EACCES, "run.json in folder output/wan_trainer/cat cannot be used: Permission denied. Give the account"),
        (errno.ETIMEDOUT, "Connection timed out (run.json). Check the disk and folder."),
    ):
        with pytest.raises(Exception, match=re.escape(words)) as refused:
            node.execute(number=number)
        assert type(refused.value).__name__ == "FileError"
        assert tmp_path.name not in str(refused.value)
        assert "Errno" not in "".join(traceback.format_exception_only(refused.value))
        assert refused.value.__suppress_context__


def test_a_cancel_that_a_fingerprint_hears_is_there_for_the_run(door: Any, pack_nodes: dict[str, Any]) -> None:
    """ComfyUI drops what a fingerprint raises, and runs the node: 300,000 rows were read to the end."""
    from comfy import model_management

    stopped = our_module(pack_nodes, "bridge.interrupts").Stopped

    class Node:
        @classmethod
        def define_schema(cls) -> Any:
            return SimpleNamespace(inputs=[])

        @classmethod
        def fingerprint_inputs(cls) -> None:
            raise stopped

        @classmethod
        def execute(cls) -> None:
            raise stopped

    node: Any = door.guarded(Node)
    try:
        for name, still_pressed in (("fingerprint_inputs", True), ("execute", False)):
            model_management.interrupt_current_processing(True)
            with pytest.raises(model_management.InterruptProcessingException):
                getattr(node, name)()
            assert model_management.processing_interrupted() is still_pressed
    finally:
        model_management.interrupt_current_processing(False)


def test_what_is_whole_passes_and_what_holds_itself_ends(door: Any) -> None:
    loop: list[Any] = ["a"]
    loop.append(loop)
    door._check_texts({"a": loop, "b": {"x": [1, None, object(), "\U0001f63a"]}})
