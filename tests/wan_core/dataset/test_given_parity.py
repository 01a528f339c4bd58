"""What a real clip is conditioned on equals what diffusers' own pipelines make of it, on the same random VAE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.odd_videos import write_clip
from tests.support.tiny_run import TINY_FLF2V, TINY_I2V, TINY_I2V_21, TINY_TI2V, kind_of
from tests.support.tiny_vae import DiffusersCodec, tiny_vae
from wan_core.cache import Batch
from wan_core.cache.condition import condition_of
from wan_core.model import WAN21_LATENTS, WAN22_LATENTS, LatentSpace
from wan_core.train import noise_batch

FRAMES, HEIGHT, WIDTH = 17, 64, 96
# Both sides run the same VAE on the same pixels; they differ in one float32 rounding of the pixels (x / 255 * 2 - 1)
# and in dividing by the statistics instead of multiplying. Measured: 4.8e-7 (16 channels), 1.9e-6 (48) on values up
# to 6.2 and 26.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def pixels(tmp_path_factory, video) -> torch.Tensor:
    """(17, 64, 96, 3) in [0, 1]: a clip in motion that went through H.264, cut and decoded by the video child."""
    y, x = np.mgrid[0:128, 0:192]
    frames = [
        np.stack([(3 * x + 9 * k) % 256, (5 * y + 4 * k) % 256, (x + y) % 256], 2).astype(np.uint8) for k in range(30)
    ]
    path = tmp_path_factory.mktemp("clip") / "real.mp4"
    write_clip(path, frames, fps=24)
    decoded = video.read(path, fps=16, num_frames=FRAMES, width=WIDTH, height=HEIGHT)
    return torch.tensor(decoded).float() / 255


def pipeline(space: LatentSpace) -> Any:
    """diffusers' image-to-video pipeline with nothing in it but the VAE."""
    from diffusers import FlowMatchEulerDiscreteScheduler, WanImageToVideoPipeline

    return WanImageToVideoPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=tiny_vae(space),
        scheduler=FlowMatchEulerDiscreteScheduler(),
        expand_timesteps=space is WAN22_LATENTS,
    )


def prepared(pipe: Any, pixels: torch.Tensor, *, last: bool = False) -> tuple[torch.Tensor, ...]:
    """What the pipeline makes of the first (and last) frame as pictures."""
    pictures = [Image.fromarray((pixels[k] * 255).round().to(torch.uint8).numpy()) for k in (0, -1)]
    first, end = (pipe.video_processor.preprocess(p, height=HEIGHT, width=WIDTH) for p in pictures)
    with torch.no_grad():
        return pipe.prepare_latents(
            first,
            1,
            pipe.vae.config.z_dim,
            HEIGHT,
            WIDTH,
            FRAMES,
            torch.float32,
            torch.device("cpu"),
            torch.Generator().manual_seed(5),
            None,
            end if last else None,
        )


@pytest.mark.parametrize(
    ("task", "image_dim", "last"),
    [("i2v", 1280, False), ("i2v", 0, False), ("flf2v", 1280, True)],
    ids=["2.1 i2v", "2.2 i2v", "flf2v"],
)
@pytest.mark.soak
def test_mask_and_given_frames_equal_diffusers(pixels, task: str, image_dim: int, last: bool):
    pipe = pipeline(WAN21_LATENTS)
    kind = kind_of(task, replace(TINY_I2V, image_dim=image_dim))
    found = condition_of(pixels, kind, DiffusersCodec(pipe.vae, WAN21_LATENTS), FirstPixels())
    _, condition = prepared(pipe, pixels, last=last)
    assert found["channels"].shape == (20, 5, HEIGHT // 8, WIDTH // 8)
    torch.testing.assert_close(found["channels"], condition[0], atol=TOLERANCE, rtol=0)
    # One given frame more or less is no rounding.
    _, other = prepared(pipe, pixels, last=not last)
    assert float((found["channels"] - other[0])[4:].abs().max()) > 1000 * TOLERANCE


def test_image_tokens_are_of_the_first_frame_and_then_the_last(pixels):
    codec = Zeros()
    one = condition_of(pixels, kind_of("i2v", TINY_I2V_21), codec, FirstPixels())["image_tokens"]
    both = condition_of(pixels, kind_of("flf2v", TINY_FLF2V), codec, FirstPixels())["image_tokens"]
    assert torch.equal(one[0], pixels[0].flatten()[:1280])
    assert torch.equal(both[::257], torch.stack([pixels[0].flatten()[:1280], pixels[-1].flatten()[:1280]]))


@pytest.mark.soak  # CI holds it to numbers by hand: train/test_conditioned.py; diffusers takes seconds to import
@pytest.mark.lasts(4)
def test_the_first_frame_of_ti2v_equals_diffusers(pixels):
    pipe = pipeline(WAN22_LATENTS)
    codec = DiffusersCodec(pipe.vae, WAN22_LATENTS)
    assert kind_of("ti2v", TINY_TI2V).tensors == ()  # the clip's own latent is all it needs
    latent = codec.encode(pixels)[None]
    noise, condition, mask = prepared(pipe, pixels)
    t = torch.tensor(731.0)
    batch = Batch(latents=latent, texts=torch.zeros(1, 512, 8), names=("real.mp4",))
    ours = noise_batch(batch, noise, t[None] / 1000, torch.device("cpu"), torch.tensor([True]))
    # The pipeline starts at pure noise; past the first frame ours is noised by the same rule at any level.
    theirs = (1 - mask) * condition + mask * (0.269 * latent + 0.731 * noise)
    torch.testing.assert_close(ours.noised, theirs, atol=TOLERANCE, rtol=0)
    per_token = (mask[0][0][:, ::2, ::2] * t).flatten()
    rows = ours.timestep[0, :, None].expand(-1, HEIGHT // 32 * WIDTH // 32)
    torch.testing.assert_close(rows.flatten(), per_token)
    assert ours.trained is not None
    assert ours.trained[0, 0, :, 0, 0].tolist() == mask[0, 0, :, 0, 0].tolist()


class Zeros:
    """A VAE whose latents say nothing."""

    identity, space = "zeros", WAN21_LATENTS

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.zeros(16, (len(pixels) + 3) // 4, HEIGHT // 8, WIDTH // 8)

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class FirstPixels:
    """Image tokens that hold the picture's first 1280 values."""

    identity = "first pixels"

    def encode(self, picture: torch.Tensor) -> torch.Tensor:
        return picture.flatten()[:1280].expand(257, -1)
