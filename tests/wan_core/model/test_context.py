"""In-context streams of Bernini-R: against ComfyUI's own class, and what a pass does with them."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from tests.support.golden import FIXTURES, FLOAT64, Golden
from wan_core.errors import ConfigError
from wan_core.model import Conditioning, Numerics, Passage, WanTransformer
from wan_core.model.conditioning import MOST_STREAMS
from wan_core.model.parts import Part

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, Conditioning]


def inputs_of(golden: Golden, dtype: torch.dtype = torch.float32) -> tuple[Inputs, torch.Tensor]:
    """The inputs of tests/tiny/bernini_golden.py, and what ComfyUI 0.33 makes of them in float64."""
    vectors = load_file(FIXTURES / "wan_tiny_bernini.safetensors")
    context = tuple(vectors[f"context{number}"].to(dtype) for number in (1, 2, 3))
    return (*golden.inputs(dtype=dtype)[:3], Conditioning(context=context)), vectors["output"]


@pytest.mark.parametrize(("numerics", "limit"), [(Numerics(), 1e-5), (FLOAT64, 1e-12)], ids=["fp32", "fp64"])
def test_comfyui_predicts_the_same(numerics: Numerics, limit: float) -> None:
    golden = Golden("t2v")
    dtype = numerics.compute
    inputs, wanted = inputs_of(golden, dtype)
    model = golden.model(numerics).to(dtype)
    with torch.no_grad():
        predicted = model(*inputs)
        alone = model(*inputs[:3])
    assert float((predicted.double() - wanted).abs().max()) <= limit
    assert float((alone.double() - wanted).abs().max()) > 0.1  # the streams are read


def loss_of(model: WanTransformer, inputs: Inputs) -> torch.Tensor:
    return model(*inputs).square().mean()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_gradients_are_those_of_finite_differences(checkpointed: bool) -> None:
    golden = Golden("t2v")
    inputs, _ = inputs_of(golden, torch.float64)
    model = golden.model(FLOAT64).double()
    model.checkpoint_blocks = checkpointed
    loss_of(model, inputs).backward()
    step = 1e-5
    for name in ("patch_embedding.weight", "blocks.0.self_attn.k.weight", "blocks.1.ffn.0.weight"):
        weight = model.get_parameter(name)
        direction = torch.randn(weight.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            weight += step * direction
            above = float(loss_of(model, inputs))
            weight -= 2 * step * direction
            below = float(loss_of(model, inputs))
            weight += step * direction
        assert weight.grad is not None
        slope = float((weight.grad * direction).sum())
        assert (above - below) / (2 * step) == pytest.approx(slope, rel=1e-6)


def test_clips_of_a_batch_are_chosen_and_doubled_with_their_streams() -> None:
    golden = Golden("t2v")
    (latent, timestep, text, given), _ = inputs_of(golden)
    model, places = golden.model(), torch.tensor([1])
    with torch.no_grad():
        both = model(latent, timestep, text, given)
        one = model(latent[1:], timestep[1:], text[1:], given.only(places))
        twice = model(*(torch.cat([tensor] * 2) for tensor in (latent, timestep, text)), given.doubled())
    assert torch.allclose(one, both[1:], atol=1e-5)
    assert torch.allclose(twice, torch.cat([both] * 2), atol=1e-5)
    assert [stream.dtype for stream in given.to(torch.device("cpu")).context] == [torch.float32] * 3


def test_a_stream_that_does_not_fit_is_refused_and_so_is_a_part_of_the_tokens() -> None:
    golden = Golden("t2v")
    (latent, timestep, text, given), _ = inputs_of(golden)
    model = golden.model()
    for context, sentence in (
        ((torch.zeros(2, 16, 1, 3, 4),), r"Context stream 1 is \(2, 16, 1, 3, 4\); .* even H and W"),
        ((torch.zeros(2, 48, 1, 4, 4),), r"needs \(2, 16, F, H, W\)"),
        ((*given.context, torch.zeros(1, 16, 1, 4, 4)), "Context stream 4"),
        ((torch.zeros(2, 16, 1, 2, 2),) * (MOST_STREAMS + 1), "11 context streams. Give at most 10"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            model(latent, timestep, text, Conditioning(context=context))
    with pytest.raises(ConfigError, match="one timestep per clip"):
        model(latent, timestep[:, None].repeat(1, 3), text, given)
    with pytest.raises(ConfigError, match="cannot be combined with split tokens"):
        model(latent, timestep, text, given, (Passage(0, 1, torch.arange(6)),))
    with pytest.raises(ConfigError, match="cannot be combined with split tokens"):
        model.patches(latent, timestep, text, given, (), Part(torch.arange(6)))
    with pytest.raises(ConfigError, match="which this model does not read"):
        Golden("i2v").model()(*Golden("i2v").inputs()[:3], Conditioning(
            channels=Golden("i2v").inputs()[3].channels,
            image_tokens=Golden("i2v").inputs()[3].image_tokens,
            context=given.context[:1],
        ))  # fmt: skip
