"""The settings of a training run, under the names users know from other trainers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from ..cache import BUCKET_SAMPLINGS
from ..config import Config, nearest
from ..errors import ConfigError
from ..flow import EVALUATION_TIMESTEPS, TIMESTEP_SAMPLINGS

__all__ = ["LR_SCHEDULERS", "OPTIMIZERS", "SAVE_DTYPES", "TrainConfig", "earlier_meanings"]

OPTIMIZERS = ("adamw",)
LR_SCHEDULERS = ("constant", "linear", "cosine")
SAVE_DTYPES = ("bf16", "fp16", "fp32")
_FORMER_DEFAULTS: dict[str, Any] = {"discrete_flow_shift": 3.0, "lr_scheduler": "constant"}
"""what a run got that left these to us, before the model decided about the shift, and before a falling rate was found
to learn better"""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """Everything the loop needs besides model, LoRA and data."""

    steps: int = 1500
    """optimizer steps of the whole run"""
    learning_rate: float = 1e-4
    batch_size: int = 1
    """clips per micro-step; all of one bucket"""
    gradient_accumulation_steps: int = 1
    """micro-steps per optimizer step"""
    optimizer: str = "adamw"
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    """gradients are scaled down to this norm; 0 = off"""
    lr_scheduler: str = "cosine"
    """course of the learning rate after warm-up; falling to 0 learnt best by far (docs/learning_recipes.md)"""
    lr_warmup_steps: int = 0
    """optimizer steps from 0 to the full learning rate"""
    timestep_sampling: str = "shift"
    discrete_flow_shift: float = 0.0
    """training shift; sampling has its own. 0 = the model's: `WanVariant.training_shift`"""
    sigmoid_scale: float = 1.0
    caption_dropout: float = 0.0
    """share of captions replaced by the empty prompt"""
    gradient_checkpointing: bool = True
    """recompute blocks in the backward pass: a third more compute, a fraction of the memory"""
    expert: str = "auto"
    """auto, high or low: noise range of one expert of an A14B pair"""
    seed: int = 0
    save_every_n_steps: int = 250
    preview_every_n_steps: int = 250
    """0 = no previews"""
    eval_items: int = 4
    """cached clips in the fixed-noise evaluation; 0 = none"""
    eval_timesteps: tuple[float, ...] = EVALUATION_TIMESTEPS
    """noise levels of that evaluation; the usual four are spread over the range of an expert"""
    save_dtype: str = "bf16"
    """dtype of the LoRA file; the resume state is always float32"""
    max_bad_steps: int = 10
    """non-finite steps in a row after which the run stops"""
    first_frame_conditioning_p: float = 0.5
    """TI2V-5B only: share of clips trained as image-to-video (first latent frame given clean, loss on the rest), the
    others as text-to-video. Half and half, because people use that model both ways; 0 = text-to-video, 1 = always"""
    # batches
    bucket_sampling: str = "proportional"
    """proportional: every clip as often as it repeats; balanced: equally many batches from every bucket"""
    prefetch_batches: int = 2
    """micro-batches read ahead while one is trained; 0 = none. Changes nothing but the time"""

    def __post_init__(self) -> None:
        _choice("optimizer", self.optimizer, OPTIMIZERS)
        _choice("lr_scheduler", self.lr_scheduler, LR_SCHEDULERS)
        _choice("timestep_sampling", self.timestep_sampling, TIMESTEP_SAMPLINGS)
        _choice("save_dtype", self.save_dtype, SAVE_DTYPES)
        _choice("expert", self.expert, ("auto", "high", "low"))
        _choice("bucket_sampling", self.bucket_sampling, BUCKET_SAMPLINGS)
        for name, low, high in (
            ("steps", 1, 10_000_000),
            ("batch_size", 1, 1024),
            ("gradient_accumulation_steps", 1, 4096),
            ("lr_warmup_steps", 0, 10_000_000),
            ("save_every_n_steps", 1, 10_000_000),
            ("preview_every_n_steps", 0, 10_000_000),
            ("eval_items", 0, 1000),
            ("learning_rate", 0.0, 10.0),
            ("weight_decay", 0.0, 10.0),
            ("adam_beta1", 0.0, 0.9999999),
            ("adam_beta2", 0.0, 0.9999999),
            ("adam_epsilon", 0.0, 1.0),
            ("max_grad_norm", 0.0, 1e9),
            ("sigmoid_scale", 0.01, 100.0),
            ("caption_dropout", 0.0, 1.0),
            ("max_bad_steps", 1, 1_000_000),
            ("discrete_flow_shift", 0.0, 1000.0),
            ("first_frame_conditioning_p", 0.0, 1.0),
            ("prefetch_batches", 0, 64),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} {value} is out of range. Use {low} to {high}.")
        if 0 < self.discrete_flow_shift < 0.01:
            raise ConfigError(f"discrete_flow_shift {self.discrete_flow_shift} is too small. Use 0 or 0.01 to 1000.")
        for timestep in self.eval_timesteps:
            if not 0 <= timestep <= 1000:
                raise ConfigError(f"eval_timesteps {timestep} is out of range. Use 0 to 1000.")
        if self.lr_warmup_steps >= self.steps:
            raise ConfigError(
                f"lr_warmup_steps {self.lr_warmup_steps} is not below steps {self.steps}, so the learning rate would "
                "never be reached. Set it to a tenth of steps, or 0."
            )


def earlier_meanings(train: TrainConfig, left_out: Collection[str]) -> list[TrainConfig]:
    """What `train`, whose maker left the settings `left_out` to their defaults, meant to this version and to each
    earlier one; this version's meaning is first."""
    meanings = [train]
    for name, former in _FORMER_DEFAULTS.items():
        if name in left_out:
            meanings += [replace(meaning, **{name: former}) for meaning in meanings]
    return meanings


def _choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f'{name} "{value}" is unknown.{nearest(value, list(known))}')
