"""Runs that split tokens over simulated devices: the same LoRA as on one device, resumed in either mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tests.support.tiny_run import TINY, TinyRun, make_run
from wan_core.control import SignalControl
from wan_core.events import Evaluated, Event, StepDone
from wan_core.files import atomic_write_json
from wan_core.job.config import read_run
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig
from wan_core.model import WanTransformer
from wan_core.parallel import SplitTokens
from wan_core.placement import BlockOffload, PlacementConfig
from wan_core.precision import QuantizeConfig
from wan_core.session.train_job import run_job
from wan_core.train import TrainConfig

SHAPE = replace(TINY, dim=256, num_heads=2, num_layers=3)
ONE, TWO = PlacementConfig(devices="cpu"), PlacementConfig(mode="split tokens", devices="cpu,cpu")
SETTINGS: dict[str, Any] = {
    "save_every_n_steps": 1,
    "preview_every_n_steps": 0,
    "eval_items": 0,
    "memory": "manual",
    "learning_rate": 1e-3,
    "lr_scheduler": "constant",
}
EVALUATED: dict[str, Any] = {"eval_items": 2, "ema_decay": 0.5}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("", {"gradient_accumulation_steps": 2, **EVALUATED}),
    "int8, swapped and offloaded": ("int8", {"blocks_to_swap": 2, "offload_activations": "on"}),
}


def made(folder: Path, placement: PlacementConfig, scheme: str, steps: int, train: dict[str, Any]) -> TinyRun:
    plan = ModelPlan(
        base_file="diffusion_models:wan_tiny_t2v.safetensors",
        base_precision="fp32",
        quantize=QuantizeConfig(scheme=scheme) if scheme else None,
        placement=placement,
    )
    settings = TrainConfig(**{**SETTINGS, "steps": steps, **train})
    return make_run(folder, shape=SHAPE, plan=plan, lora=LoraConfig(rank=4), train=settings, size=(3, 4, 6))


def trained(run: TinyRun) -> list[float]:
    """Losses and norms of the gradients of the steps that are left, and what is evaluated behind them."""
    found: list[float] = []

    def hear(event: Event) -> None:
        if isinstance(event, StepDone):
            found.extend((event.loss, event.grad_norm))
        if isinstance(event, Evaluated):
            found.append(event.eval_loss)

    run_job(run.directory, run.roots, emit=hear, control=SignalControl())
    return found


@pytest.mark.parametrize(
    "name",
    ["plain", pytest.param("int8, swapped and offloaded", marks=pytest.mark.soak)],  # on cards: test_on_cards.py
)
def test_a_run_trains_as_on_one_device_and_goes_on_there(tmp_path: Path, name: str) -> None:
    expected = trained(made(tmp_path / "one", ONE, RUNS[name][0], 2, RUNS[name][1]))
    run = made(tmp_path / "two", TWO, RUNS[name][0], 1, RUNS[name][1])
    first = trained(run)
    config = read_run(run.directory)
    longer = replace(config, train=replace(config.train, steps=2), model=config.model.with_placement(ONE))
    atomic_write_json(run.directory / "run.json", longer.to_dict())
    assert [*first, *trained(run)] == pytest.approx(expected, rel=1e-5)
    assert len(expected) in (4, 4 + 3), "evaluated before the first step and behind each"
    assert first != expected[: len(first)], "sums in one order: it ran on one device"


class _Full(torch.nn.Module):
    """A layer on a card that is full, until so many passes have failed."""

    def __init__(self, layer: torch.nn.Module, fails: int) -> None:
        super().__init__()
        self.layer, self.left = layer, fails

    def forward(self, *inputs: Any) -> Any:
        if self.left:
            self.left -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Planted.")
        return self.layer(*inputs)


def test_a_full_second_card_makes_both_keep_less_and_the_step_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain: dict[str, Any] = {"gradient_checkpointing": False}
    expected = trained(made(tmp_path / "one", ONE, "", 2, plain))
    models = list[WanTransformer]()
    of_all = SplitTokens.__init__

    def planted(self: SplitTokens, first: WanTransformer, copies: Sequence[WanTransformer], *more: Any) -> None:
        of_all(self, first, copies, *more)
        models.extend((first, *copies))
        copies[0].blocks[1].ffn[0] = _Full(copies[0].blocks[1].ffn[0], 3)

    monkeypatch.setattr(SplitTokens, "__init__", planted)
    assert trained(made(tmp_path / "two", TWO, "", 2, plain)) == pytest.approx(expected, rel=1e-5)
    assert [model.checkpoint_blocks for model in models] == [True, True]
    measures = [cast(BlockOffload, model.offload).measures for model in models]
    assert measures[0] == measures[1]
    assert measures[0].offload_inputs
