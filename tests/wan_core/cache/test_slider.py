"""A slider is a set without clips: only its prompts are encoded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bench import CountingText
from wan_core.cache import Encoders, LatentCache, SliderConfig, encode_missing, plan_prompts, slider_set
from wan_core.dataset import DEFAULT_NEGATIVE_PROMPT
from wan_core.errors import ConfigError
from wan_core.model import WAN21_LATENTS, condition_named

PAIRS = SliderConfig(prompts="a dog\n\na cat", positive="a big dog\na big cat", negative="a small dog\na small cat")
MODEL = {"space": WAN21_LATENTS, "size_multiple": 16, "kind": condition_named("none"), "fps": 16.0}


def test_a_slider_encodes_its_prompts_once_and_no_clip(tmp_path: Path, video) -> None:
    cache, text = LatentCache(tmp_path / "cache"), CountingText()
    made = slider_set(PAIRS, text_identity=text.identity, **MODEL)
    report = encode_missing(plan_prompts(made, cache), cache, Encoders(codec=None, text_encoder=text, video=video))
    prompts = ["a dog", "a big dog", "a small dog", "a cat", "a big cat", "a small cat"]
    assert text.seen == ["", DEFAULT_NEGATIVE_PROMPT, *prompts]
    assert plan_prompts(made, cache).is_complete
    stored = cache.read_set(report.fingerprint)
    assert [(item.caption, item.slider_prompts) for item in stored.items] == [
        ("a dog", ("a big dog", "a small dog")),
        ("a cat", ("a big cat", "a small cat")),
    ]
    assert stored.slider_share == 1.0
    assert stored.latent_shape(stored.items[0]) == (16, 1, 60, 60)


def test_unpaired_prompts_and_models_that_read_images_are_refused() -> None:
    with pytest.raises(ConfigError, match="have 2, 2 and 1 lines"):
        _ = SliderConfig(prompts="a\nb", positive="c\nd", negative="e").lines
    with pytest.raises(ConfigError, match="this model also reads images or videos"):
        slider_set(PAIRS, text_identity="t", **MODEL | {"kind": condition_named("first")})
