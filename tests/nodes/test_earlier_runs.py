"""What a graph meant to earlier versions, so that a run they began goes on with the numbers it had."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.comfy


@pytest.fixture
def earlier(pack_nodes: dict[str, Any]) -> Any:
    """(what was asked for, the settings node) -> (shift, scheduler) of each former meaning, for a model of shift 12."""
    module = sys.modules[pack_nodes["TrainLoRA"].__module__]

    def meanings(asked: dict[str, Any], settings: object) -> list[tuple[float, str]]:
        train = module.TrainConfig(**asked)
        resolved = replace(train, discrete_flow_shift=train.discrete_flow_shift or 12.0)
        config = module.RunConfig(
            run_name="x",
            model=sys.modules[module.RunConfig.__module__].ModelPlan(base_file="diffusion_models:a.safetensors"),
            base_digest="b" * 64,
            data=module.DataConfig(fingerprint="c" * 64),
            train=resolved,
        )
        model = SimpleNamespace(earlier=lambda _plan: [])
        found = [run.train for run in module._earlier(config, model, train, settings)]
        return [(train.discrete_flow_shift, train.lr_scheduler) for train in found]

    return meanings


def test_a_graph_without_settings_meant_shift_3_and_a_constant_rate(earlier: Any) -> None:
    assert earlier({}, None) == [(3.0, "cosine"), (12.0, "constant"), (3.0, "constant")]


def test_what_a_settings_node_says_never_meant_anything_else(earlier: Any) -> None:
    wired = object()
    assert earlier({"discrete_flow_shift": 8.0, "lr_scheduler": "cosine"}, wired) == []
    assert earlier({"lr_scheduler": "cosine"}, wired) == [(3.0, "cosine")], "0 is today's word for the model's shift"
