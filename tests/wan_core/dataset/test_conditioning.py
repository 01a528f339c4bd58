"""The tensors a clip is conditioned on, against the official layout."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from tests.support.tiny_run import TINY, kind_of
from wan_core.dataset import stack_conditions, with_mask
from wan_core.dataset.conditioning import given_frames, given_mask
from wan_core.errors import CacheError, ConfigError
from wan_core.model import Conditioning, condition_named


@pytest.mark.parametrize(
    ("name", "frames"),
    [("i2v_mask_channels_by_latent_frame_T17", [0]), ("flf_mask_channels_by_latent_frame_T17", [0, -1])],
)
def test_the_mask_is_the_official_one(fixtures_dir, name, frames):
    golden = json.loads((fixtures_dir / "wan_math_golden.json").read_text(encoding="utf-8"))[name]
    assert given_mask(17, frames).tolist() == golden


def test_a_still_is_given_whole():
    assert given_mask(1, [0]).tolist() == given_mask(1, [0, -1]).tolist() == [[1.0]] * 4


def test_frames_that_are_not_given_are_mid_grey():
    pixels = torch.rand(9, 4, 6, 3)
    kept = given_frames(pixels, [0, -1])
    assert torch.equal(kept[0], pixels[0])
    assert torch.equal(kept[8], pixels[8])
    assert bool((kept[1:8] == 0.5).all())


def test_channels_are_the_mask_and_then_the_latent():
    latent = torch.randn(16, 3, 4, 6)
    channels = with_mask(latent, 9, [0])
    assert channels.shape == (20, 3, 4, 6)
    assert torch.equal(channels[4:], latent)
    assert bool((channels[:4, 0] == 1).all())
    assert bool((channels[:4, 1:] == 0).all())


@pytest.mark.parametrize(
    ("task", "image_dim", "frames", "tensors"),
    [
        ("t2v", 0, (), ()),
        ("ti2v", 0, (), ()),
        ("i2v", 0, (0,), ("channels",)),
        ("i2v", 1280, (0,), ("channels", "image_tokens")),
        ("flf2v", 1280, (0, -1), ("channels", "image_tokens")),
        ("vace", 0, (), ("vace",)),
        ("control", 0, (), ("channels",)),
        # Wan 2.1 Fun-Control reads image tokens too, so its clips are given their first frame, as its start image.
        ("control", 1280, (0,), ("channels", "image_tokens")),
        ("camera", 0, (0,), ("channels", "camera")),
        ("camera", 1280, (0,), ("channels", "image_tokens", "camera")),
    ],
)
def test_every_task_says_what_it_needs(task, image_dim, frames, tensors):
    kind = kind_of(task, replace(TINY, image_dim=image_dim))
    assert (kind.frames, kind.tensors) == (frames, tensors)
    assert condition_named(kind.name) is kind
    assert (kind.files == ("control",)) == (task in ("vace", "control"))
    assert (kind.files == ("camera",)) == (task == "camera")


@pytest.mark.parametrize(("condition_channels", "name"), [(32, "control"), (36, "control_mask"), (100, "control_mask")])
def test_fun_control_2_2_has_a_mask_between_control_and_start_image(condition_channels, name):
    latent = 48 if condition_channels == 100 else 16
    shape = replace(TINY, in_channels=latent + condition_channels, out_channels=latent)
    assert kind_of("control", shape).name == name


def test_masks_of_clips_change_the_kind():
    assert condition_named(condition_named("first_vision").masked).files == ("mask",)
    assert condition_named("vace").masked == ""


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r'"sound" is unknown\. Known: none, first,'):
        condition_named("sound")


def test_clips_become_one_batch_and_never_a_mixed_one():
    clips = [{"channels": torch.full((20, 2, 4, 4), n, dtype=torch.bfloat16)} for n in (1.0, 2.0)]
    batch = stack_conditions(clips)
    assert isinstance(batch, Conditioning)
    assert batch.channels is not None
    assert batch.channels.dtype == torch.float32
    assert batch.channels[:, 0, 0, 0, 0].tolist() == [1.0, 2.0]
    assert stack_conditions([{}, {}]) is None
    with pytest.raises(CacheError, match="different tensors"):
        stack_conditions([clips[0], {}])
