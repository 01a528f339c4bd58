"""Settings of the update: batch, optimizer, learning rate schedule."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, partial

from ..config import Config, counted, setting
from ..errors import ConfigError
from ..patterns import matching

_NAME_A_CLASS = "Name the class, such as pytorch_optimizer.Adan."

batch_setting = partial(setting, group="batch")
_optimizer_setting = partial(setting, group="optimizer")
_schedule_setting = partial(setting, group="schedule")


@dataclass(frozen=True, kw_only=True)
class UpdateConfig(Config):
    """The part of the train settings on length, batch, optimizer and schedule."""

    steps: int = setting(
        1500,
        "Optimizer steps of the complete run. 1500 suits 10 to 30 clips. Raise it when previews still improve: Run "
        "then resumes, also after the run has ended.",
        within=(1, 10_000_000),
        counts="never",
    )
    learning_rate: float = counted(
        1e-4,
        "Learning rate: how far one optimizer step moves the LoRA. 0 = auto: the usual one of the optimizer, 1e-4 for "
        "AdamW. Lower it when previews break, raise it when they hardly change: 5e-5 to 3e-4 is sensible.",
        within=(0.0, 10.0),
        offered=(0.0, 1.0),
        step=1e-6,
    )
    batch_size: int = batch_setting(
        1,
        "Number of clips per forward pass, all of one size. A larger batch needs more memory. Raise it when the GPU "
        "has memory left.",
        within=(1, 1024),
        counts="always",
    )
    gradient_accumulation_steps: int = batch_setting(
        1,
        "Gradient accumulation: forward and backward passes per optimizer step. It acts like a larger batch, without "
        "its memory. Raise it for steadier steps when memory is short.",
        within=(1, 4096),
        counts="always",
    )
    optimizer: str = _optimizer_setting(
        "adamw",
        "The optimizer. adamw: PyTorch's AdamW. adamw8bit, adamw4bit, adamwfp8: with quantized state; these need "
        "torchao. adafactor, muon: PyTorch's. lion, prodigy, schedule_free, came: from pytorch-optimizer; came needs "
        "less memory. Set learning_rate to 100 times AdamW's for adafactor, a third for lion, a tenth for came, and 1 "
        "for prodigy, which finds the rate itself. schedule_free needs lr_scheduler constant. bnb_adamw8bit, "
        "bnb_paged_adamw8bit, bnb_lion8bit: bitsandbytes. custom: the class in optimizer_class. Change it to adamw8bit "
        "when memory is short.",
        choices=(
            *("adamw", "adamw8bit", "adamw4bit", "adamwfp8", "adafactor", "muon", "lion", "prodigy", "schedule_free"),
            *("came", "custom", "bnb_adamw8bit", "bnb_paged_adamw8bit", "bnb_lion8bit"),
        ),
        counts="always",
    )
    """classes in `optimizer_classes.py`"""
    weight_decay: float = _optimizer_setting(
        0.01,
        "Weight decay: how strongly each optimizer step pulls the LoRA weights towards zero, times the learning rate. "
        "0 = none. Raise it when the LoRA overfits.",
        within=(0.0, 10.0),
        step=0.001,
        counts="always",
    )
    adam_beta1: float = _optimizer_setting(
        0.9,
        "Adam's decay of the mean gradient: 0.9 averages about the last 10 optimizer steps. Lower it to react faster "
        "to new gradients.",
        within=(0.0, 0.9999999),
        offered=(0.0, 0.9999),
        step=0.001,
        counts="always",
    )
    adam_beta2: float = _optimizer_setting(
        0.999,
        "Adam's decay of the mean squared gradient: 0.999 averages about the last 1000 optimizer steps. Lower it for "
        "runs of a few hundred steps.",
        within=(0.0, 0.9999999),
        offered=(0.0, 0.99999),
        step=0.001,
        counts="always",
    )
    adam_epsilon: float = _optimizer_setting(
        1e-8,
        "Small value added to Adam's denominator, so that it is never 0. Change it only to match another trainer.",
        within=(0.0, 1.0),
        offered=(1e-9, 1.0),
        step=1e-9,
        counts="always",
    )
    optimizer_class: str = _optimizer_setting(
        "",
        "For optimizer custom: a class of torch.optim, torchao.optim, bitsandbytes.optim, pytorch_optimizer, "
        "prodigyopt or schedulefree, such as pytorch_optimizer.Adan.",
    )
    optimizer_args: str = _optimizer_setting(
        "",
        "More optimizer arguments: key=value, separated by commas, such as betas=(0.9, 0.99), eps=1e-8. Empty: none. "
        "Set it for arguments that have no widget.",
    )
    loraplus_lr_ratio: float = _optimizer_setting(
        1.0,
        "LoRA+: factor of the learning rate for the second matrix (B) of each pair. 1 = off; 16 is usual. Raise it "
        "when the loss falls too slowly.",
        within=(0.001, 10_000.0),
        offered=(0.001, 1000.0),
        step=0.5,
    )
    lr_patterns: tuple[str, ...] = _schedule_setting(
        (),
        "Other learning rates for some layers, one per line: expression = factor of the learning rate. The first match "
        "counts; LoRA+ and the rate of an expert still apply. Empty: one rate for all. Set it when some layers should "
        "learn faster or slower.",
    )
    max_grad_norm: float = _optimizer_setting(
        1.0,
        "Gradient clipping: gradients with a larger norm are scaled down to this norm. 0 = off. Lower it when the loss "
        "jumps.",
        within=(0.0, 1e9),
        counts="always",
    )
    max_grad_value: float = _optimizer_setting(
        0.0,
        "Gradient clipping by value: each value of a gradient is limited to plus or minus this, after max_grad_norm. "
        "0 = off. Set it, with max_grad_norm 0, to match a trainer that clips by value.",
        within=(0.0, 1e9),
    )
    lr_scheduler: str = _schedule_setting(
        "cosine",
        "Schedule of the learning rate after warm-up. cosine: falls to 0 along a cosine, learns best. linear: a "
        "straight line to 0. polynomial: by a power. rex: late and steep. cosine_with_restarts: several times. wsd: "
        "constant, with a fall at the end. constant: for runs that you extend later.",
        choices=("constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "rex", "wsd"),
        counts="always",
    )
    """a schedule to 0 gives the best loss by far (benchmarks/results/learning_recipes_CPU_2026-11.md)"""
    lr_warmup_steps: int = _schedule_setting(
        0,
        "Optimizer steps of warm-up, over which the learning rate rises from 0 to its full value. 0 = no warm-up. "
        "Raise it when the loss jumps at the start.",
        within=(0, 10_000_000),
        counts="always",
    )
    lr_warmup_share: float = _schedule_setting(
        0.0,
        "Warm-up as a share of the run (0 to 1), instead of lr_warmup_steps. 0 = lr_warmup_steps is used. Set it when "
        "you often change the number of steps.",
        within=(0.0, 0.999),
        offered=(0.0, 0.9),
    )
    lr_scheduler_num_cycles: int = _schedule_setting(
        3,
        "For lr_scheduler cosine_with_restarts: number of cycles in which the learning rate falls. Raise it for more "
        "restarts.",
        within=(1, 1000),
    )
    lr_scheduler_power: float = _schedule_setting(
        2.0,
        "For lr_scheduler polynomial: the power of the curve. 1 is a straight line. Raise it for an earlier fall.",
        within=(0.01, 100.0),
    )
    lr_scheduler_min_lr_ratio: float = _schedule_setting(
        0.0,
        "Final learning rate as a share of learning_rate (0 to 1). 0 = it falls to 0. Raise it to keep learning until "
        "the end.",
        within=(0.0, 1.0),
    )
    lr_decay_share: float = _schedule_setting(
        0.2,
        "For lr_scheduler wsd: final share of the run (0 to 1) in which the learning rate falls. Raise it for a longer "
        "fall.",
        within=(0.0, 1.0),
    )
    lr_scaling: str = _schedule_setting(
        "none",
        "Scales the learning rate by the clips per optimizer step (batch size x accumulation x GPUs). linear: times "
        "that number. sqrt: times its square root, usual for Adam. none: as set. Change it to keep one learning_rate "
        "for several batch sizes.",
        choices=("none", "linear", "sqrt"),
    )
    max_train_epochs: int = batch_setting(
        0,
        "Length of the run in epochs (passes over all clips), instead of steps. When both experts are trained, the "
        "length of each. 0 = steps is used. Set it when you compare runs on datasets of different size.",
        within=(0, 1_000_000),
        counts="never",
    )
    max_train_hours: float = batch_setting(
        0.0,
        "Time limit in hours: the run is saved and finished then, unless its steps are done earlier. All sessions of "
        "the run count, without encoding. 0 = no limit. Set it on a rented GPU.",
        within=(0.0, 100_000.0),
        step=0.5,
        counts="never",
    )
    global_batch_size: int = batch_setting(
        0,
        "Clips per optimizer step over all GPUs. Replaces gradient_accumulation_steps, which becomes this / "
        "(batch_size x GPUs). 0 = not used. Set it when the number of GPUs changes.",
        within=(0, 1_000_000),
        counts="never",
    )
    ema_decay: float = _optimizer_setting(
        0.0,
        "EMA (exponential moving average) of the LoRA weights. The average is saved, evaluated and previewed. 0.99 "
        "averages about the last 100 optimizer steps. 0 = off. Set it when saved steps differ much from each other.",
        within=(0.0, 0.999999),
        offered=(0.0, 0.9999),
        step=0.001,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_optimizer()
        _ = self.rates  # raises for a line without a factor
        if self.lr_warmup_steps and self.lr_warmup_share:
            raise ConfigError(
                f"lr_warmup_steps is {self.lr_warmup_steps} and lr_warmup_share {self.lr_warmup_share:g}, and both "
                "set the length of warm-up. Set one of them to 0."
            )
        if not self.max_train_epochs:  # epochs become steps only once the clips are known
            self.check_warmup()

    def check_warmup(self) -> None:
        """Raises ConfigError if warm-up lasts as long as the run."""
        if self.warmup >= self.steps:
            raise ConfigError(
                f"lr_warmup_steps {self.warmup} is not below steps {self.steps}, so the learning rate would "
                "never be reached. Set it to a tenth of steps, or 0."
            )

    def _check_optimizer(self) -> None:
        """Raises ConfigError for optimizer settings that contradict each other; `state_bytes` checks availability."""
        if bool(self.optimizer_class) != (self.optimizer == "custom"):
            raise ConfigError(
                f'optimizer_class is "{self.optimizer_class[:80]}" and optimizer is {self.optimizer}. '
                + ("Empty optimizer_class, or set optimizer to custom." if self.optimizer_class else _NAME_A_CLASS)
            )
        if self.optimizer == "schedule_free" and self.lr_scheduler != "constant":
            raise ConfigError(
                f"optimizer schedule_free replaces the schedule, and lr_scheduler is {self.lr_scheduler}. Set "
                "lr_scheduler to constant."
            )
        if self.optimizer == "schedule_free" and self.ema_decay:
            raise ConfigError(
                f"ema_decay is {self.ema_decay:g}, and optimizer schedule_free has its own average. Set ema_decay to 0."
            )
        if self.optimizer == "prodigy" and (self.loraplus_lr_ratio != 1 or self.lr_patterns):
            which, usual = ("lr_patterns", "nothing") if self.lr_patterns else ("loraplus_lr_ratio", "1")
            said = "set" if self.lr_patterns else f"{self.loraplus_lr_ratio:g}"
            raise ConfigError(
                f"{which} is {said}, and optimizer prodigy has one learning rate for all weights. Set {which} to "
                f"{usual}."
            )

    def check_grammar(self) -> None:
        """Raises ConfigError if a pattern of `lr_patterns` is no regular expression; `__post_init__` does not."""
        matching([pattern for pattern, _ in self.rates], (), "lr_patterns", whole=True)

    @cached_property
    def rates(self) -> list[tuple[str, float]]:
        """Pattern and factor of each line of `lr_patterns`."""
        return [_rated(line) for line in self.lr_patterns]

    @property
    def warmup(self) -> int:
        """Warm-up in optimizer steps, from either setting."""
        return self.lr_warmup_steps or round(self.lr_warmup_share * self.steps)


def _rated(line: str) -> tuple[str, float]:
    """Returns pattern and factor of a line such as `blocks\\.0\\..* = 0.5`."""
    pattern, _, number = line.rpartition("=")
    try:
        factor = float(number)
    except ValueError:
        factor = 0.0
    if not pattern.strip() or not re.fullmatch(r"[\s\d.e+-]+", number) or not 1e-6 <= factor <= 1e6:
        raise ConfigError(
            rf'lr_patterns "{line[:80]}" is not an expression = factor. Example: blocks\.\d+\.ffn\..* = 0.5; factors '
            "are above 0."
        )
    return pattern.strip(), factor
