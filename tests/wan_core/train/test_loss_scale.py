"""A loss that is scaled for float16: the same numbers where there is room, better ones where there was none."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import wan_core.train.recovery as recovery
from tests.support.sessions import state, train_here, trainer_on
from tests.support.tiny_run import TINY, make_roots, make_run, short
from wan_core.cache import LatentCache
from wan_core.events import Event, Note, StepDone, StepSkipped
from wan_core.load import ModelPlan, materialize
from wan_core.lora import LoraConfig
from wan_core.train import TrainConfig, Trainer
from wan_core.train.objective import NoisedBatch, TrainedLoss

pytestmark = pytest.mark.lasts(0.3)


def settings(**changes: Any) -> TrainConfig:
    return short(**{"eval_items": 0, "save_dtype": "fp32", "discrete_flow_shift": 3.0, **changes})


def plan(precision: str) -> ModelPlan:
    return ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors", base_precision=precision)


def trainer_of(root: Path, precision: str, scaling: str, events: list[Event] | None = None) -> Trainer:
    roots, fingerprint = make_roots(root)
    cache = LatentCache(roots.first("cache"))
    model = materialize(plan(precision), roots, LoraConfig(rank=4), seed=0)
    emit = (events if events is not None else []).append
    return trainer_on(model, cache, cache.read_set(fingerprint), settings(loss_scaling=scaling), emit)


def gradients(trainer: Trainer, part: float) -> torch.Tensor:
    """Those of the first step for so small a part of the loss, which is put back on them."""
    trained = trainer._objective.trained
    trainer._objective.trained = lambda batch: TrainedLoss(trained(batch).loss * part, None)  # type: ignore[method-assign]
    trainer._reader.start()
    trainer._computed(1)
    trainer._reader.stop()
    return torch.cat([p.grad.flatten() for p in trainer.parameters.values() if p.grad is not None]) / part


def test_small_gradients_of_float16_are_there_with_scaling_and_lost_without(tmp_path: Path) -> None:
    part = 2.0**-20  # what one value of a clip of a million has of the mean; one of 512 keys has less again
    exact = gradients(trainer_of(tmp_path / "a", "fp32", "off"), part)
    lost, kept = (gradients(trainer_of(tmp_path / name, "fp16", name), part) for name in ("off", "dynamic"))
    wrong = [float((found - exact).norm() / exact.norm()) for found in (lost, kept)]
    assert wrong[0] > 0.1, "the test is about gradients that float16 cannot say"
    assert wrong[1] < 0.01


def trained(root: Path, precision: str, *sessions: int, **changes: Any) -> tuple[dict[str, torch.Tensor], list[Event]]:
    """The last state of a run in so many sessions, and its events."""
    shape, events = replace(TINY, num_layers=1), list[Event]()  # products in float16 are slow on a CPU
    run = make_run(root, shape=shape, train=settings(**changes), plan=plan(precision))
    for steps in sessions or (0,):
        events += train_here(run, max_steps=steps)
    return state(run, 6), events


def test_in_float32_scaling_changes_no_bit(tmp_path: Path) -> None:
    plain, _ = trained(tmp_path / "off", "fp32")
    scaled, _ = trained(tmp_path / "on", "fp32", loss_scaling="dynamic")
    assert scaled.pop("loss_scale").tolist() == [2.0**16, 6]
    assert scaled.keys() == plain.keys()
    assert all(torch.equal(value, plain[name]) for name, value in scaled.items())


@pytest.mark.soak
def test_a_resumed_run_has_the_scale_it_would_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The factor grows after three good steps and falls where it overflows, in sessions that end in between."""
    monkeypatch.setattr(recovery, "_GOOD_STEPS", 3)
    monkeypatch.setattr(recovery, "_FIRST", 2.0**40)
    monkeypatch.setattr(recovery, "_MOST", 2.0**60)
    straight, events = trained(tmp_path / "straight", "fp16", loss_scaling="dynamic")
    resumed, _ = trained(tmp_path / "resumed", "fp16", 2, 4, loss_scaling="dynamic")
    assert straight["loss_scale"][0] < 2.0**40, "it overflowed"
    assert [e.step for e in events if isinstance(e, StepDone)] == [1, 2, 3, 4, 5, 6]
    assert not [e for e in events if isinstance(e, StepSkipped)], "a step that overflows is done again, not left out"
    assert not any("fp16" in e.text for e in events if isinstance(e, Note))
    assert resumed.keys() == straight.keys()
    assert all(torch.equal(value, resumed[name]) for name, value in straight.items())


def test_a_run_in_float16_without_scaling_says_what_is_lost(tmp_path: Path) -> None:
    _, events = trained(tmp_path, "fp16")
    (note,) = [e for e in events if isinstance(e, Note) and "fp16" in e.text]
    assert (note.level, note.text[-34:]) == ("warning", "bf16, whose range is that of fp32.")


def test_gradients_that_are_wrong_skip_their_step_and_leave_the_scale(tmp_path: Path) -> None:
    events: list[Event] = []
    trainer = trainer_of(tmp_path, "fp32", "dynamic", events)
    next(iter(trainer.parameters.values())).register_hook(lambda grad: grad * math.nan if trainer.step == 1 else grad)
    trainer.run(3, lambda _step: None)
    assert [e.step for e in events if isinstance(e, StepSkipped)] == [2]
    assert [e.step for e in events if isinstance(e, StepDone)] == [1, 3]
    assert trainer.state()["loss_scale"].tolist()[0] == 2.0**16


def test_a_loss_that_is_not_finite_is_no_matter_of_the_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[float] = []

    def target(batch: NoisedBatch) -> torch.Tensor:
        tries.append(trainer._scale.factor)
        return batch.noise * math.nan

    trainer = trainer_of(tmp_path, "fp32", "dynamic")
    monkeypatch.setattr("wan_core.train.objective.true_velocity", target)
    trainer.run(1, lambda _step: True)
    assert tries == [2.0**16]
