"""Previews of image-to-video models equal what ComfyUI's own nodes make of the same pictures."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.forked import RunScript
from tests.support.tiny_run import TINY_FLF2V, TINY_I2V, TINY_I2V_21, TINY_TI2V, random_weights
from wan_core.cache import pad_text
from wan_core.dataset import stack_conditions, with_mask
from wan_core.dataset.conditioning import given_frames
from wan_core.files import Roots
from wan_core.load import ModelPlan, materialize
from wan_core.model import WAN21_LATENTS, WAN22_LATENTS, Conditioning
from wan_core.sampler import Denoiser, SampleConfig, generate

SCRIPT = Path(__file__).parents[2] / "tiny" / "comfy_sample_given.py"
SHAPES = {"i2v": TINY_I2V, "i2v_clip": TINY_I2V_21, "flf2v": TINY_FLF2V, "ti2v": TINY_TI2V}
FRAMES = {"i2v": (0,), "i2v_clip": (0,), "flf2v": (0, -1)}
SIZE = (64, 96, 9)
"""width, height, frames; multiples of 32"""
SEED, STEPS = 42, 4
# Largest difference of values up to 6.9, float32, CPU. Measured against ComfyUI 0.3.75 over four guided steps: 1.8e-5
# (ti2v) to 2.7e-5 (flf2v). ComfyUI has a float32 timestep sinusoid where official Wan, and we, use float64.
TOLERANCE = 1e-4

pytestmark = pytest.mark.comfy


@dataclass
class Both:
    """The same clips sampled twice."""

    ours: dict[str, torch.Tensor]
    theirs: dict[str, torch.Tensor]
    first_latent: torch.Tensor


def pictures() -> dict[str, torch.Tensor]:
    """What both sides are given."""
    generator = torch.Generator().manual_seed(11)
    width, height, frames = SIZE
    clip = torch.rand(frames, height, width, 3, generator=generator)
    text, negative = (pad_text(torch.randn(rows, 4096, generator=generator))[None] for rows in (9, 4))
    return {
        "text": text,
        "negative": negative,
        "start_image": clip[:1].clone(),
        "end_image": clip[-1:].clone(),
        "tokens": torch.randn(2, 257, 1280, generator=generator),
        "first_latent": torch.randn(1, 48, 1, height // 16, width // 16, generator=generator),
        "clips": torch.stack([given_frames(clip, frames) for frames in ((0,), (0, -1))]),
    }


@pytest.fixture(scope="module")
def both(
    comfyui_tree: Path, comfy_script: RunScript, tiny_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Both:
    if not (comfyui_tree / "comfy_extras" / "nodes_wan.py").is_file():
        pytest.skip(f"the ComfyUI in {comfyui_tree.name} has no comfy_extras/nodes_wan.py")
    root = tmp_path_factory.mktemp("parity_given")
    given = pictures()
    save_file(given, root / "inputs.safetensors")
    for name, shape in SHAPES.items():
        save_file(random_weights(shape, seed=4), root / f"{name}.safetensors")
    preset = SampleConfig(steps=STEPS).resolved()
    job = {
        "comfyui": str(comfyui_tree), "vae": str(tiny_models / "vae" / "wan_tiny_vae.safetensors"),
        "cases": {name: [name, str(root / f"{name}.safetensors")] for name in SHAPES},
        "inputs": str(root / "inputs.safetensors"), "size": SIZE, "steps": preset.steps, "cfg": preset.guidance_scale,
        "shift": preset.shift, "seed": SEED, "out": str(root / "out.safetensors"),
    }  # fmt: skip
    (root / "job.json").write_text(json.dumps(job))
    done = comfy_script(SCRIPT, str(root / "job.json"))
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = load_file(root / "out.safetensors")
    roots = Roots({"diffusion_models": (str(root),)})
    ours = {name: sample(name, roots, given, theirs) for name in SHAPES}
    return Both(ours, theirs, WAN22_LATENTS.normalise(given["first_latent"]))


def sample(name: str, roots: Roots, given: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> torch.Tensor:
    model = materialize(ModelPlan(base_file=f"diffusion_models:{name}.safetensors"), roots, None).train(False)
    stride = 16 if name == "ti2v" else 8
    shape = (1, SHAPES[name].out_channels, 3, SIZE[1] // stride, SIZE[0] // stride)
    noise = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(SEED))
    first = WAN22_LATENTS.normalise(given["first_latent"]) if name == "ti2v" else None
    return generate(
        [Denoiser(partial(nullcontext, model))],
        given["text"],
        given["negative"],
        noise,
        SampleConfig(steps=STEPS).resolved(),
        conditioning=conditioning(name, given, theirs),
        first_frame=first,
    )


def conditioning(name: str, given: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> Conditioning | None:
    """As the cache makes it; only the VAE's weights are ComfyUI's, as in the product."""
    if name not in FRAMES:
        return None
    frames = FRAMES[name]
    latent = WAN21_LATENTS.normalise(theirs[f"encoded.{len(frames) - 1}"])[0]
    tensors = {"channels": with_mask(latent, SIZE[2], frames)}
    if SHAPES[name].image_dim:
        tensors["image_tokens"] = given["tokens"][: len(frames)].flatten(0, 1)
    return stack_conditions([tensors])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.soak
def test_the_same_clip_comes_out_of_both_samplers(both: Both, name: str) -> None:
    error = float((both.ours[name] - both.theirs[name]).abs().max())
    largest = float(both.theirs[name].abs().max())
    print(f"{name}: largest difference {error:.2e} of values up to {largest:.1f}")  # noqa: T201
    assert error < TOLERANCE


def test_the_start_image_of_ti2v_is_kept_by_both(both: Both) -> None:
    assert torch.equal(both.ours["ti2v"][:, :, :1], both.first_latent)
    torch.testing.assert_close(both.theirs["ti2v"][:, :, :1], both.first_latent, atol=1e-5, rtol=0)
