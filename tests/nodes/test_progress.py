"""ComfyUI's interrupt is never lost, whoever notices it first."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.comfy


@pytest.fixture
def nodes_package(pack_nodes: dict[str, Any]) -> str:
    return pack_nodes["TrainLoRA"].__module__.rpartition(".")[0]


@pytest.fixture
def pressed(monkeypatch: pytest.MonkeyPatch, nodes_package: str) -> Any:
    """Cancel is pressed, and ComfyUI's progress hook raises as in a running server."""
    import comfy.utils
    from comfy import model_management as mm

    class Bar:
        def __init__(self, total: int, node_id: str) -> None:
            pass

        def update_absolute(self, *_: object) -> None:
            mm.throw_exception_if_processing_interrupted()

    monkeypatch.setattr(comfy.utils, "ProgressBar", Bar)
    monkeypatch.setitem(sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=None)))
    mm.interrupt_current_processing(True)
    yield mm
    mm.interrupt_current_processing(False)


def test_a_node_that_works_in_this_process_is_interrupted(pressed: Any, nodes_package: str) -> None:
    progress = sys.modules[f"{nodes_package}.progress"].NodeProgress("1")
    with pytest.raises(pressed.InterruptProcessingException):
        progress.bar(1, 2)


def test_a_node_that_follows_a_worker_gets_a_press(pressed: Any, nodes_package: str) -> None:
    button = sys.modules[f"{nodes_package}.interrupts"].CancelButton()
    sys.modules[f"{nodes_package}.progress"].NodeProgress("1", button).bar(1, 2)
    assert button.pressed()
    assert not button.pressed(), "one press is one press"
