"""Learning rates of single layers: a pattern's factor times LoRA+, shown, resumed to the last bit, refused early."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.support.sessions import train_here
from tests.support.tiny_run import make_pair_run, make_run
from wan_core.errors import ConfigError
from wan_core.events import Note
from wan_core.job import DataConfig, RunConfig, check_adapters
from wan_core.load import ModelPlan
from wan_core.model import WanShape
from wan_core.train import TrainConfig
from wan_core.train.learning_rate import rates_sentence
from wan_core.train.optimizer_state import AdapterOptimizer

PATTERNS = (r"blocks\.0\..* = 0.5", r".*\.ffn\..* = 0.25")
SETTINGS = TrainConfig(
    steps=4, save_every_n_steps=2, preview_every_n_steps=0, eval_items=0, learning_rate=1e-3, lr_patterns=PATTERNS,
    loraplus_lr_ratio=4.0, save_dtype="fp32", lr_scheduler="constant", weight_decay=0.0,
)  # fmt: skip
NAMES = ("blocks.0.self_attn.q", "blocks.0.ffn.0", "blocks.1.ffn.0", "blocks.1.self_attn.q")
FACTORS = (0.5, 0.5, 0.25, 1.0)


def test_a_weight_moves_by_the_factor_of_the_first_pattern_times_lora_plus() -> None:
    """The first update of AdamW is as long as the learning rate, whatever the gradient."""
    parts = {".lora_A.weight": 1.0, ".lora_B.weight": 4.0, ".lora_magnitude_vector.weight": 1.0}
    weights = {name + part: nn.Parameter(torch.zeros(3, 5)) for name in NAMES for part in parts}
    optimizer = AdapterOptimizer(weights, replace(SETTINGS, lr_scheduler="linear", lr_warmup_steps=1))
    for weight in weights.values():
        weight.grad = torch.ones_like(weight)
    assert optimizer.step(1e-4) == pytest.approx(1e-4), "what is told is the rate of the run"
    for name, factor in zip(NAMES, FACTORS, strict=True):
        for part, ratio in parts.items():
            moved = weights[name + part].detach().abs()
            torch.testing.assert_close(moved, torch.full_like(moved, 1e-4 * factor * ratio))
    assert rates_sentence(weights, SETTINGS) == (
        "Learning rates by lr_patterns: 1 of 4 layers at 0.25 x, 2 of 4 layers at 0.5 x; 1 at 1 x."
    )


def test_without_patterns_there_is_one_group_and_nothing_to_tell() -> None:
    weights = {f"{name}.lora_A.weight": nn.Parameter(torch.zeros(3, 5)) for name in NAMES}
    config = replace(SETTINGS, lr_patterns=(), loraplus_lr_ratio=1.0)
    assert len(AdapterOptimizer(weights, config).inner.param_groups) == 1
    assert rates_sentence(weights, config) == ""


def test_a_run_of_both_experts_with_rates_of_layers_is_told_and_resumed_to_the_last_bit(tmp_path: Path) -> None:
    """The low noise expert has a rate of its own, which the factors are of."""
    more = {"low_noise_learning_rate": 5e-4, "lr_patterns": PATTERNS, "loraplus_lr_ratio": 4.0}
    straight, stopped = (make_pair_run(tmp_path / name, steps=4, eval_items=0, **more) for name in ("a", "b"))
    events = train_here(straight)
    for _ in range(2):
        train_here(stopped, max_steps=2)
    told = [event.text for event in events if isinstance(event, Note) and event.text.startswith("Learning rates by")]
    assert told == ["Learning rates by lr_patterns: 2 of 20 layers at 0.25 x, 10 of 20 layers at 0.5 x; 8 at 1 x."]
    one, other = (load_file(run.directory / "saves/step-000004/state.safetensors") for run in (straight, stopped))
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_pattern_that_matches_nothing_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=replace(SETTINGS, lr_patterns=("blocks.9 = 2",)))
    shape = WanShape(dim=128, ffn_dim=256, num_heads=1, num_layers=2)
    with pytest.raises(ConfigError, match=r'^lr_patterns "blocks\.9" matches none of the 20 layers .* blocks\.0\.self'):
        check_adapters(run.config.lora, shape, run.roots, run.config.train)
    with pytest.raises(ConfigError, match="matches none of the 20 layers"):
        train_here(run)


@pytest.mark.parametrize("line", ["ffn", "a = 0", "a = -1", "a = x", "= 2", "a = nan"])
def test_a_line_that_is_no_pattern_and_factor_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an expression = factor\. Example: "):
        TrainConfig(lr_patterns=(line,))


def test_prodigy_has_one_rate() -> None:
    with pytest.raises(ConfigError, match=r"lr_patterns is set, and optimizer prodigy .* Set lr_patterns to nothing\."):
        TrainConfig(optimizer="prodigy", lr_patterns=PATTERNS)


def test_rates_of_layers_make_another_job_and_their_absence_is_what_it_was() -> None:
    job = {"run_name": "x", "model": ModelPlan(base_file="diffusion_models:x"), "data": DataConfig(fingerprint="0")}
    usual, other = (
        RunConfig(**job, train=train)  # type: ignore[arg-type]
        for train in (TrainConfig(), TrainConfig(lr_patterns=PATTERNS))
    )
    assert "lr_patterns" not in usual.identity()["train"]
    assert usual.job_id != other.job_id
