"""SCAIL and SCAIL-2, gradients and what goes on with their streams; they and HuMo as ComfyUI 0.33 computes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.support.golden import FLOAT64
from tests.support.peers import CASES, VECTORS, given_of, inputs_of, model_of, predicted
from wan_core.checkpoint import WanVariant
from wan_core.errors import ConfigError
from wan_core.families import FAMILIES
from wan_core.job.checks import with_model_values
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import WAN21_LATENTS, Route, WanTransformer, draw_passages
from wan_core.placement import DeviceCarrier, JobShape, Placement, StepShape, estimate_memory
from wan_core.placement.short_model import as_it_is
from wan_core.precision import PrecisionPolicy
from wan_core.train import TrainConfig


def wide(case: str) -> tuple[WanTransformer, dict[str, Tensor]]:
    model = model_of(case, FLOAT64).double()
    return model, {name: value.double() for name, value in inputs_of(case).items()}


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_comfyui(case: str) -> None:
    theirs = load_file(VECTORS)[f"{case}.fp64"]
    assert 1 < float(theirs.abs().max()) < 20
    model, inputs = wide(case)
    with torch.no_grad():
        assert float((predicted(model, inputs) - theirs).abs().max()) < 1e-12
        assert float((predicted(model_of(case), inputs_of(case)) - theirs).abs().max()) < 1e-5


def loss(model: WanTransformer, inputs: dict[str, Tensor]) -> Tensor:
    made = predicted(model, inputs)
    return (made * torch.linspace(-1, 1, made.numel(), dtype=made.dtype).view_as(made)).sum()


@pytest.mark.parametrize(
    "inside",
    [
        "patch_embedding_pose.weight",
        "patch_embedding_mask.weight",
        "blocks.1.cross_attn.k_img.weight",
        *(
            pytest.param(f"{name}.weight", marks=pytest.mark.soak)
            for name in ("patch_embedding", "blocks.0.self_attn.q")
        ),
    ],
)
def test_gradients_are_finite_differences(inside: str) -> None:
    model, inputs = wide("scail2 replaces")
    weight = model.get_parameter(inside)
    model.requires_grad_(False)
    weight.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(model, inputs), weight)
    way = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ends = []
    with torch.no_grad():
        for step in (1e-5, -2e-5):
            weight += step * way
            ends.append(float(loss(model, inputs)))
    slope = float((gradient * way).sum())
    assert abs(slope) > 0.1
    assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(slope, rel=1e-6)


def test_recomputed_and_split_blocks_have_the_same_gradients() -> None:
    plain, other, inputs = model_of("scail2 animates"), model_of("scail2 animates"), inputs_of("scail2 animates")
    other.checkpoint_blocks = True
    other.carrier = DeviceCarrier(Placement((torch.device("cpu"), torch.device("cpu", 0))))
    for model in (plain, other):
        model.requires_grad_(False)
        inject_lora(model, LoraConfig(rank=4), seed=0)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(4))
        loss(model, inputs).backward()
    trained = {name: one.grad for name, one in plain.named_parameters() if one.requires_grad}
    assert len(trained) == 48
    assert all(torch.equal(other.get_parameter(name).grad, grad) for name, grad in trained.items())


def test_to_replace_is_not_to_animate() -> None:
    (animates, other), replaces = (inputs_of("scail2 animates"), inputs_of("scail2 replaces")), "scail2 animates"
    assert all(torch.equal(animates[name], other[name]) for name in animates if name != "replaces")
    with torch.no_grad():
        one, two = (predicted(model_of(replaces), inputs) for inputs in (animates, other))
    assert float((one - two).abs().max()) > 0.05


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"references": None}, "needs latents of reference images"),
        ({"pose_stream": torch.zeros(2, 16, 3, 4, 8)}, r"pose_stream is .* need \(2, 16, 3, 2, 4\)"),
        ({"pose_masks": None}, "needs identity masks of the pose video"),
        ({"reference_masks": torch.zeros(2, 28, 1, 4, 8)}, "reference_masks is"),
        ({"image_tokens": None}, "needs CLIP vision tokens"),
        ({"channels": torch.zeros(2, 4, 3, 4, 8)}, "which this model does not read"),
    ],
)
def test_streams_of_other_sizes_are_refused(changes: dict[str, Tensor | None], said: str) -> None:
    inputs = inputs_of("scail2 animates")
    given = replace(given_of(inputs), **changes)
    with pytest.raises(ConfigError, match=said):
        model_of("scail2 animates")(inputs["latent"], inputs["timestep"], inputs["text"], given)


def test_token_routes_and_timesteps_of_frames_are_refused() -> None:
    model, inputs = model_of("scail"), inputs_of("scail")
    latent, timestep, text = (inputs[name] for name in ("latent", "timestep", "text"))
    routes = (Route(selection_ratio=0.5, start_layer_idx=0, end_layer_idx=1),)
    passages = draw_passages(routes, 3, 8, [torch.Generator()])
    with pytest.raises(ConfigError, match="Routing or splitting tokens does not work with SCAIL"):
        model(latent, timestep, text, given_of(inputs), passages)
    with pytest.raises(ConfigError, match="one timestep for a clip"):
        model(latent, timestep[:, None].expand(-1, 3), text, given_of(inputs))


def test_settings_that_share_out_tokens_are_refused_by_name() -> None:
    shape = replace(CASES["scail"][0], dim=128, num_heads=1)
    routed = TrainConfig(tread_routes="0.5: 0..1")
    variant = WanVariant(name="2.1 SCAIL", family=FAMILIES[0], shape=shape, latents=WAN21_LATENTS)
    with pytest.raises(ConfigError, match=r"tread_routes does not work with SCAIL.*Leave it empty"):
        with_model_values(routed, variant)
    devices = [torch.device("cpu")] * 2
    step = StepShape(batch_size=1, latent_frames=3, latent_height=8, latent_width=8)
    numerics = PrecisionPolicy().numerics(torch.float32)
    job = JobShape(
        shape=shape,
        numerics=numerics,
        placement=Placement(tuple(devices[:1] * 2)),
        storage_bytes=lambda _name, one: one.nbytes,
        adapt=as_it_is,
        adapter_values={},
        others=(devices[1],),
    )
    with pytest.raises(ConfigError, match="Splitting tokens does not work with SCAIL"):
        estimate_memory(job, step)
