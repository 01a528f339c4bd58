"""What the demo models were trained with: held to ComfyUI's VAE and to the transformer users train on."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shapeworld.training.clips import captioned_clips, first_frame_channels
from shapeworld.training.muon import ConvMuon
from shapeworld.training.transformer import (
    LatentClips,
    TransformerJob,
    attend_compactly,
    compact_texts,
    full_text,
    new_transformer,
    predict,
    read_compact,
    train,
    with_first_frame,
)
from shapeworld.wan_vae import TrainableVae
from wan_core.model import Conditioning

HERE = Path(__file__).resolve().parent
JOB = TransformerJob(width=128, ffn_dim=64, layers=2, steps=30, batch=8, seed=3)


@pytest.mark.soak  # of the script that made the demo models
@pytest.mark.lasts(3)
def test_vae_over_whole_clips_equals_comfyuis_in_chunks() -> None:
    tree = os.environ.get("COMFYUI_PATH")
    if not tree:
        pytest.skip("COMFYUI_PATH is not set: no ComfyUI tree to compare with; run scripts/test.py")
    made = subprocess.run(
        [sys.executable, str(HERE / "compare_vae.py"), tree], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr[-2000:]
    found = json.loads(made.stdout.splitlines()[-1])
    assert set(found) == {"1", "5", "9", "17"}
    assert all(difference < 5e-5 for pair in found.values() for difference in pair), found


def test_compact_text_gives_what_512_rows_give() -> None:
    job = replace(JOB, seed=5)
    model, compact = new_transformer(job), new_transformer(job)
    generator = torch.Generator().manual_seed(1)
    for ours, theirs in zip(model.parameters(), compact.parameters(), strict=True):
        ours.data.add_(0.05 * torch.randn(ours.shape, generator=generator))
        theirs.data.copy_(ours.data)
    read_compact(compact)
    texts = [torch.randn(rows, 4096, generator=generator) for rows in (6, 1, 7)]
    latent, sigma = torch.randn(3, 16, 3, 4, 4, generator=generator), torch.tensor([0.1, 0.5, 0.95])
    with torch.no_grad():
        full = model(latent, 1000 * sigma, torch.stack([full_text(text) for text in texts]))
        short = predict(compact, latent, sigma, compact_texts(texts))
        unlike = predict(compact, latent, sigma, compact_texts([torch.zeros(1, 4096)] * 3))
    assert (full - short).abs().max() < 2e-5
    assert (full - unlike).abs().max() > 1e-2, "the text must matter in this comparison"


def test_a_model_that_skips_zero_rows_gives_and_learns_what_it_would_from_all_512() -> None:
    generator = torch.Generator().manual_seed(4)
    models = [new_transformer(JOB), new_transformer(JOB)]
    noise = [0.05 * torch.randn(value.shape, generator=generator) for value in models[0].parameters()]
    texts = torch.stack([full_text(torch.randn(rows, 4096, generator=generator)) for rows in (6, 1)])
    latent, timestep = torch.randn(2, 16, 3, 4, 4, generator=generator), torch.tensor([100.0, 950.0])
    attend_compactly(models[1])
    made = []
    for model in models:
        for value, change in zip(model.parameters(), noise, strict=True):
            value.data.add_(change)
        made.append(model(latent, timestep, texts))
        made[-1].square().mean().backward()
    torch.testing.assert_close(made[1], made[0], atol=2e-5, rtol=0)
    for full, compact in zip(*(model.parameters() for model in models), strict=True):
        if full.grad is not None:
            torch.testing.assert_close(compact.grad, full.grad, atol=2e-5, rtol=1e-3)


@pytest.mark.soak  # of the script that made the demo models
@pytest.mark.lasts(2)
def test_training_learns_and_returns_the_averaged_weights() -> None:
    generator = torch.Generator().manual_seed(2)
    latents = torch.randn(4, 16, 2, 4, 4, generator=generator)
    texts = compact_texts([torch.randn(2, 4096, generator=generator), torch.zeros(1, 4096)])
    words = torch.zeros(4, dtype=torch.long)
    losses: list[float] = []
    model = new_transformer(JOB)
    averaged = train(
        model,
        [LatentClips(latents, words)],
        texts,
        1,
        LatentClips(latents, words),
        replace(JOB, steps=80),
        lambda _step, loss, _model: losses.append(loss),
    )
    assert sum(losses[-20:]) < 0.85 * sum(losses[:20])
    difference = sum(
        float((a - b.detach()).abs().max()) for a, b in zip(averaged.parameters(), model.parameters(), strict=True)
    )
    assert difference > 0


def test_an_image_to_video_model_starts_as_the_model_it_was_made_from() -> None:
    generator = torch.Generator().manual_seed(3)
    model = new_transformer(JOB)
    wider = with_first_frame(model)
    latent, text = torch.randn(2, 16, 3, 4, 4, generator=generator), torch.randn(2, 512, 4096, generator=generator)
    image = torch.randn(2, 20, 3, 4, 4, generator=generator)
    timestep = torch.tensor([900.0, 30.0])
    expected = model(latent, timestep, text)
    torch.testing.assert_close(wider(latent, timestep, text, Conditioning(channels=image)), expected)
    assert wider.shape.in_channels == 36


def test_the_channels_of_a_first_frame_are_its_mask_and_its_latent() -> None:
    vae = TrainableVae(8).requires_grad_(False)
    clips, _ = captioned_clips([5])
    channels = first_frame_channels(vae, clips[:2])
    assert channels.shape == (2, 20, 3, 8, 8)
    assert channels[:, :4, 0].eq(1).all()
    assert channels[:, :4, 1:].eq(0).all()
    one_frame = vae.encode(clips[:2, :, :1])
    torch.testing.assert_close(channels[:, 4:, :1], one_frame.float(), atol=2e-2, rtol=0)  # bfloat16 arithmetic
    grey = clips[:2].clone()
    grey[:, :, 1:] = 0
    torch.testing.assert_close(channels[:, 4:], vae.encode(grey).float(), atol=5e-2, rtol=0)


@pytest.mark.parametrize("shape", [(4, 8, 3, 3, 3), (48, 4, 1, 1, 1)])
def test_conv_muon_steps_are_orthogonal(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(shape))
    weight.grad = torch.randn(shape)
    ConvMuon([weight], lr=1.0).step()
    step = weight.detach().flatten(1)
    singular = torch.linalg.svdvals(step) / (0.2 * math.sqrt(max(step.shape)))
    assert float(singular.min()) > 0.6
    assert float(singular.max()) < 1.3
