"""A LoRA of Wan 2.2 Animate, trained on tiny weights with a preview: ComfyUI's own nodes load it and sample alike."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.forked import RunScript
from tests.support.sessions import train_here
from tests.support.tiny_run import PLAN, TINY_ANIMATE, make_run, short
from wan_core.dataset import stack_conditions
from wan_core.events import DecodeWanted
from wan_core.load import materialize
from wan_core.model import WAN21_LATENTS
from wan_core.sampler import Denoiser, SampleConfig, generate

SCRIPT = Path(__file__).parents[2] / "tiny" / "comfy_animate.py"
SIZE, SEED, STEPS = (48, 32, 5), 42, 1

pytestmark = [pytest.mark.comfy, pytest.mark.soak]


def test_comfyui_samples_what_is_trained_here(
    comfyui_tree: Path, comfy_script: RunScript, tiny_models: Path, tmp_path: Path
) -> None:
    run = make_run(
        tmp_path,
        shape=TINY_ANIMATE,
        size=(1, 4, 4),
        train=short(steps=2, learning_rate=0.05, eval_items=0, preview_every_n_steps=2),
        preview=SampleConfig(sampling="custom", steps=1, cfg=1.0),
    )
    events = train_here(run)
    wanted = [event for event in events if isinstance(event, DecodeWanted)]
    assert load_file(run.directory / wanted[0].latent_file)["latent"].shape == (16, 1, 4, 4)  # without the reference
    (lora,) = run.directory.glob("saves/*/lora.safetensors")
    generator, (width, height, frames) = torch.Generator().manual_seed(3), SIZE
    given = {
        "text": torch.randn(1, 512, 4096, generator=generator),
        "pose": torch.rand(frames, height, width, 3, generator=generator),
        "face": torch.rand(frames, 512, 512, 3, generator=generator),
        "reference": torch.rand(1, height, width, 3, generator=generator),
        "tokens": torch.randn(1, 257, 1280, generator=generator),
    }
    save_file(given, tmp_path / "inputs.safetensors")
    job = {
        "comfyui": str(comfyui_tree), "vae": str(tiny_models / "vae" / "wan_tiny_vae.safetensors"),
        "model": str(run.roots.resolve(PLAN.base_file)), "lora": str(lora),
        "inputs": str(tmp_path / "inputs.safetensors"), "out": str(tmp_path / "out.safetensors"),
        "size": SIZE, "steps": STEPS, "shift": 5.0, "seed": SEED,
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = comfy_script(SCRIPT, str(tmp_path / "job.json"))
    assert done.returncode == 0, done.stderr[-3000:]
    said, theirs = json.loads(done.stdout.splitlines()[-1]), load_file(tmp_path / "out.safetensors")
    assert (said["kind"], said["said"]) == ("WAN22_Animate", [])
    assert said["patches"] == 12 * TINY_ANIMATE.num_layers
    assert theirs["base"].shape == theirs["lora"].shape == (1, 16, 3, height // 8, width // 8)
    assert float((theirs["lora"] - theirs["base"]).abs().max()) > 0.1

    image, mask = (theirs[name][0] for name in ("concat_latent_image", "concat_mask"))
    condition = {
        "channels": torch.cat([1 - mask, WAN21_LATENTS.normalise(image)]),
        "image_tokens": given["tokens"][0],
        "pose": WAN21_LATENTS.normalise(theirs["pose_video_latent"][0]),
        "face": theirs["face_video_pixels"][0],
    }
    model = materialize(PLAN, run.roots, None).train(False)
    noise = torch.randn(theirs["base"].shape, generator=torch.Generator("cpu").manual_seed(SEED))
    preset = SampleConfig(sampling="custom", steps=STEPS, cfg=1.0, shift=5.0, sampler_name="euler", scheduler="simple")
    ours = generate(
        [Denoiser(partial(nullcontext, model))],
        given["text"],
        given["text"],
        noise,
        preset.resolved(),
        conditioning=stack_conditions([condition]),
    )
    difference = float((ours - theirs["base"]).abs().max())
    print(f"largest difference {difference:.2e} of values up to {float(theirs['base'].abs().max()):.1f}")  # noqa: T201
    assert difference < 1e-4
