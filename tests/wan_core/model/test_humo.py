"""The sound and the reference image of HuMo: gradients, what reaches which frame, and what does not fit.

tests/wan_core/model/test_driven.py compares its outputs with those of ComfyUI's class.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.support.golden import FLOAT64
from tests.support.peers import CASES, given_of, inputs_of, model_of, predicted
from wan_core.checkpoint import WanVariant
from wan_core.dataset import DatasetConfig
from wan_core.errors import ConfigError
from wan_core.families import FAMILIES
from wan_core.job.checks import with_model_values
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import WAN21_LATENTS, Conditioning, Route, WanTransformer, draw_passages
from wan_core.model.humo import with_references
from wan_core.placement import DeviceCarrier, JobShape, Placement, StepShape, estimate_memory
from wan_core.placement.short_model import as_it_is
from wan_core.precision import PrecisionPolicy
from wan_core.train import TrainConfig

CASE = "humo 17B"
SOUND = r"blocks\.\d+\.audio_cross_attn_wrapper\..*"


def loss(model: WanTransformer, inputs: dict[str, Tensor]) -> Tensor:
    made = predicted(model, inputs)
    return (made * torch.linspace(-1, 1, made.numel(), dtype=made.dtype).view_as(made)).sum()


@pytest.mark.parametrize(
    "inside",
    [
        "audio_proj.audio_proj_glob_1.layer.weight",
        "audio_proj.audio_proj_glob_norm.layer.weight",
        "blocks.0.audio_cross_attn_wrapper.audio_cross_attn.q.weight",
        "blocks.1.audio_cross_attn_wrapper.audio_cross_attn.v.weight",
        "blocks.1.audio_cross_attn_wrapper.norm1_audio.weight",
        "patch_embedding.weight",
    ],
)
def test_gradients_are_finite_differences(inside: str) -> None:
    model, inputs = model_of(CASE, FLOAT64).double(), {name: one.double() for name, one in inputs_of(CASE).items()}
    weight = model.get_parameter(inside)
    model.requires_grad_(False)
    weight.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(model, inputs), weight)
    way = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ends = []
    with torch.no_grad():
        for step in (1e-7, -2e-7):  # small: a ReLU has a kink
            weight += step * way
            ends.append(float(loss(model, inputs)))
    slope = float((gradient * way).sum())
    assert abs(slope) > 0.1
    assert (ends[0] - ends[1]) / 2e-7 == pytest.approx(slope, rel=1e-5)


def test_recomputed_chunked_and_split_blocks_have_the_same_gradients() -> None:
    plain, other, inputs = model_of(CASE), model_of(CASE), inputs_of(CASE)
    other.checkpoint_blocks = True
    other.run_in_chunks(16)  # a frame of both clips has 16 tokens
    other.carrier = DeviceCarrier(Placement((torch.device("cpu"), torch.device("cpu", 0))))
    for model in (plain, other):
        model.requires_grad_(False)
        inject_lora(model, LoraConfig(rank=4, targets=(*LoraConfig().targets, SOUND)), seed=0)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(4))
        loss(model, inputs).backward()
    trained = {name: one.grad for name, one in plain.named_parameters() if one.requires_grad}
    assert sum("audio_cross_attn.k." in name for name in trained) == 2 * 2
    for name, grad in trained.items():
        torch.testing.assert_close(other.get_parameter(name).grad, grad, rtol=1e-5, atol=1e-6)


def test_sound_reaches_its_own_latent_frame_and_the_reference_hears_silence() -> None:
    model, inputs = model_of(CASE), inputs_of(CASE)
    with torch.no_grad():
        before, silence = (
            model._embed_frames(given_of(some), 4)
            for some in (inputs, inputs | {"whisper": torch.zeros_like(inputs["whisper"])})
        )
        inputs["whisper"][:, 1] += 1
        after = model._embed_frames(given_of(inputs), 4)
    assert before is not None
    assert after is not None
    assert silence is not None
    assert before.shape == (2, 4, 16, 24)
    assert (after - before).abs().amax(dim=(0, 2, 3)).gt(0.01).tolist() == [False, True, False, False]
    assert torch.equal(before[:, 3], silence[:, 3])
    assert not torch.equal(before[:, 0], silence[:, 0])


def test_a_negative_pass_hears_silence_and_has_an_empty_reference() -> None:
    given = given_of(inputs_of(CASE))
    assert given.references is not None
    negative, both = given.negative(), given.doubled()
    assert negative.references is not None
    assert negative.whisper is not None
    assert not negative.whisper.any()
    empty = -torch.tensor(WAN21_LATENTS.mean) / torch.tensor(WAN21_LATENTS.std)
    torch.testing.assert_close(negative.references, empty.view(1, -1, 1, 1, 1).expand_as(given.references))
    assert both.whisper is not None
    assert torch.equal(both.whisper[:2], inputs_of(CASE)["whisper"])
    assert both.references is not None
    assert torch.equal(both.references[2:], negative.references)
    plain = Conditioning(channels=torch.ones(1, 4, 1, 2, 2))
    assert plain.negative() is plain


def test_a_reference_follows_the_video_as_a_given_image() -> None:
    latent, reference = torch.ones(1, 16, 3, 2, 2), torch.full((1, 16, 1, 2, 2), 5.0)
    small = with_references(latent, reference, 16)
    assert small[0, 0, :, 0, 0].tolist() == [1, 1, 1, 5]
    large = with_references(latent, reference, 36)
    assert large.shape == (1, 36, 4, 2, 2)
    assert large[0, 15, :, 0, 0].tolist() == [1, 1, 1, 0]
    assert large[0, 16, :, 0, 0].tolist() == large[0, 19, :, 1, 1].tolist() == [0, 0, 0, 1]
    assert large[0, 20, :, 1, 0].tolist() == pytest.approx([0.8660, 1.0869, 0.8642, 5])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"references": None}, "needs latents of reference images"),
        ({"references": torch.zeros(2, 16, 1, 8, 8)}, r"references is .* need \(2, 16, 1, 4, 8\)"),
        ({"whisper": None}, r"needs features of the sound .* Give whisper as \(2, 3, 8, 5, 4\)"),
        ({"whisper": torch.zeros(2, 4, 8, 5, 4)}, r"whisper is .* need \(2, 3, 8, 5, 4\)"),
        ({"channels": torch.zeros(2, 20, 3, 4, 8)}, "which this model does not read"),
        ({"context": (torch.zeros(2, 16, 1, 4, 4),)}, "which this model does not read"),
    ],
)
def test_inputs_of_other_sizes_are_refused(changes: dict[str, Tensor | None], said: str) -> None:
    inputs = inputs_of(CASE)
    given = replace(given_of(inputs), **changes)
    with pytest.raises(ConfigError, match=said):
        model_of(CASE)(inputs["latent"], inputs["timestep"], inputs["text"], given)


def test_token_routes_and_timesteps_of_frames_are_refused() -> None:
    model, inputs = model_of(CASE), inputs_of(CASE)
    latent, timestep, text = (inputs[name] for name in ("latent", "timestep", "text"))
    routes = (Route(selection_ratio=0.5, start_layer_idx=0, end_layer_idx=1),)
    passages = draw_passages(routes, 3, 8, [torch.Generator()])
    with pytest.raises(ConfigError, match="Routing or splitting tokens does not work with HuMo"):
        model(latent, timestep, text, given_of(inputs), passages)
    with pytest.raises(ConfigError, match="HuMo has one timestep for a clip"):
        model(latent, timestep[:, None].expand(-1, 3), text, given_of(inputs))


def test_settings_that_share_out_tokens_are_refused_by_name() -> None:
    shape = replace(CASES[CASE][0], dim=128, num_heads=1)
    variant = WanVariant(name="2.1 HuMo-17B", family=FAMILIES[0], shape=shape, latents=WAN21_LATENTS)
    with pytest.raises(ConfigError, match=r"tread_routes does not work with HuMo.*Leave it empty"):
        with_model_values(TrainConfig(tread_routes="0.5: 0..1"), variant)
    cpu = torch.device("cpu")
    job = JobShape(
        shape=shape,
        numerics=PrecisionPolicy().numerics(torch.float32),
        placement=Placement((cpu, cpu)),
        storage_bytes=lambda _name, one: one.nbytes,
        adapt=as_it_is,
        adapter_values={},
        others=(cpu,),
    )
    with pytest.raises(ConfigError, match="Splitting tokens does not work with HuMo"):
        estimate_memory(job, StepShape(batch_size=1, latent_frames=3, latent_height=8, latent_width=8))


def test_a_folder_of_clips_is_refused_with_the_way_through_the_graph() -> None:
    with pytest.raises(ConfigError, match=r"reads the sound .* WanHuMoImageToVideo .* Wan Cache from Latents"):
        DatasetConfig(folder="clips", conditioning="humo")
