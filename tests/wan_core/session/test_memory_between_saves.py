"""Memory that runs out between two saved steps: the last complete step is saved, and the run resumes bitwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.sessions import same, state, train_here
from tests.support.tiny_run import TinyRun, make_run
from wan_core.cache import Batches
from wan_core.errors import OutOfMemory
from wan_core.job.config import read_status
from wan_core.model.block import WanBlock
from wan_core.sampler import SampleConfig
from wan_core.session import expert
from wan_core.session.experts import Experts
from wan_core.session.training import Training
from wan_core.train import SaveStore, TrainConfig, Trainer
from wan_core.train.optimizer_state import AdapterOptimizer

pytestmark = pytest.mark.lasts(0.2)

SETTINGS = TrainConfig(
    steps=4,
    save_every_n_steps=4,
    eval_every_n_steps=1,
    preview_every_n_steps=1,
    learning_rate=1e-3,
    eval_items=1,
    eval_timesteps=(500.0,),
    ema_decay=0.9,
    save_dtype="fp32",
)
PREVIEW = SampleConfig(sampling="custom", steps=1, cfg=1.0, shift=5.0)
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
HOST_FULL = MemoryError()

PLACES: dict[str, tuple[Any, str, Exception]] = {
    "every attempt of a step": (WanBlock, "forward", FULL),
    "the norm of the gradients": (torch.nn.utils, "clip_grad_norm_", FULL),
    "a model that is loaded again": (Experts, "load", FULL),
    "host memory of a batch": (Trainer, "_draw", HOST_FULL),
    "host memory of an evaluation": (Batches, "load", HOST_FULL),
    "the way out of a preview": (Training, "_sample", FULL),
    "a save": (expert, "exported", FULL),
}
IN_CI = ("every attempt of a step", "host memory of a batch", "a save")


def made(root: Path, config: TrainConfig = SETTINGS) -> TinyRun:
    return make_run(root, train=config, preview=PREVIEW)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """The last state of a run with enough memory."""
    run = made(tmp_path_factory.mktemp("undisturbed"))
    torch.set_num_threads(1)
    train_here(run)
    return state(run, 4)


def _full_after_step(patch: pytest.MonkeyPatch, step: int, owner: Any, name: str, error: Exception) -> None:
    """`owner.name` raises `error` once `step` steps are done; a save only at its first call."""
    done, failed, real, train = 0, 0, getattr(owner, name), Trainer._train_step

    def trained(self: Trainer, number: int) -> None:
        nonlocal done
        train(self, number)
        done = number

    def full(*given: Any, **named: Any) -> Any:
        nonlocal failed
        if done >= step and not (name == "exported" and failed):
            failed += 1
            raise error
        return real(*given, **named)

    patch.setattr(Trainer, "_train_step", trained)
    patch.setattr(owner, name, full)


@pytest.mark.parametrize(
    "place", [one if one in IN_CI else pytest.param(one, marks=pytest.mark.soak) for one in PLACES]
)
def test_the_last_complete_step_is_saved_wherever_memory_runs_out(
    tmp_path: Path, undisturbed: dict[str, Tensor], place: str
) -> None:
    step = 4 if place == "a save" else 2
    run = made(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        _full_after_step(patch, step, *PLACES[place])
        with pytest.raises(OutOfMemory, match="What helps most"):
            train_here(run)
    assert [SaveStore(run.directory).steps(), read_status(run.directory).step] == [[step], step]
    train_here(run)
    assert same(state(run, 4), undisturbed)


@pytest.mark.parametrize("place", ["in the update", pytest.param("after the update", marks=pytest.mark.soak)])
def test_an_update_that_was_not_complete_is_never_saved(
    tmp_path: Path, undisturbed: dict[str, Tensor], place: str
) -> None:
    """Some weights are updated and others not: the run resumes from the saved step before."""
    run = made(tmp_path, replace(SETTINGS, save_every_n_steps=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdapterOptimizer, "step", _torn(AdapterOptimizer.step, 3, place))
        with pytest.raises(OutOfMemory, match="What helps most"):
            train_here(run)
    assert SaveStore(run.directory).steps() == [1, 2]
    train_here(run)
    assert same(state(run, 4), undisturbed)


def _torn(real: Callable[..., float], at: int, place: str) -> Callable[..., float]:
    calls = 0

    def step(self: AdapterOptimizer, rate: float) -> float:
        nonlocal calls
        calls += 1
        if calls < at:
            return real(self, rate)
        if place == "after the update":
            real(self, rate)
        else:
            with torch.no_grad():
                next(iter(self.stepped.values())).add_(1.0)
        raise FULL

    return step


def test_averages_in_place_of_the_weights_take_no_memory_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that runs out between the copies would leave some averages among the trained weights."""
    weights = {name: torch.nn.Parameter(torch.full((4,), 2.0)) for name in "ab"}
    optimizer = AdapterOptimizer(weights, SETTINGS)
    for weight in weights.values():
        weight.grad = torch.ones(4)
    optimizer.step(1e-3)
    trained = {name: weight.detach().clone() for name, weight in weights.items()}

    def full(*_: Any, **__: Any) -> Tensor:
        raise FULL

    monkeypatch.setattr(Tensor, "clone", full)
    with optimizer.evaluated_weights():
        assert not torch.equal(weights["a"], trained["a"])
    assert all(torch.equal(weights[name], trained[name]) for name in weights)
