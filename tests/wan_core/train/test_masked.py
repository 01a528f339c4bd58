"""Loss masks in training, and models that are trained on control videos given as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.bench import Bench
from tests.support.sessions import train_here
from tests.support.tiny_run import TINY, TINY_CONTROL, TINY_VACE, TinyRun, make_run, short
from tests.wan_core.train.test_conditioned import losses, seen_batches
from wan_core.cache import Batch, LatentCache
from wan_core.files import atomic_write_json
from wan_core.flow import velocity_loss
from wan_core.job.config import DataConfig
from wan_core.model import WanShape
from wan_core.train import noise_batch
from wan_core.video import VideoProcess

FUN_CONTROL_21 = replace(TINY_CONTROL, image_dim=1280)


def masked_run(root: Path, mask: torch.Tensor | None) -> TinyRun:
    """A run whose every clip has that loss mask (1, F, h, w)."""
    size = (2, 4, 4) if mask is None else tuple(mask.shape[1:])
    run = make_run(root, shape=TINY, train=short(steps=1, save_every_n_steps=1, eval_items=0, batch_size=2), size=size)
    if mask is None:
        return run
    cache = LatentCache(run.roots.first("cache"))
    cache.write_mask("e" * 64, mask)
    found = cache.read_set(run.config.data.fingerprint)
    masked = replace(found, items=tuple(replace(item, mask_key="e" * 64) for item in found.items))
    return with_set(run, cache.write_set(masked))


def with_set(run: TinyRun, fingerprint: str) -> TinyRun:
    config = replace(run.config, data=DataConfig(fingerprint=fingerprint, num_items=3))
    (run.directory / "run.json").unlink()
    atomic_write_json(run.directory / "run.json", config.to_dict())
    return replace(run, config=config)


def test_what_the_mask_leaves_out_has_no_part_in_the_loss() -> None:
    generator = torch.Generator().manual_seed(2)
    latent, noise, prediction = (torch.randn(2, 16, 3, 4, 6, generator=generator) for _ in range(3))
    mask = torch.zeros(2, 1, 3, 4, 6)
    mask[0, :, :, :2] = 1
    mask[1, :, 1:, 3, 4:] = 0.5
    batch = Batch(latent, torch.zeros(2, 512, 8), ("a", "b"), loss_mask=mask)
    noised = noise_batch(batch, noise, torch.tensor([0.3, 0.6]), torch.device("cpu"))
    error = (prediction - (noise - latent)).square()
    counted = error[0, :, :, :2].sum() + 0.5 * error[1, :, 1:, 3, 4:].sum()
    by_hand = counted / (16 * 3 * 2 * 6 + 0.5 * 16 * 2 * 2)
    assert noised.trained is not None
    torch.testing.assert_close(velocity_loss(prediction, noise - latent, noised.trained), by_hand)


def test_a_given_first_frame_and_a_mask_both_apply() -> None:
    latent = torch.randn(2, 48, 3, 4, 4)
    batch = Batch(latent, torch.zeros(2, 512, 8), ("a", "b"), loss_mask=torch.full((2, 1, 3, 4, 4), 0.5))
    given = torch.tensor([True, False])
    noised = noise_batch(batch, latent, torch.tensor([0.3, 0.6]), torch.device("cpu"), given)
    assert noised.trained is not None
    assert noised.trained[:, 0, :, 0, 0].tolist() == [[0, 0.5, 0.5], [0.5, 0.5, 0.5]]


def test_a_black_mask_trains_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    events = train_here(masked_run(tmp_path, torch.zeros(1, 2, 4, 4)))
    assert losses(events) == [0.0]


def test_masks_of_the_cache_reach_the_loss(tmp_path: Path) -> None:
    white = losses(train_here(masked_run(tmp_path / "white", torch.ones(1, 2, 4, 4))))
    plain = losses(train_here(masked_run(tmp_path / "plain", None)))
    half = torch.ones(1, 2, 4, 4)
    half[..., 2:] = 0
    halved = losses(train_here(masked_run(tmp_path / "half", half)))
    assert white == pytest.approx(plain, rel=1e-5)
    assert abs(halved[0] - plain[0]) > 1e-3


@pytest.mark.parametrize(
    ("shape", "conditioning", "sizes"),
    [
        (TINY_VACE, "vace", {"vace": (96, 3, 6, 8)}),
        (
            replace(TINY_CONTROL, image_dim=1280),
            "control_vision",
            {"channels": (32, 3, 6, 8), "image_tokens": (257, 1280)},
        ),
        pytest.param(
            replace(TINY_CONTROL, in_channels=52),
            "control_mask",
            {"channels": (36, 3, 6, 8)},
            marks=pytest.mark.soak,
        ),
    ],
    ids=["vace", "2.1 fun control", "2.2 fun control"],
)
def test_a_model_is_trained_on_control_videos_from_files(
    tmp_path: Path, make_clip, shape: WanShape, conditioning: str, sizes: dict[str, tuple[int, ...]]
) -> None:
    for name in ("a", "b"):
        make_clip(f"clips/{name}.mp4", num_frames=12)
        edges = [np.full((48, 64, 3), 16 * k, np.uint8) for k in range(12)]
        make_clip(f"clips/control/{name}.mp4", frames=edges)
    run = make_run(tmp_path, shape=shape, train=short(steps=1, save_every_n_steps=1, eval_items=0))
    with VideoProcess() as video:
        bench = Bench(tmp_path / "clips", run.roots.first("cache"), video, trigger_word="x")
        report, *_ = bench.run(conditioning=conditioning)
    run = with_set(run, report.fingerprint)
    batches = seen_batches(run)
    assert len(batches) == 1
    for batch in batches:
        assert batch.conditioning is not None
        assert {name: tuple(getattr(batch.conditioning, name).shape[1:]) for name in sizes} == sizes
    assert (run.directory / "saves" / "step-000001" / "lora.safetensors").is_file()
