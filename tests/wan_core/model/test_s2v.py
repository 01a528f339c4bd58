"""S2V: as ComfyUI 0.33's class computes it, gradients, what reaches which frame, and what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.support.golden import FLOAT64
from tests.support.peers import S2V_CASES, S2V_VECTORS, given_of, inputs_of, model_of, predicted
from wan_core.errors import ConfigError
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import Route, WanTransformer, draw_passages
from wan_core.placement import DeviceCarrier, Placement

SPLIT = Placement((*(torch.device("cpu"),) * 3, *(torch.device("cpu", 0),) * 2))
TARGETS = (r"blocks\.\d+\.(self_attn|sound)\.(q|k|v|o|adain)", r"blocks\.\d+\.ffn\.(0|2)")


def wide(case: str) -> tuple[WanTransformer, dict[str, Tensor]]:
    model = model_of(case, FLOAT64).double()
    return model, {name: value.double() for name, value in inputs_of(case).items()}


@pytest.mark.parametrize("case", S2V_CASES)
def test_outputs_are_those_of_comfyui(case: str) -> None:
    theirs = load_file(S2V_VECTORS)[f"{case}.fp64"]
    assert 1 < float(theirs.abs().max()) < 20
    model, inputs = wide(case)
    with torch.no_grad():
        assert float((predicted(model, inputs) - theirs).abs().max()) < 1e-12
        assert float((predicted(model_of(case), inputs_of(case)) - theirs).abs().max()) < 1e-5


def loss(model: WanTransformer, inputs: dict[str, Tensor]) -> Tensor:
    made = predicted(model, inputs)
    return (made * torch.linspace(-1, 1, made.numel(), dtype=made.dtype).view_as(made)).sum()


def adapted(model: WanTransformer) -> WanTransformer:
    inject_lora(model.requires_grad_(False), LoraConfig(rank=2, targets=TARGETS), seed=0)
    for number, adapter in enumerate(adapter_parameters(model).values()):
        adapter.data = 0.3 * torch.randn(adapter.shape, generator=torch.Generator().manual_seed(number))
    return model


def test_gradients_are_finite_differences() -> None:
    """Of a part at once, each adapter along a way on which its gradient says that the loss rises as fast."""
    model, inputs = wide("s2v goes on")
    adapted(model).double()
    loss(model, inputs).backward()
    adapters = adapter_parameters(model)
    with torch.no_grad():
        for part, count in (("blocks.0.sound.", 10), ("blocks.0.ffn.2", 2)):
            checked = [adapter for name, adapter in adapters.items() if part in name]
            assert len(checked) == count
            draws = torch.Generator().manual_seed(3)
            ways = [torch.randn(adapter.shape, generator=draws).double() for adapter in checked]
            slopes = [float((adapter.grad * way).sum()) for adapter, way in zip(checked, ways, strict=True)]
            assert min(map(abs, slopes)) > 1e-3, part
            ends = []
            for step in (1e-5, -2e-5, 1e-5):
                for adapter, way, slope in zip(checked, ways, slopes, strict=True):
                    adapter += step / slope * way
                ends.append(float(loss(model, inputs)))
            assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(count, rel=1e-5), part


@pytest.mark.parametrize(
    "chunk_tokens", [0, pytest.param(24, marks=pytest.mark.soak), 8]
)  # tokens of a row, of both clips: 16
def test_recomputed_split_and_chunked_blocks_have_the_same_gradients(chunk_tokens: int) -> None:
    model, inputs = wide("s2v goes on")
    other, _ = wide("s2v goes on")
    other.checkpoint_blocks, other.carrier = True, DeviceCarrier(SPLIT)
    other.run_in_chunks(chunk_tokens)
    model.run_in_chunks(0)
    for one in (model, other):
        loss(adapted(one).double(), inputs).backward()
    trained = {name: one.grad for name, one in adapter_parameters(model).items()}
    assert len(trained) == 2 * (5 * 6 + 2 * 5)
    for name, one in adapter_parameters(other).items():
        torch.testing.assert_close(one.grad, trained[name], atol=1e-12, rtol=1e-9, msg=name)


def test_sound_reaches_its_own_latent_frame_and_later_ones() -> None:
    model, inputs = model_of("s2v"), inputs_of("s2v")
    with torch.no_grad():
        before = model._embed_frames(given_of(inputs), 2)
        inputs["sound"][..., 4:] += 1
        after = model._embed_frames(given_of(inputs), 2)
    assert before is not None
    assert after is not None
    assert before.shape == (2, 2, 6, 56)
    assert ((after - before).abs().amax(dim=(0, 2, 3)) > 1e-6).tolist() == [False, True]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sound": torch.zeros(2, 3, 24, 5)}, r"sound is .* need \(2, 3, 24, 8\)"),
        ({"pose_video": torch.zeros(2, 16, 1, 8, 8)}, "pose_video is"),
        ({"frames_before": torch.zeros(2, 16, 3, 8, 8)}, r"frames_before is .* need \(2, 16, 19, 8, 8\)"),
        ({"reference": torch.zeros(2, 16, 8, 4)}, "reference is"),
        ({"context": (torch.zeros(2, 16, 1, 8, 8),)}, "which this model does not read"),
    ],
)
def test_sound_and_latents_of_another_clip_are_refused(change: dict[str, Tensor], said: str) -> None:
    inputs = inputs_of("s2v")
    with pytest.raises(ConfigError, match=said):
        model_of("s2v")(inputs["latent"], inputs["timestep"], inputs["text"], replace(given_of(inputs), **change))


def test_frames_before_a_clip_need_sides_that_are_packed_by_eight() -> None:
    inputs = inputs_of("s2v goes on")
    for name in ("latent", "pose_video", "frames_before", "reference"):
        inputs[name] = inputs[name][..., :6]
    with pytest.raises(ConfigError, match="width and height are multiples of 64, or leave frames_before out"):
        predicted(model_of("s2v goes on"), inputs)
    del inputs["frames_before"]
    predicted(model_of("s2v goes on"), inputs)


def test_token_routes_and_timesteps_of_frames_are_refused() -> None:
    model, inputs = model_of("s2v silent"), inputs_of("s2v silent")
    latent, timestep, text = (inputs[name] for name in ("latent", "timestep", "text"))
    routes = (Route(selection_ratio=0.5, start_layer_idx=0, end_layer_idx=1),)
    passages = draw_passages(routes, 2, 16, [torch.Generator()])
    with pytest.raises(ConfigError, match="Routing or splitting tokens does not work with S2V, whose reference tokens"):
        model(latent, timestep, text, given_of(inputs), passages)
    with pytest.raises(ConfigError, match="S2V has one timestep for a clip"):
        model(latent, timestep[:, None].expand(-1, 2), text, given_of(inputs))


def test_a_negative_prompt_hears_nothing_as_comfyuis_node_gives_it() -> None:
    given = given_of(inputs_of("s2v"))
    twice, silent = given.doubled(), given.negative()
    assert given.sound is not None
    assert twice.sound is not None
    assert torch.equal(twice.sound, torch.cat([given.sound, torch.zeros_like(given.sound)]))
    assert silent.sound is not None
    assert not silent.sound.any()
    assert silent.pose_video is given.pose_video
    assert given_of(inputs_of("s2v silent")).doubled().sound is None
