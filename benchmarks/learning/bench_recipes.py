"""Recipes of the learning bench as values: ours, and the field's as its own files set them.

Rates are those of the tiny model. `SCALE` is between its rates and those of full-size models: 4e-3 here is our default
of 1e-4 there. A recipe's `own_rate` is the one of `rates` nearest to SCALE times what its files set.

Where the facts are from (settings that a file leaves out are the trainer's defaults):

- diffusion-pipe: tdrussell/diffusion-pipe 0784ca8b, examples/main_example.toml. Its AdamW (optimi, Kahan sums for
  bf16) is AdamW here, where weights are float32. A LoRA's alpha is its rank.
- musubi: kohya-ss/musubi-tuner 12aab394, docs/wan.md (the command for t2v-1.3B); network_alpha is left at 1.
  adamw8bit is AdamW here, which quantizes no state.
- ai-toolkit: ostris/ai-toolkit 03e45022, config/examples/train_lora_wan21_1b_24gb.yaml. adamw8bit likewise.
- SimpleTuner: bghira/SimpleTuner, documentation/quickstart/WAN.md (the example configuration for Wan 2.1 1.3B). Its
  warm-up of 400,000 steps is as long as its run and would teach nothing in ours: left out. Gradients are clipped by
  value at 0.01 there, which Lion's sign hardly sees: not at all here.
- DiffSynth: modelscope/DiffSynth-Studio, examples/wanvideo/model_training/lora/Wan2.1-T2V-1.3B.sh at 5b2b37e2,
  diffsynth/diffusion/runner.py at 132143f9 (AdamW, no clipping; torch's ConstantLR, whose first five steps are at a
  third of the rate), flow_match.py at 038bad01 (uniform over the grid of shift 5, weighted by a bell).
- ComfyUI: the node TrainLoraNode at its defaults, in its own process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCALE = 40.0
_RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
_LOWER = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
"""of recipes that were best at the lowest of `_RATES`"""


@dataclass(frozen=True, kw_only=True)
class BenchRecipe:
    """How a cell is trained."""

    name: str
    trainer: str = "ours"
    """ours: this engine. comfyui: ComfyUI's own node"""
    full_size_rate: float
    """learning rate that its files set for a full-size model"""
    rates: tuple[float, ...] = _RATES
    """learning rates of the tiny model that are tried, ascending"""
    train: dict[str, Any] = field(default_factory=dict)
    """settings of TrainConfig that differ from the defaults"""
    lora: dict[str, Any] = field(default_factory=dict)
    """settings of LoraConfig that differ from the defaults"""
    node: dict[str, Any] = field(default_factory=dict)
    """inputs of TrainLoraNode that differ from the defaults"""
    trick: dict[str, Any] = field(default_factory=dict)
    """arguments of `bench_tricks.tricks`: what the engine has no setting for"""
    share: float = 1.0
    """of a cell's steps: a half where a step takes two clips, so that as many are seen"""

    @property
    def own_rate(self) -> float:
        """The rate of `rates` nearest to what its files set."""
        return min(self.rates, key=lambda rate: abs(rate / (SCALE * self.full_size_rate) - 1))

    @property
    def cost(self) -> float:
        """CPU seconds of a step, in those of ours."""
        if self.trainer == "comfyui":
            return 3.0
        more = self.train.get("batch_size", 1) * self.train.get("gradient_accumulation_steps", 1)
        return self.share * more * self.trick.get("draws", 1) * (2 if self.trick.get("guidance") else 1)


_CONSTANT = {"lr_scheduler": "constant"}

_ALL = (
    BenchRecipe(name="ours", full_size_rate=1e-4),
    BenchRecipe(
        name="ComfyUI",
        trainer="comfyui",
        full_size_rate=5e-4,
        rates=(1.5e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2),
    ),
    BenchRecipe(
        name="diffusion-pipe",
        full_size_rate=2e-5,
        rates=_LOWER,
        train={**_CONSTANT, "lr_warmup_steps": 100, "timestep_sampling": "sigmoid", "adam_beta2": 0.99},
        lora={"rank": 32},
    ),
    BenchRecipe(
        name="musubi",
        full_size_rate=2e-4,
        rates=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
        train={**_CONSTANT, "timestep_sampling": "shift", "discrete_flow_shift": 3.0},
        lora={"rank": 32, "alpha": 1.0},
    ),
    BenchRecipe(
        name="ai-toolkit",
        full_size_rate=1e-4,
        rates=_LOWER,
        train={
            **_CONSTANT,
            "timestep_sampling": "sigmoid",
            "weight_decay": 1e-4,
            "caption_dropout": 0.05,
            "ema_decay": 0.99,
        },
        lora={"rank": 32},
    ),
    BenchRecipe(
        name="SimpleTuner",
        full_size_rate=5e-5,
        rates=(2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3),
        train={
            "optimizer": "lion",
            "adam_beta2": 0.99,
            "weight_decay": 0.0,
            "lr_scheduler": "cosine",
            "timestep_sampling": "shift",
            "discrete_flow_shift": 3.0,
            "batch_size": 2,
            "caption_dropout": 0.1,
            "ema_decay": 0.995,
            "max_grad_norm": 0.0,
        },
        lora={"rank": 16},
    ),
    BenchRecipe(
        name="DiffSynth",
        full_size_rate=1e-4,
        rates=_LOWER,
        train={
            **_CONSTANT,
            "timestep_sampling": "uniform",
            "discrete_flow_shift": 5.0,
            "loss_weighting": "bell",
            "max_grad_norm": 0.0,
        },
        lora={"rank": 32},
    ),
)
RECIPES = {recipe.name: recipe for recipe in _ALL}
