"""The transformer against golden vectors made with official Wan, diffusers and ComfyUI (tests/fixtures/README.md)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.golden import FLOAT64, Golden, relative
from wan_core.checkpoint import to_original
from wan_core.model import Numerics


@pytest.fixture(params=["t2v", "i2v", "ti2v_5b"])
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


def test_float32_output_is_within_1e_4_of_the_float64_reference(golden: Golden) -> None:
    output = golden.model()(*golden.inputs())
    torch.testing.assert_close(output.double(), golden["expected.output_fp64"], atol=1e-4, rtol=0)


def test_float64_output_is_the_reference(golden: Golden) -> None:
    output = golden.model(FLOAT64).double()(*golden.inputs(dtype=torch.float64))
    assert output.dtype == torch.float64
    torch.testing.assert_close(output, golden["expected.output_fp64"], atol=1e-9, rtol=0)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize(("numerics", "tolerance"), [(Numerics(), 1e-4), (FLOAT64, 1e-9)], ids=["fp32", "fp64"])
def test_loss_and_gradients_match_the_reference(
    golden: Golden, numerics: Numerics, tolerance: float, checkpointed: bool
) -> None:
    dtype = numerics.compute
    model = golden.model(numerics).to(dtype)
    model.checkpoint_blocks = checkpointed
    hidden = golden["inputs.hidden_states"].to(dtype).requires_grad_()
    loss = nn.functional.mse_loss(model(*golden.inputs(hidden, dtype)), golden["inputs.target"].to(dtype))
    loss.backward()
    assert abs(loss.item() - float(golden["expected.loss_fp64"])) < tolerance
    expected = golden.names("expected.grad.")
    assert len(expected) == 3
    for name in expected:
        gradient = model.get_parameter(to_original(name)).grad
        assert gradient is not None
        assert relative(gradient, golden[f"expected.grad.{name}"]) < tolerance
    assert hidden.grad is not None
    assert relative(hidden.grad, golden["expected.grad_hidden_states_fp64"]) < tolerance


def test_the_steps_between_match_the_reference(golden: Golden) -> None:
    model, seen = golden.model(), []
    for block in model.blocks:
        block.register_forward_hook(lambda _block, inputs, output: seen.append((inputs, output)))
    model(*golden.inputs())
    (tokens, time_rows, text, cos, sin, image, _face), _ = seen[0]
    _close(tokens, golden["inter.tokens"])
    for number, (_, output) in enumerate(seen):
        _close(output, golden[f"inter.block{number}_out"])
    angles = golden["inter.rope_angles"]
    _close(cos[:, 0], angles.cos())
    _close(sin[:, 0], angles.sin())
    rows = golden["inter.text_ctx"]
    _close(text[:, : rows.shape[1]], rows)
    projected = golden["inter.timestep_proj"]
    _close(time_rows[:, [0, -1]] if projected.shape[1] == 2 else time_rows, projected)
    if golden.shape.image_dim:
        _close(image, golden["inter.image_ctx"])


def test_checkpointing_changes_no_bit_of_a_gradient(golden: Golden) -> None:
    found = []
    for checkpointed in (False, True):
        model = golden.model(Numerics(compute=torch.bfloat16)).to(torch.bfloat16)
        model.checkpoint_blocks = checkpointed
        model(*golden.inputs()).square().mean().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_bf16_linears_stay_within_two_percent_of_float32(golden: Golden) -> None:
    model = golden.model(Numerics(compute=torch.bfloat16))
    for name, parameter in model.named_parameters():
        if "norm" not in name and "modulation" not in name:
            parameter.data = parameter.data.bfloat16()
    output = model(*golden.inputs())
    assert relative(output, golden["expected.output_fp64"]) < 2e-2


def test_one_timestep_per_latent_frame_equals_one_per_clip_when_all_are_equal() -> None:
    golden = Golden("t2v")
    model = golden.model()
    latent, timestep, text, _ = golden.inputs()
    per_frame = timestep[:, None].expand(-1, latent.shape[2])
    torch.testing.assert_close(model(latent, per_frame, text), model(latent, timestep, text), atol=2e-6, rtol=0)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_ambient_autocast_changes_no_bit_of_output_or_gradient(golden: Golden, checkpointed: bool) -> None:
    found = []
    for ambient in (False, True):
        model = golden.model()
        model.checkpoint_blocks = checkpointed
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=ambient):
            output = model(*golden.inputs())
        output.square().mean().backward()
        found.append((output.detach(), model.blocks[0].ffn[0].weight.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def _close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.detach(), expected, atol=1e-5, rtol=0)
