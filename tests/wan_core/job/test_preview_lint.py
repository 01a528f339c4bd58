"""Notes on previews that a released model was not made for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.headers import header, shapes_of
from wan_core.cache import CacheItem, CacheSet
from wan_core.checkpoint import WanVariant, detect_variant
from wan_core.job.preview_lint import preview_remarks
from wan_core.sampler import SampleConfig

LONG = "A red ball rolls slowly over a wooden table towards the camera in warm evening light"


def variant(template: str, name: str = "auto") -> WanVariant:
    return detect_variant(header(shapes_of(template), "model.safetensors"), override=name)


SMALL, BIG = variant("wan2.1-t2v-1.3B"), variant("wan2.1-t2v-14B", "2.1 T2V-14B")
PAIR, FIVE = variant("wan2.1-t2v-14B", "2.2 T2V-A14B high noise"), variant("wan2.2-ti2v-5B")


def clips(width: int = 832, height: int = 480, frames: int = 49, trigger: str = "") -> CacheSet:
    item = CacheItem(latent_key="0" * 64, text_key="1" * 64, num_frames=frames, height=height, width=width, repeats=1)
    return CacheSet(
        items=(item,), empty_text_key="", negative_text_key="", latent_space="wan2.1", fps=16.0, vae_identity="",
        text_identity="", trigger_words=(trigger,) if trigger else (),
    )  # fmt: skip


def remarks(model: WanVariant, of: CacheSet | None = None, *prompts: str, **preview: Any) -> list[str]:
    return preview_remarks(model, of or clips(), SampleConfig(prompts=prompts, **preview))


@pytest.mark.parametrize(
    ("model", "size", "says"),
    [
        (SMALL, (832, 480), ""),
        (SMALL, (512, 512), ""),
        (SMALL, (1280, 720), "1280x720, a size 2.1 T2V-1.3B was not made for (832x480)"),
        (BIG, (1280, 720), ""),
        (BIG, (320, 320), "320x320, a size 2.1 T2V-14B was not made for (832x480 to 1280x720)"),
        (PAIR, (1920, 1088), "1920x1088, a size 2.2 T2V-A14B high noise was not made for"),
        (FIVE, (1280, 704), ""),
        (FIVE, (640, 352), "640x352, a size 2.2 TI2V-5B was not made for (1280x704)"),
    ],
)
def test_a_size_that_the_model_was_not_made_for_is_named(model: WanVariant, size: tuple[int, int], says: str) -> None:
    set_, left_open = remarks(model, width=size[0], height=size[1]), remarks(model, clips(*size))
    assert set_ == left_open
    assert len(set_) == bool(says)
    assert says in "".join(set_)


def test_more_frames_than_the_model_was_made_for_are_named() -> None:
    assert remarks(SMALL, num_frames=81) == []
    assert "Previews have 121 frames, and 2.1 T2V-1.3B was made for up to 81" in remarks(SMALL, num_frames=121)[0]
    assert remarks(FIVE, clips(1280, 704, 121)) == []


@pytest.mark.parametrize(
    ("model", "cfg", "usual"),
    [(SMALL, 6.0, ""), (SMALL, 12.0, "5"), (SMALL, 1.0, "5"), (PAIR, 7.0, "4"), (PAIR, 4.0, "")],
)
def test_an_unusual_guidance_is_named(model: WanVariant, cfg: float, usual: str) -> None:
    found = remarks(model, cfg=cfg)
    assert len(found) == bool(usual)
    assert f"cfg {cfg:g}; {model.name} is usually sampled with about {usual}" in "".join(found) or not usual
    assert remarks(model, sampling="4-step LoRA") == []
    assert {len(remarks(model, sampling=name)) for name in ("auto", "official", "ComfyUI template")} == {0}


def test_prompts_are_named_once_each() -> None:
    found = remarks(SMALL, None, "a dog", "a cat", LONG)
    assert len(found) == 1
    assert "very short (a dog)" in found[0]
    assert remarks(SMALL, None, LONG) == remarks(SMALL) == []
    (long,) = remarks(SMALL, None, "word " * 600)
    assert "more than 512 tokens (word word" in long


def test_a_prompt_without_the_trigger_word_is_named_unless_another_has_it() -> None:
    assert "the trigger word of the captions (ohwx)" in remarks(SMALL, clips(trigger="ohwx"), LONG)[0]
    assert remarks(SMALL, clips(trigger="ohwx"), LONG, f"OHWX {LONG}") == []


def test_models_of_no_released_size_have_no_usual_numbers() -> None:
    tiny = replace(SMALL, shape=replace(SMALL.shape, dim=128))
    assert remarks(tiny, None, "a dog", cfg=30.0, width=64, height=64) == []
