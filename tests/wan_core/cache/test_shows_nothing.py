"""Clips of noise, and of one colour, are told from those that show something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from shapeworld.concept import concept_scene, load_concept
from shapeworld.training.clips import as_video

from tests.support.caching import cache_all, key, set_of
from wan_core.cache import LatentCache, encode, nothing_shown_reason
from wan_core.cache.known_entries import KnownEntries
from wan_core.cache.shows_nothing import clips_that_show_nothing, likeness_of_neighbours, shows_nothing

CONCEPTS = sorted((Path(__file__).resolve().parents[2] / "shapeworld" / "concepts").glob("*.json"))


def noise(size: int, frames: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.rand(frames, size, size, 3, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("concept", CONCEPTS, ids=lambda path: path.stem)
def test_a_drawn_clip_shows_something(concept: Path):
    clips = (as_video([concept_scene(load_concept(concept), seed) for seed in range(3)]) + 1) / 2
    for clip in clips.permute(0, 2, 3, 4, 1):
        assert likeness_of_neighbours(clip) > 0.85
        assert not shows_nothing(clip)


@pytest.mark.parametrize("size", [32, 64, 256])
def test_noise_shows_nothing_whether_it_moves_or_not(size):
    assert likeness_of_neighbours(noise(size)) < 0.05
    assert all(
        shows_nothing(clip) for clip in (noise(size), noise(size, frames=1), noise(size, 1).expand(9, -1, -1, -1))
    )
    assert shows_nothing(noise(size)[..., :1].expand(-1, -1, -1, 3)), "grey noise"


def test_one_colour_shows_nothing_and_a_faint_picture_does():
    assert shows_nothing(torch.zeros(9, 32, 32, 3))
    assert shows_nothing(torch.linspace(0, 1, 9)[:, None, None, None].expand(9, 32, 32, 3)), "a fade of one colour"
    faint = torch.linspace(0.5, 0.55, 32)[None, :, None, None].expand(9, 32, 32, 3)
    assert not shows_nothing(faint)
    late = torch.zeros(9, 32, 32, 3)
    late[-1] = faint[0]
    assert not shows_nothing(late), "a clip that fades in"


def test_a_grainy_film_shows_something():
    picture = torch.linspace(0.2, 0.8, 64)[None, :, None, None].expand(9, 64, 64, 3)
    assert not shows_nothing(picture + 0.3 * (noise(64) - 0.5))


def test_half_of_the_clips_decide(tmp_path: Path):
    cache_set = replace(set_of(4), vae_identity="real")
    known = KnownEntries(tmp_path)
    for number in (0, 77):
        known.note_shows_nothing(key(number))
    assert clips_that_show_nothing(cache_set, known) == ("0",)
    assert nothing_shown_reason(cache_set, known) == ""
    known.note_shows_nothing(key(3))
    assert nothing_shown_reason(cache_set, known).startswith(
        "No step is suggested: 2 of 4 clips show only noise or one colour, such as 0,"
    )


def test_what_is_encoded_is_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Clips of one colour are found while they are encoded, and known when nothing is."""
    cache_all(tmp_path, 3)
    assert clips_that_show_nothing(set_of(3), KnownEntries(tmp_path)) == ("0", "1", "2")
    monkeypatch.setattr(encode, "shows_nothing", lambda _pixels: pytest.fail("judged again"))
    cache_all(tmp_path, 3)
    assert clips_that_show_nothing(set_of(3), KnownEntries(tmp_path)) == ("0", "1", "2")
    assert LatentCache(tmp_path).is_sound("latent", key(0))
