"""Targets with predictions without gradients: guidance for distilled bases, and the class word of a trigger word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.sessions import train_here
from tests.support.tiny_run import make_run, short
from tests.wan_core.train.test_prior import asked_for, batch_of, filled, marked, model_of, state_of
from wan_core.events import StepDone
from wan_core.lora import LoraConfig, inject_lora
from wan_core.train import TrainConfig, true_velocity
from wan_core.train.objective import Objective, TargetPass


def test_the_guidance_target_lies_beyond_the_true_velocity_from_the_empty_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, empty = model_of(), torch.randn(2, 16, 4096, generator=torch.Generator().manual_seed(8))
    inject_lora(model, LoraConfig(rank=4), seed=0)
    filled(model)
    passes = (TargetPass((-2.0, -2.0), empty, adapted=True),)
    batch = replace(batch_of(0.0, 0.0), prior=(), target_passes=passes, true_shares=(3.0, 3.0))
    seen = asked_for(monkeypatch)
    found = Objective(model, TrainConfig()).trained(batch)
    (_, target) = seen[0]
    without = model(batch.noised, batch.timestep, empty).detach()
    torch.testing.assert_close(target, without + 3 * (true_velocity(batch) - without), atol=1e-5, rtol=1e-5)
    assert found.prior is None
    assert not target.requires_grad


def test_a_run_with_guidance_and_prior_clips_resumes_bitwise(tmp_path: Path) -> None:
    config = short(steps=3, eval_items=0, batch_size=2, save_every_n_steps=1, guidance_target=3.0)
    once, parts, plain = (
        marked(make_run(tmp_path / name, train=train), 0, 2)
        for name, train in (("a", config), ("b", config), ("c", replace(config, guidance_target=1.0)))
    )
    steps = [event for event in train_here(once) if isinstance(event, StepDone)]
    for count in (1, 0):
        train_here(parts, max_steps=count)
    others = [event for event in train_here(plain) if isinstance(event, StepDone)]
    assert state_of(once) == state_of(parts)
    assert sum(one.loss != other.loss for one, other in zip(steps, others, strict=True)) >= 2
