"""The settings of a training run, under the names users know from other trainers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from ..cache import BUCKET_SAMPLINGS
from ..config import Config, nearest, setting
from ..errors import ConfigError
from ..flow import EVALUATION_TIMESTEPS, TIMESTEP_SAMPLINGS
from ..model import ACTIVATIONS, POLICIES, Policy
from ..placement import Recomputing

__all__ = ["TrainConfig", "earlier_meanings"]

OPTIMIZERS = (
    *("adamw", "adamw8bit", "adamw4bit", "adamwfp8", "adafactor", "muon", "lion", "prodigy", "schedule_free", "came"),
    "custom",
)
"""`train/optimizers.py` says what they are"""

_NAME_A_CLASS = "Name the class, such as pytorch_optimizer.Adan."

_FORMER_DEFAULTS: dict[str, Any] = {"discrete_flow_shift": 3.0, "lr_scheduler": "constant"}
"""The defaults of earlier versions. A run begun with one keeps it; since then the model decides about the shift, and
the learning rate falls."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """Everything the loop needs besides model, LoRA and data."""

    steps: int = setting(1500, "Optimizer steps of the whole run. Raise it later to train on.", low=1, high=10_000_000)
    learning_rate: float = setting(
        1e-4,
        "How far one optimizer step moves the LoRA. 1e-4 is usual; sensible from 5e-5 to 3e-4.",
        low=0.0,
        high=10.0,
        offered=(0.0, 1.0),
        step=1e-6,
    )
    batch_size: int = setting(1, "Clips per forward pass, all of one size. More takes more memory.", low=1, high=1024)
    gradient_accumulation_steps: int = setting(
        1,
        "Forward and backward passes per optimizer step: as a larger batch, without its memory.",
        low=1,
        high=4096,
    )
    optimizer: str = setting(
        "adamw",
        "adamw: PyTorch's AdamW. adamw8bit, adamw4bit, adamwfp8: with small moments; need torchao. adafactor, muon: "
        "PyTorch's. lion: a third of AdamW's learning_rate. prodigy: finds the rate itself; learning_rate 1. "
        "schedule_free: with lr_scheduler constant. came: as AdamW, less memory. These four need pytorch-optimizer. "
        "custom: what optimizer_class names.",
        choices=OPTIMIZERS,
    )
    weight_decay: float = setting(
        0.01,
        "Pull of the LoRA weights towards zero at every optimizer step, times the learning rate. 0 = none.",
        low=0.0,
        high=10.0,
        step=0.001,
    )
    adam_beta1: float = setting(
        0.9,
        "Memory of Adam's mean gradient: 0.9 is about the last 10 optimizer steps.",
        low=0.0,
        high=0.9999999,
        offered=(0.0, 0.9999),
        step=0.001,
    )
    adam_beta2: float = setting(
        0.999,
        "Memory of Adam's mean squared gradient: 0.999 is about the last 1000 optimizer steps.",
        low=0.0,
        high=0.9999999,
        offered=(0.0, 0.99999),
        step=0.001,
    )
    adam_epsilon: float = setting(
        1e-8,
        "Added to the denominator of Adam, so that it is never 0.",
        low=0.0,
        high=1.0,
        offered=(1e-9, 1.0),
        step=1e-9,
    )
    optimizer_class: str = setting(
        "", "custom: any optimizer that is installed, as module.Class, such as pytorch_optimizer.Adan."
    )
    optimizer_args: str = setting(
        "",
        "What else the optimizer is given: key=value by commas, such as betas=(0.9, 0.99), eps=1e-8. Empty: nothing.",
    )
    loraplus_lr_ratio: float = setting(
        1.0,
        "LoRA+: so many times the learning rate for the second matrix (B) of each pair. 1 = off; 16 is usual.",
        low=0.001,
        high=10_000.0,
        offered=(0.001, 1000.0),
        step=0.5,
    )
    max_grad_norm: float = setting(1.0, "Longer gradients are scaled down to this norm. 0 = off.", low=0.0, high=1e9)
    lr_scheduler: str = setting(
        "cosine",
        "Course of the learning rate after warm-up. cosine: down to 0 along a cosine, which learns best. linear: "
        "straight down. polynomial: by a power. rex: late and steep. cosine_with_restarts: several times. wsd: stays, "
        "and falls at the end. constant: stays, for runs that will be made longer later.",
        choices=("constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "rex", "wsd"),
    )
    """falling to 0 learnt best by far (docs/learning_recipes.md)"""
    lr_warmup_steps: int = setting(
        0,
        "Optimizer steps in which the learning rate rises from 0 to its full value. 0 = no warm-up.",
        low=0,
        high=10_000_000,
    )
    lr_warmup_share: float = setting(
        0.0,
        "The same as a share of the run (0 to 1), instead of lr_warmup_steps. 0 = what lr_warmup_steps says.",
        low=0.0,
        high=0.999,
        offered=(0.0, 0.9),
    )
    lr_scheduler_num_cycles: int = setting(
        3, "cosine_with_restarts: so many times the learning rate falls.", low=1, high=1000
    )
    lr_scheduler_power: float = setting(
        2.0, "polynomial: the power of the course. 1 is a straight line; higher falls earlier.", low=0.01, high=100.0
    )
    lr_scheduler_min_lr_ratio: float = setting(
        0.0,
        "Share of the learning rate (0 to 1) that the schedule falls to. 0 = it falls to 0.",
        low=0.0,
        high=1.0,
    )
    lr_decay_share: float = setting(
        0.2, "wsd: share of the run (0 to 1), at its end, in which the learning rate falls.", low=0.0, high=1.0
    )
    lr_scaling: str = setting(
        "none",
        "Learning rate by batch: times the clips per optimizer step (batch size x accumulation x GPUs). linear: times "
        "them. sqrt: times their root, usual for Adam. none: as given.",
        choices=("none", "linear", "sqrt"),
    )
    timestep_sampling: str = setting(
        "shift",
        "Which noise levels are trained. shift: logistic-normal, then the training shift. sigmoid: without "
        "the shift. uniform: all alike.",
        choices=TIMESTEP_SAMPLINGS,
    )
    discrete_flow_shift: float = setting(
        0.0,
        "Training shift: higher trains more on high noise. 0 = the model's: 12 for 2.2 T2V-A14B, 5 for 2.2 "
        "I2V-A14B and 2.2 TI2V-5B, 3 for the others. The sampling shift is another number.",
        low=0.0,
        high=1000.0,
    )
    """the model's own is `WanVariant.training_shift`"""
    sigmoid_scale: float = setting(
        1.0,
        "Width of the logistic-normal draw of shift and sigmoid. Above 1.0: more of very low and very high noise.",
        low=0.01,
        high=100.0,
    )
    caption_dropout: float = setting(
        0.0,
        "Share of captions (0 to 1) replaced by the empty prompt, so that guidance without a prompt is trained too.",
        low=0.0,
        high=1.0,
    )
    gradient_checkpointing: bool = setting(
        True, "Recompute blocks in the backward pass: a third more compute, a fraction of the memory."
    )
    expert: str = setting(
        "auto",
        "Wan 2.2 A14B: which of the two models is trained. With both files loaded, high or low, one run "
        "each. auto: the one loaded, as its name says.",
        choices=("auto", "high", "low"),
    )
    """decides the range of noise levels"""
    seed: int = setting(
        0,
        "Seed of the start weights, the noise and the order of clips. Never changes by itself.",
        offered=(0, 2**63 - 1),
    )
    save_every_n_steps: int = setting(250, "Optimizer steps from one saved step to the next.", low=1, high=10_000_000)
    preview_every_n_steps: int = setting(
        250, "Optimizer steps between preview clips. 0 = none.", low=0, high=10_000_000
    )
    eval_items: int = setting(
        4, "Clips whose loss is measured at every save, always with the same noise. 0 = none.", low=0, high=1000
    )
    eval_every_n_steps: int = setting(
        0,
        "Optimizer steps from one such measurement to the next, besides those at every save. 0 = at saves alone.",
        low=0,
        high=10_000_000,
    )
    eval_timesteps: tuple[float, ...] = setting(
        EVALUATION_TIMESTEPS,
        "Noise levels (0 to 1000) at which that loss is measured. For an expert the usual four are spread "
        "over its own range.",
    )
    save_dtype: str = setting(
        "bf16",
        "Number format of the LoRA file. The state to resume from is always float32.",
        choices=("bf16", "fp16", "fp32"),
    )
    max_bad_steps: int = setting(
        10,
        "So many optimizer steps in a row without a finite loss and gradient end the run.",
        low=1,
        high=1_000_000,
    )
    first_frame_conditioning_p: float = setting(
        0.5,
        "TI2V-5B only: share of clips trained as image-to-video, the others as text-to-video. 0.5 serves "
        "both, 0 is text-to-video alone, 1 image-to-video alone.",
        low=0.0,
        high=1.0,
    )
    """image-to-video: the first latent frame is given clean, and the loss is on the rest"""
    # batches
    bucket_sampling: str = setting(
        "proportional",
        "proportional: every clip equally often. balanced: every size equally often, so clips of rare "
        "sizes come up more.",
        choices=BUCKET_SAMPLINGS,
    )
    prefetch_batches: int = setting(
        2, "Micro-batches read ahead while one is trained; 0 = none. Changes nothing but the time.", low=0, high=64
    )
    compile: bool = setting(
        False,
        "Compile what blocks compute (torch.compile): the first steps take a minute longer, later ones less time. On a "
        "GPU it needs triton.",
    )
    # memory against time; none of it changes a number
    checkpointing_policy: str = setting(
        "auto",
        "What gradient checkpointing keeps of a block besides its input. auto: attn_output if it fits. full: nothing. "
        "attn_output: what attention returns, so that it is computed once. matmul_without_batch: the result of every "
        "linear; with offload_ in host memory. custom: what the two lists below name.",
        choices=("auto", *POLICIES, "custom"),
    )
    checkpointing_names_saved: tuple[str, ...] = setting(
        (),
        "custom: activations kept on the GPU, such as attn_output, query_proj, key_proj, value_proj, "
        "xq_out, xk_out, self_attn, cross_attn, ffn_activation, hidden_states.",
    )
    checkpointing_names_offloaded: tuple[str, ...] = setting(
        (), "custom: activations kept in host memory, by the same names."
    )
    unchecked_blocks: int = setting(
        0,
        "So many of the last blocks keep all of their activations, where memory is left; 0 = none. Each saves the time "
        "of its own recomputation.",
        low=0,
        high=1000,
        offered=(0, 64),
    )

    memory: str = setting(
        "auto",
        "auto: before the run begins it is worked out what fits, and the cheapest measures are taken. manual: what "
        "offload_activations and blocks_to_swap say, and nothing is refused.",
        choices=("auto", "manual"),
    )
    offload_activations: str = setting(
        "auto",
        "Whether what gradient checkpointing keeps rests in the computer's own memory between the passes. auto: where "
        "it is needed to fit.",
        choices=("auto", "on", "off"),
    )
    blocks_to_swap: int = setting(
        -1,
        "So many blocks of the model rest in the computer's own memory and travel to the GPU when they run. -1: as "
        "few as are needed to fit. 0: none.",
        low=-1,
        high=1000,
        offered=(-1, 100),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.discrete_flow_shift < 0.01:
            raise ConfigError(f"discrete_flow_shift {self.discrete_flow_shift} is too small. Use 0 or 0.01 to 1000.")
        for timestep in self.eval_timesteps:
            if not 0 <= timestep <= 1000:
                raise ConfigError(f"eval_timesteps {timestep} is out of range. Use 0 to 1000.")
        for name in ("checkpointing_names_saved", "checkpointing_names_offloaded"):
            for activation in getattr(self, name):
                if activation not in ACTIVATIONS:
                    raise ConfigError(f'{name} has "{activation}".{nearest(activation, list(ACTIVATIONS))}')
            if getattr(self, name) and self.checkpointing_policy != "custom":
                raise ConfigError(
                    f"{name} is read only where checkpointing_policy is custom, and it is "
                    f'"{self.checkpointing_policy}". Set checkpointing_policy to custom, or empty the list.'
                )
        if self.blocks_to_swap > 0 and (self.unchecked_blocks or not self.gradient_checkpointing):
            which = "unchecked_blocks 0" if self.gradient_checkpointing else "gradient_checkpointing"
            raise ConfigError(
                f"blocks_to_swap is {self.blocks_to_swap}, and a block whose activations are kept cannot travel. Set "
                f"{which}, or blocks_to_swap to 0."
            )
        if self.keeps.offloaded and self.offload_activations == "off":
            raise ConfigError(
                f'checkpointing_policy "{self.checkpointing_policy}" keeps activations in host memory, and '
                "offload_activations is off. Set it to auto, or choose another policy."
            )
        if self.compile and self.keeps:
            raise ConfigError(
                f'compile does not go with checkpointing_policy "{self.checkpointing_policy}": a compiled block has no '
                "activations to name. Set checkpointing_policy to full, or turn compile off."
            )
        self._check_optimizer()
        if self.lr_warmup_steps and self.lr_warmup_share:
            raise ConfigError(
                f"lr_warmup_steps is {self.lr_warmup_steps} and lr_warmup_share {self.lr_warmup_share:g}, and both say "
                "how long warm-up is. Set one of them to 0."
            )
        if self.warmup >= self.steps:
            raise ConfigError(
                f"lr_warmup_steps {self.warmup} is not below steps {self.steps}, so the learning rate would "
                "never be reached. Set it to a tenth of steps, or 0."
            )

    def _check_optimizer(self) -> None:
        """Refuse settings of an optimizer that contradict each other; which exist, `state_bytes` tells."""
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
        if self.optimizer == "prodigy" and self.loraplus_lr_ratio != 1:
            raise ConfigError(
                f"loraplus_lr_ratio is {self.loraplus_lr_ratio:g}, and optimizer prodigy has one learning rate for "
                "all weights. Set loraplus_lr_ratio to 1."
            )

    @property
    def warmup(self) -> int:
        """The optimizer steps of warm-up, however they were given."""
        return self.lr_warmup_steps or round(self.lr_warmup_share * self.steps)

    @property
    def keeps(self) -> Policy:
        """What checkpointing keeps of a block besides its input; nothing as long as nobody has chosen (auto)."""
        if self.checkpointing_policy != "custom":
            return POLICIES.get(self.checkpointing_policy, Policy())
        return Policy(frozenset(self.checkpointing_names_saved), frozenset(self.checkpointing_names_offloaded))

    @property
    def recomputing(self) -> Recomputing:
        """What the backward pass computes again."""
        return Recomputing(blocks=self.gradient_checkpointing, policy=self.keeps, unchecked=self.unchecked_blocks)


def earlier_meanings(train: TrainConfig, left_out: Collection[str]) -> list[TrainConfig]:
    """What `train`, whose maker left the settings `left_out` to their defaults, meant to this version and to each
    earlier one; this version's meaning is first."""
    meanings = [train]
    for name, former in _FORMER_DEFAULTS.items():
        if name in left_out:
            meanings += [replace(meaning, **{name: former}) for meaning in meanings]
    return meanings
