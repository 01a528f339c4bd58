"""What the settings of the objective make of a run: the noise it sees, and the loss it goes down."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.sessions import train_here
from tests.support.tiny_run import make_run
from wan_core.config import settings_of
from wan_core.errors import ConfigError
from wan_core.events import Evaluated, StepDone
from wan_core.flow import draw_sigma, loss_factor, resolution_shift, seeded_generator, velocity_loss
from wan_core.train import NoisedBatch, TrainConfig, objective, true_velocity

pytestmark = pytest.mark.lasts(1)


def test_a_run_trains_its_objective_on_its_noise_and_is_evaluated_as_every_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = TrainConfig(
        steps=3,
        preview_every_n_steps=0,
        eval_items=1,
        batch_size=2,
        loss_type="huber",
        huber_delta=0.5,
        loss_weighting="cosmap",
        min_timestep=400.0,
        max_timestep=600.0,
        timestep_sampling="uniform",
        discrete_flow_shift=1.0,
    )
    answers: list[tuple[Tensor, Tensor]] = []
    batches: list[NoisedBatch] = []

    def target(batch: NoisedBatch) -> Tensor:
        batches.append(batch)
        return true_velocity(batch)

    def spy(prediction: Tensor, wanted: Tensor, *rest: object, **named: object) -> Tensor:
        answers.append((prediction.detach(), wanted))
        return velocity_loss(prediction, wanted, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(objective, "velocity_loss", spy)
    monkeypatch.setattr(objective, "true_velocity", target)
    run = make_run(tmp_path, train=train)
    events = train_here(run)
    done = [event for event in events if isinstance(event, StepDone)]
    evaluated = [event for event in events if isinstance(event, Evaluated)]
    measured = len(evaluated[0].per_timestep)
    at_steps = slice(measured, measured + len(done))
    for step, batch, (prediction, wanted) in zip(done, batches[at_steps], answers[at_steps], strict=True):
        assert bool(((batch.sigma >= 0.4) & (batch.sigma < 0.6)).all())
        factor = loss_factor(batch.sigma, "cosmap")
        expected = velocity_loss(prediction, wanted, kind="huber", delta=0.5, factor=factor)
        assert step.loss == pytest.approx(float(expected))
    plain = [float(velocity_loss(*answer)) for answer in answers[:measured]]
    assert evaluated[0].eval_loss == pytest.approx(sum(plain) / measured)


def test_noise_levels_outside_of_the_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="so nothing would be trained"):
        TrainConfig(min_timestep=500.0, max_timestep=500.0)
    config = TrainConfig(max_timestep=875.0)
    assert config.narrowed((0.0, 1.0)) == (0.0, 0.875)
    with pytest.raises(ConfigError, match="lies outside of what this model is trained on, 875 to 1000"):
        config.narrowed((0.875, 1.0))


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(one, marks=[] if one in ("mode", "flux_shift") else pytest.mark.soak)
        for one in settings_of(TrainConfig)["timestep_sampling"].choices
    ],
)
def test_every_draw_of_a_job_is_that_of_its_settings(
    tmp_path: Path, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[NoisedBatch] = []

    def target(batch: NoisedBatch) -> Tensor:
        seen.append(batch)
        return true_velocity(batch)

    own = {"logit_mean": -2.0, "logit_std": 0.7, "mode_scale": 0.5, "discrete_flow_shift": 4.0}
    train = TrainConfig(
        **{"steps": 2, "preview_every_n_steps": 0, "eval_items": 0, "timestep_sampling": sampling, **own}
    )
    run = make_run(tmp_path, train=train)
    monkeypatch.setattr(objective, "true_velocity", target)
    train_here(run)
    assert len(seen) == 2
    for place, batch in enumerate(seen):
        *_, height, width = batch.latent.shape
        expected = draw_sigma(
            1,
            seeded_generator(0, "sigma", place),
            sampling=sampling,
            shift=resolution_shift(sampling, height, width) or 4.0,
            logit_mean=-2.0,
            logit_std=0.7,
            mode_scale=0.5,
        )
        assert torch.equal(batch.sigma, expected)
