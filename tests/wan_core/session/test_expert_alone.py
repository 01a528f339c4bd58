"""Clips of one expert of a pair alone are made on its own noise levels, in a run and of its saved steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.sessions import rendered, train_here, warnings
from tests.support.tiny_run import TinyRun, make_pair_run
from wan_core.cache import LatentCache, pad_text
from wan_core.checkpoint import WanVariant
from wan_core.events import Note
from wan_core.load import inspect_model, materialize
from wan_core.sampler import SampleConfig
from wan_core.train import read_preview_inputs

CFG, SEED = 2.0, 42
PREVIEW = SampleConfig(sampling="custom", sampler_name="euler", scheduler="simple", steps=4, cfg=CFG, shift=5.0)
LEVELS = [5 * t / (1 + 4 * t) for t in (1.0, 0.75, 0.5, 0.25)]
"""1, 0.9375, 0.8333, 0.625: the first two are those of the high noise expert"""

pytestmark = pytest.mark.lasts(2)


def trained(root: Path, expert: str) -> tuple[TinyRun, list[str]]:
    """A run of one step with a clip before and after, and its notes."""
    run = make_pair_run(root, expert=expert, preview=PREVIEW, steps=1, preview_every_n_steps=1, eval_items=0)
    heard = train_here(run)
    assert warnings(heard) == [], "a clip was skipped"
    return run, [event.text for event in heard if isinstance(event, Note)]


def preview(run: TinyRun, step: int) -> torch.Tensor:
    return load_file(run.directory / "samples" / f"step-{step:06d}_p0.latent")["latent"][None]


@torch.no_grad()
def by_hand(run: TinyRun, levels: list[float], clip: torch.Tensor | None = None) -> torch.Tensor:
    """Euler from the first level to the last, then to 0, from noise or a noised clip."""
    model = materialize(run.config.model, run.roots, None).train(False)
    cache = LatentCache(run.roots.first("cache"))
    cached = cache.read_set(run.config.data.fingerprint)
    texts = [pad_text(cache.read_text(key))[None] for key in (cached.items[0].text_key, cached.negative_text_key)]
    noise = torch.randn(1, 16, 2, 4, 4, generator=torch.Generator().manual_seed(SEED))
    x = noise if clip is None else (1 - levels[0]) * clip + levels[0] * noise
    for here, there in zip(levels, [*levels[1:], 0.0], strict=True):
        told, untold = (model(x, torch.tensor([1000 * here]), text) for text in texts)
        x = x + (there - here) * (untold + CFG * (told - untold))
    return x


def test_the_high_noise_expert_shows_what_it_expects_where_the_other_takes_over(tmp_path: Path) -> None:
    run, notes = trained(tmp_path, "high")
    torch.testing.assert_close(preview(run, 0), by_hand(run, LEVELS[:2]), atol=1e-4, rtol=1e-4)
    assert [
        note
        for note in notes
        if "high-noise expert alone makes the previews of this run: they end at noise level 0.875" in note
    ]
    clips = rendered(run, "own")
    assert clips["baseline_p0"] == (run.directory / "samples" / "step-000000_p0.latent").read_bytes()
    assert clips["step-000001_s1.0_p0"] == (run.directory / "samples" / "step-000001_p0.latent").read_bytes()
    assert clips["step-000001_s1.0_p0"] != clips["baseline_p0"]


def test_the_low_noise_expert_begins_with_a_training_clip_noised_to_where_it_takes_over(tmp_path: Path) -> None:
    run, notes = trained(tmp_path, "low")
    cache = LatentCache(run.roots.first("cache"))
    clip = cache.read_latent(cache.read_set(run.config.data.fingerprint).items[0].latent_key)[None].float()
    torch.testing.assert_close(preview(run, 0), by_hand(run, LEVELS[2:], clip), atol=1e-4, rtol=1e-4)
    (note,) = [
        note
        for note in notes
        if "low-noise expert alone makes the previews of this run: they begin below noise level 0.875" in note
    ]
    assert "(clip_0.mp4)" in note


def test_a_clip_begins_with_the_training_clip_of_its_caption_in_its_own_size(tmp_path: Path) -> None:
    run = make_pair_run(tmp_path, expert="low")
    cache = LatentCache(run.roots.first("cache"))
    found = cache.read_set(run.config.data.fingerprint)
    variant = inspect_model(run.config.model, run.roots).variant
    keys = (found.items[2].text_key, found.empty_text_key)
    asked = SampleConfig(prompts=("third", "nobody's"), prompt_keys=keys, width=64)

    def starts(variant: WanVariant) -> list[tuple[str, torch.Size | None]]:
        inputs = read_preview_inputs(cache, found, asked, variant)
        return [(clip.start_name, None if clip.start is None else clip.start.shape) for clip in inputs.clips]

    wide = torch.Size((1, 16, 2, 4, 8))
    assert starts(variant) == [("clip_2.mp4", wide), ("clip_0.mp4", wide)]
    assert starts(replace(variant, expert="high_noise")) == [("", None)] * 2, "it begins with noise"
    assert starts(replace(variant, expert=None, boundary=None)) == [("", None)] * 2, "so does a single model"
