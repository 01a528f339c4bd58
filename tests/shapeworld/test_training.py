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

from shapeworld.training.muon import ConvMuon
from shapeworld.training.transformer import (
    TransformerJob,
    compact_texts,
    full_text,
    new_transformer,
    predict,
    read_compact,
    train,
)

HERE = Path(__file__).resolve().parent
JOB = TransformerJob(width=128, ffn_dim=64, layers=2, steps=30, batch=8, seed=3)


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


def test_training_learns_and_returns_the_averaged_weights() -> None:
    generator = torch.Generator().manual_seed(2)
    latents = torch.randn(4, 16, 2, 4, 4, generator=generator)
    texts = compact_texts([torch.randn(2, 4096, generator=generator), torch.zeros(1, 4096)])
    words = torch.zeros(4, dtype=torch.long)
    losses: list[float] = []
    model = new_transformer(JOB)
    averaged = train(
        model,
        [(latents, words)],
        texts,
        1,
        latents,
        replace(JOB, steps=120),
        lambda _step, loss, _model: losses.append(loss),
    )
    assert sum(losses[-20:]) < 0.85 * sum(losses[:20])
    difference = sum(
        float((a - b.detach()).abs().max()) for a, b in zip(averaged.parameters(), model.parameters(), strict=True)
    )
    assert difference > 0


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
