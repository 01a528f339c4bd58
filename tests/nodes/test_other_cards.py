"""A graph that is queued on another kind of card than its run began on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from route_server import our_module

pytestmark = pytest.mark.comfy


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
        requested = module.RequestedJob(replace(handle, plan=taken), None, False, {"run_name": "x"})
        begun = {run.model.compute: run.train.loss_scaling for run in requested.elsewhere(config)}
        assert {one: begun[one] for one in (here, *others)} == {"": "off", "fp16": "dynamic", "fp32": "off"}
        assert config.job_id not in {run.job_id for run in requested.elsewhere(config) if run.model.compute != here}
