"""What a graph meant to earlier versions, so that a run they began goes on with the numbers it had."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from route_server import our_module

pytestmark = pytest.mark.comfy


@pytest.fixture
def earlier(pack_nodes: dict[str, Any]) -> Any:
    """(what was asked for, the settings node) -> (shift, scheduler) of each former meaning, for a model of shift 12."""
    module = our_module(pack_nodes, "runs.job")

    def meanings(asked: dict[str, Any], *, wired: bool) -> list[tuple[float, str]]:
        model = SimpleNamespace(earlier=lambda _plan: [])
        settings = module.SettingsHandle(tuple(asked.items()), module.LoraConfig()) if wired else None
        train = module.TrainConfig(**asked)
        config = module.RunConfig(
            run_name="x",
            model=module.ModelPlan(base_file="diffusion_models:a.safetensors"),
            base_digest="b" * 64,
            data=module.DataConfig(fingerprint="c" * 64),
            train=replace(train, discrete_flow_shift=train.discrete_flow_shift or 12.0),
        )
        found = [run.train for run in module.AskedJob(model, settings, False, {"run_name": "x"}).earlier(config)]
        return [(train.discrete_flow_shift, train.lr_scheduler) for train in found]

    return meanings


def test_a_graph_without_settings_meant_shift_3_and_a_constant_rate(earlier: Any) -> None:
    assert earlier({}, wired=False) == [(3.0, "cosine"), (12.0, "constant"), (3.0, "constant")]


def test_what_a_settings_node_says_never_meant_anything_else(earlier: Any) -> None:
    assert earlier({"discrete_flow_shift": 8.0, "lr_scheduler": "cosine"}, wired=True) == []
    assert earlier({"lr_scheduler": "cosine"}, wired=True) == [(3.0, "cosine")], (
        "0 is today's word for the model's shift"
    )


def test_a_run_goes_on_as_the_card_it_began_on_computes(pack_nodes: dict[str, Any]) -> None:
    """Begun in bf16 and queued again where there is none, and the other way round: each with the loss it had."""
    module = our_module(pack_nodes, "runs.job")
    plan = module.ModelPlan(base_file="diffusion_models:a.safetensors")
    handle = module.ModelHandle(plan, None, None, "none")
    for here, others in (("fp16", ["", "fp32"]), ("", ["fp16", "fp32"])):
        taken = replace(plan, compute=here)
        config = module.RunConfig(
            run_name="x",
            model=taken,
            base_digest="b" * 64,
            data=module.DataConfig(fingerprint="c" * 64),
            train=module.with_scaled_loss(module.TrainConfig(discrete_flow_shift=12.0), taken),
        )
        asked = module.AskedJob(replace(handle, plan=taken), None, False, {"run_name": "x"})
        begun = {run.model.compute: run.train.loss_scaling for run in asked.earlier(config)}
        assert {one: begun[one] for one in (here, *others)} == {"": "off", "fp16": "dynamic", "fp32": "off"}
        assert config.job_id not in {run.job_id for run in asked.earlier(config) if run.model.compute != here}
