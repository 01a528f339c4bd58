"""Training in float16: what overflows is never silent, and what a card without bf16 takes by itself is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.golden import Golden, relative
from tests.support.sessions import train_here
from tests.support.tiny_run import TINY, make_roots, make_run
from wan_core.audit.any_dtype import compute_in, fill_empty_adapters, let_linears_cast
from wan_core.events import Note, StepDone
from wan_core.job import with_scaled_loss
from wan_core.load import ModelPlan, inspect_model, resolved
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import WanTransformer
from wan_core.precision import PrecisionPolicy
from wan_core.train import TrainConfig
from wan_core.train.recovery import LossScale

LINEARS = (
    *("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o"),
    *("cross_attn.q", "cross_attn.k", "cross_attn.v", "cross_attn.o", "ffn.0", "ffn.2"),
)
_FULL_CLIP = 16 * 13 * 60 * 104
"""values of a latent of 832x480x49, of which a loss is the mean"""


@pytest.fixture(scope="module")
def golden() -> tuple[WanTransformer, Callable[[], torch.Tensor]]:
    """The golden model with adapters that change something, and its loss on the golden inputs."""
    file = Golden("t2v")
    model = file.model()
    inject_lora(model, LoraConfig(rank=4), seed=0)
    fill_empty_adapters(model, 0)
    let_linears_cast(model)
    inputs = file.inputs()
    return model, lambda: model(*inputs).square().mean()


def gradients(model: WanTransformer, loss: torch.Tensor, scaling: str, part: float) -> torch.Tensor:
    """Those of so small a part of the loss as a value of a full clip has, put back on them."""
    scale, parameters = LossScale(scaling), adapter_parameters(model)
    scale.scale(loss * part).backward()
    scale.unscale(parameters.values())
    found = torch.cat([p.grad.flatten() for p in parameters.values() if p.grad is not None]) / part
    for parameter in parameters.values():
        parameter.grad = None
    return found


def test_gradients_of_float16_with_a_scaled_loss_are_closer_to_float32_than_those_of_bfloat16(
    golden: tuple[WanTransformer, Callable[[], torch.Tensor]],
) -> None:
    model, loss = golden
    part = Golden("t2v")["inputs.hidden_states"].numel() / _FULL_CLIP
    found = {}
    for name, compute, scaling in (
        ("exact", torch.float32, "off"),
        ("half", torch.float16, "dynamic"),
        ("unscaled", torch.float16, "off"),
        ("bfloat", torch.bfloat16, "off"),
    ):
        compute_in(model, PrecisionPolicy().numerics(compute))
        found[name] = gradients(model, loss(), scaling, part)
    errors = {name: relative(value, found["exact"]) for name, value in found.items()}
    assert errors["half"] < 1e-3
    assert errors["half"] < errors["bfloat"] / 3
    assert errors["unscaled"] > 10 * errors["half"]


@pytest.mark.parametrize("where", LINEARS)
@pytest.mark.parametrize("sign", [1, pytest.param(-1, marks=pytest.mark.soak)])
def test_an_activation_that_float16_cannot_hold_makes_the_loss_infinite_or_none(
    golden: tuple[WanTransformer, Callable[[], torch.Tensor]], where: str, sign: int
) -> None:
    """So the step is skipped and said, whatever overflowed; a clamped or lost infinity would train on quietly."""
    model, loss = golden
    compute_in(model, PrecisionPolicy().numerics(torch.float16))

    def overflow(_module: torch.nn.Module, _given: object, value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        value.view(-1)[0] = sign * math.inf
        return value

    hook = model.blocks[0].get_submodule(where).register_forward_hook(overflow)
    try:
        assert not math.isfinite(loss().item())
    finally:
        hook.remove()


@pytest.mark.lasts(0.5)
def test_a_run_on_a_card_without_bf16_scales_its_loss_by_itself_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAN_TRAINER_CARD_CAPABILITY", "7.5")
    roots, _ = make_roots(tmp_path / "looked", shape=replace(TINY, num_layers=1))
    plan = ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors")
    plan = resolved(plan, [inspect_model(plan, roots)])
    train = TrainConfig(steps=2, save_every_n_steps=2, preview_every_n_steps=0, eval_items=0, save_dtype="fp32")
    run = make_run(tmp_path, shape=replace(TINY, num_layers=1), train=with_scaled_loss(train, plan), plan=plan)
    events = train_here(run)
    (note,) = [event for event in events if isinstance(event, Note) and "bf16" in event.text]
    assert (note.level, note.text[:29]) == ("info", "cpu (compute capability 7.5) ")
    assert all(math.isfinite(event.loss) for event in events if isinstance(event, StepDone))
    state = load_file(run.directory / "saves" / "step-000002" / "state.safetensors")
    assert state["loss_scale"].tolist() == [2.0**16, 2]
