"""The transformer against golden vectors made with official Wan, diffusers and ComfyUI (tests/fixtures/README.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from wan_core.checkpoint import to_original
from wan_core.model import Numerics, WanShape, WanTransformer

FIXTURES = Path(__file__).parents[2] / "fixtures"
GRADIENT = "expected.grad."


class Golden:
    def __init__(self, name: str) -> None:
        self.file = safe_open(FIXTURES / name, "pt")
        config = json.loads(self.file.metadata()["config"])
        self.shape = WanShape(
            dim=config["num_attention_heads"] * config["attention_head_dim"],
            ffn_dim=config["ffn_dim"],
            num_heads=config["num_attention_heads"],
            num_layers=config["num_layers"],
            in_channels=config["in_channels"],
            out_channels=config["out_channels"],
            text_dim=config["text_dim"],
        )

    def __getitem__(self, key: str) -> torch.Tensor:
        return self.file.get_tensor(key)

    def model(self, numerics: Numerics | None = None) -> WanTransformer:
        model = WanTransformer(self.shape, numerics)
        keys = [k for k in self.file.keys() if k.startswith("weights.")]  # noqa: SIM118
        model.load_state_dict({to_original(k[8:]): self[k] for k in keys}, strict=True)
        return model

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self["inputs.hidden_states"], self["inputs.timestep"], self["inputs.encoder_hidden_states"]


@pytest.fixture
def golden() -> Golden:
    return Golden("wan_tiny_t2v.safetensors")


def test_float32_output_is_within_1e_4_of_the_float64_reference(golden: Golden) -> None:
    output = golden.model()(*golden.inputs())
    torch.testing.assert_close(output.double(), golden["expected.output_fp64"], atol=1e-4, rtol=0)


def test_float64_output_is_the_reference(golden: Golden) -> None:
    numerics = Numerics(**{name: torch.float64 for name in Numerics.__dataclass_fields__ if name != "adapter"})
    model = golden.model(numerics).double()
    latent, timestep, text = golden.inputs()
    output = model(latent.double(), timestep.double(), text.double())
    # The output leaves the model as float32; 1e-6 is its rounding at values up to 5.
    torch.testing.assert_close(output.double(), golden["expected.output_fp64"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_loss_and_weight_gradients_match_the_reference(golden: Golden, checkpointed: bool) -> None:
    model = golden.model()
    model.checkpoint_blocks = checkpointed
    latent, timestep, text = golden.inputs()
    latent.requires_grad_()
    loss = torch.nn.functional.mse_loss(model(latent, timestep, text), golden["inputs.target"])
    loss.backward()
    assert abs(loss.item() - float(golden["expected.loss_fp64"])) < 1e-5
    expected = [k for k in golden.file.keys() if k.startswith(GRADIENT)]  # noqa: SIM118
    assert len(expected) == 3
    for key in expected:
        gradient = model.get_parameter(to_original(key.removeprefix(GRADIENT))).grad
        assert gradient is not None
        assert _relative(gradient, golden[key]) < 1e-4
    assert latent.grad is not None
    assert _relative(latent.grad, golden["expected.grad_hidden_states_fp64"]) < 1e-4


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
    assert _relative(output, golden["expected.output_fp64"]) < 2e-2


def test_one_timestep_per_latent_frame_equals_one_per_clip_when_all_are_equal(golden: Golden) -> None:
    model = golden.model()
    latent, timestep, text = golden.inputs()
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


def _relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    difference = value.detach().double() - reference.double()
    return float(difference.norm() / reference.double().norm())
