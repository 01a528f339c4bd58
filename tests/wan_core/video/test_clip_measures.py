"""What is measured of a clip, on clips made to show it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from wan_core.metrics import broken_previews
from wan_core.video import measure_clip


def smooth(frames: int = 9, size: int = 64) -> np.ndarray:
    """A slope that moves slowly: no flicker, no grid, nothing empty."""
    ramp = np.linspace(40, 200, size)
    clip = np.stack([np.roll(ramp[None].repeat(size, 0), 2 * frame, axis=1) for frame in range(frames)])
    return clip[..., None].repeat(3, -1).astype(np.uint8)


def noisy(clip: np.ndarray, amount: float) -> np.ndarray:
    noise = np.random.default_rng(0).normal(scale=amount, size=clip.shape)
    return np.clip(clip + noise, 0, 255).astype(np.uint8)


def with_grid(clip: np.ndarray) -> np.ndarray:
    tiles = (np.arange(clip.shape[1]) // 8 % 2)[:, None] ^ (np.arange(clip.shape[2]) // 8 % 2)[None]
    return np.clip(clip.astype(int) + 20 * tiles[None, :, :, None], 0, 255).astype(np.uint8)


def test_a_sound_clip_has_none_of_it():
    found = measure_clip(noisy(smooth(), 3), smooth())
    assert found["empty"] == 0
    assert found["flicker"] < 0.002
    assert found["grid"] < 0.1
    assert 0.5 < found["ssim"] < 1


def test_black_frames_count_as_empty():
    clip = smooth()
    clip[3:6] = 0
    assert measure_clip(clip)["empty"] == pytest.approx(1 / 3, abs=1e-4)
    assert measure_clip(np.full_like(clip, 90))["empty"] == 1


def test_brightness_that_jumps_is_flicker():
    clip = smooth()
    clip[1::2] += 40
    assert measure_clip(clip)["flicker"] == pytest.approx(40 / 255, abs=0.002)


def test_tiles_of_a_latent_are_a_grid():
    assert measure_clip(with_grid(noisy(smooth(), 3)))["grid"] > 1


def test_likeness_is_one_for_the_same_clip_falls_with_noise_and_needs_the_same_shape():
    clip = smooth()
    likeness = [measure_clip(noisy(clip, amount), clip)["ssim"] for amount in (1, 8, 40)]
    assert measure_clip(clip, clip)["ssim"] == 1
    assert likeness == sorted(likeness, reverse=True)
    assert likeness[-1] < 0.4
    assert "ssim" not in measure_clip(clip, clip[:5])
    assert set(measure_clip(clip[:1])) == {"empty", "flicker", "grid", "spots"}


def test_black_spots_are_blocks_that_are_black_where_the_frame_is_not() -> None:
    clip = np.full((2, 32, 64, 3), 120, np.uint8)
    spotted = clip.copy()
    spotted[1, :8, :16] = 0  # 2 of the 64 blocks of both frames
    assert [measure_clip(one)["spots"] for one in (clip, spotted, clip // 12)] == [0, 0.0312, 0]
    assert [measure_clip(spotted, clip, last)["ssim_last"] for last in (spotted, clip)] == pytest.approx(
        [1, 0.97], abs=0.01
    )


def test_a_step_is_broken_where_most_of_its_previews_are_beside_their_base(tmp_path: Path):
    sound, grid = {"empty": 0.0, "flicker": 0.01, "grid": 0.1}, {"empty": 0.0, "flicker": 0.01, "grid": 1.2}
    black = {"empty": 1.0, "flicker": 0.0, "grid": 0.0}
    clips = {
        0: [sound, black, sound],
        2: [sound, black, sound],
        4: [grid, black, sound],
        6: [grid, black, grid],
        8: [{}, black, black],
    }
    lines = [
        {"event": "sample", "step": step, "sample_id": f"step-{step:06d}_p{prompt}", "file": "x", "measures": measures}
        for step, measured in clips.items()
        for prompt, measures in enumerate(measured)
    ]
    lines += [{"event": "sample", "step": 10, "sample_id": "step-000010_p0", "file": "x"}]
    lines += [{"event": "sample", "step": 10, "sample_id": "step-000010_p1", "measures": {"grid": "9"}}]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert broken_previews(file) == {6: "a grid: 1.20, before training 0.10"}


def test_a_preview_that_is_unlike_its_base_is_not_broken(tmp_path: Path):
    """As unlike as the one of a run that learnt (0.78) and more: what is learnt has to show."""
    sound, file = {"empty": 0.0, "flicker": 0.01, "grid": 0.1}, tmp_path / "metrics.jsonl"
    lines = [
        {"event": "sample", "step": step, "sample_id": f"step-{step:06d}_p0", "file": "x", "measures": sound | likeness}
        for step, likeness in ((0, {"ssim": 1.0}), (2, {"ssim": 0.78}), (4, {"ssim": 0.05}))
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert broken_previews(file) == {}
