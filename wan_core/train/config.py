"""The settings of a training run, under the names users know from other trainers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..cache import BUCKET_SAMPLINGS
from ..checkpoint import HIGH, LOW
from ..config import counted, nearest, setting, settings_of
from ..errors import ConfigError
from ..flow import EVALUATION_TIMESTEPS
from ..model import ACTIVATIONS, POLICIES, Policy, Route, read_routes
from ..placement import Recomputing
from .objective_config import ObjectiveConfig, objective_setting
from .recovery import LOSS_SCALINGS
from .update_config import UpdateConfig, batch_setting

EXPERTS = (HIGH, LOW)
"""experts of a pair, in sampling order; a run of both trains them in this order"""
_EXPERT_ORDERS = ("high first", "alternating")
_pair_setting = partial(setting, group="pair", counts="pair")
# The weights after a step depend on no setting of these two: offloading and recomputation return the same values,
# an evaluation changes none.
_memory_setting = partial(setting, group="memory", counts="never")
_evaluation_setting = partial(setting, group="evaluation", counts="never")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(UpdateConfig, ObjectiveConfig):
    """All settings of training except model, LoRA and data."""

    caption_dropout: float = batch_setting(
        0.0,
        "Share of captions (0 to 1) replaced by the empty prompt, so that guidance without a prompt is trained too.",
        low=0.0,
        high=1.0,
        counts="always",
    )
    gradient_checkpointing: bool = _memory_setting(
        True, "Recompute blocks in the backward pass: a third more compute, a fraction of the memory."
    )
    expert: str = counted(
        "auto",
        "Wan 2.2 A14B: which of the two models is trained. both: the two in one run. high, low: that one alone. auto: "
        "both where two files are loaded, else the one that is, as its name says.",
        choices=("auto", "both", "high", "low"),
    )
    seed: int = counted(
        0,
        "Seed of the start weights, the noise and the order of clips. Never changes by itself.",
        offered=(0, 2**63 - 1),
    )
    save_every_n_steps: int = _evaluation_setting(
        250, "Optimizer steps from one saved step to the next.", low=1, high=10_000_000
    )
    preview_every_n_steps: int = _evaluation_setting(
        250, "Optimizer steps between preview clips. 0 = none.", low=0, high=10_000_000
    )
    eval_items: int = _evaluation_setting(
        4, "Clips whose loss is measured at every save, always with the same noise. 0 = none.", low=0, high=1000
    )
    keep_last_saves: int = _evaluation_setting(
        0,
        "So many of the newest saved steps stay, and the best one; older ones go with their resume state. LoRAs "
        "already in the loader lists stay. 0 = all stay.",
        low=0,
        high=100_000,
    )
    eval_every_n_steps: int = _evaluation_setting(
        0,
        "Optimizer steps from one such measurement to the next, besides those at every save. 0 = at saves alone.",
        low=0,
        high=10_000_000,
    )
    eval_timesteps: tuple[float, ...] = _evaluation_setting(
        EVALUATION_TIMESTEPS,
        "Noise levels (0 to 1000) at which that loss is measured. For an expert the usual four are spread "
        "over its own range.",
    )
    save_dtype: str = _evaluation_setting(
        "bf16",
        "Dtype of the LoRA file. The state to resume from is always float32.",
        choices=("bf16", "fp16", "fp32"),
    )
    max_bad_steps: int = batch_setting(
        10,
        "So many optimizer steps in a row without a finite loss and gradient end the run.",
        low=1,
        high=1_000_000,
        counts="never",
    )
    first_frame_conditioning_p: float = batch_setting(
        0.5,
        "TI2V-5B only: share of clips trained as image-to-video, the others as text-to-video. 0.5 serves "
        "both, 0 is text-to-video alone, 1 image-to-video alone.",
        low=0.0,
        high=1.0,
    )
    """image-to-video: the first latent frame is given clean, the loss covers the other frames"""
    # batches
    bucket_sampling: str = batch_setting(
        "proportional",
        "proportional: every clip equally often. balanced: every size equally often, so clips of rare "
        "sizes come up more.",
        choices=BUCKET_SAMPLINGS,
    )
    prefetch_batches: int = _memory_setting(
        2, "Micro-batches read ahead while one is trained; 0 = none. Changes nothing but the time.", low=0, high=64
    )
    compile: bool = _memory_setting(
        False,
        "Compile what blocks compute (torch.compile): the first steps take a minute longer, later ones less time. On a "
        "GPU it needs triton.",
        counts="changed",
    )
    # memory against time; none of it changes a number
    checkpointing_policy: str = _memory_setting(
        "auto",
        "What gradient checkpointing keeps of a block besides its input. auto: attn_output if it fits. full: nothing. "
        "attn_output: what attention returns, so that it is computed once. matmul_without_batch: the result of every "
        "linear; with offload_ in host memory. custom: what the two lists below name.",
        choices=("auto", *POLICIES, "custom"),
    )
    checkpointing_names_saved: tuple[str, ...] = _memory_setting(
        (),
        "custom: activations kept on the GPU, such as attn_output, query_proj, key_proj, value_proj, "
        "xq_out, xk_out, self_attn, cross_attn, ffn_activation, hidden_states.",
    )
    checkpointing_names_offloaded: tuple[str, ...] = _memory_setting(
        (), "custom: activations kept in host memory, by the same names."
    )
    unchecked_blocks: int = _memory_setting(
        0,
        "So many of the last blocks keep all of their activations, where memory is left; 0 = none. Each saves the time "
        "of its own recomputation.",
        low=0,
        high=1000,
        offered=(0, 64),
    )

    profile_steps: int = _memory_setting(
        0,
        "So many optimizer steps are profiled by torch, a trace of every operator for Perfetto or chrome://tracing; on "
        "a GPU the memory of one more is recorded. Both lie in the folder profile of the run. 0 = none.",
        low=0,
        high=10,
    )
    profile_skip_steps: int = _memory_setting(
        1,
        "Optimizer steps of a queue before those that profile_steps profiles: the first ones compile and allocate.",
        low=0,
        high=10_000_000,
    )
    memory: str = _memory_setting(
        "auto",
        "auto: before the run begins it is worked out what fits, and the cheapest measures are taken. manual: what "
        "offload_activations and blocks_to_swap say, and nothing is refused.",
        choices=("auto", "manual"),
    )
    offload_activations: str = _memory_setting(
        "auto",
        "Whether what gradient checkpointing keeps rests in the computer's own memory between the passes. auto: where "
        "it is needed to fit.",
        choices=("auto", "on", "off"),
    )
    offload_optimizer: bool = _memory_setting(
        False,
        "The optimizer keeps its state in the computer's own memory and steps there: 8 bytes less of the GPU for each "
        "LoRA value with AdamW. Weights and gradients travel once a step.",
    )
    blocks_to_swap: int = _memory_setting(
        -1,
        "So many blocks of the model rest in the computer's own memory and travel to the GPU when they run. -1: as "
        "few as are needed to fit. 0: none.",
        low=-1,
        high=1000,
        offered=(-1, 100),
    )
    # both experts of a pair in one run
    high_noise_share: float = _pair_setting(
        0.5,
        "Where both experts are trained: the share of the steps (0 to 1) of the high noise expert.",
        low=0.01,
        high=0.99,
        step=0.05,
    )
    expert_order: str = _pair_setting(
        "high first",
        "Where both experts are trained. high first: all steps of the high noise expert, then those of the other. "
        "alternating: in turns, so that both are of use early; models change at each turn.",
        choices=_EXPERT_ORDERS,
    )
    expert_turn_steps: int = _pair_setting(
        100,
        "Where experts alternate: optimizer steps of a turn, on average; high_noise_share makes one longer, the other "
        "shorter.",
        low=1,
        high=1_000_000,
    )
    low_noise_learning_rate: float = _pair_setting(
        0.0,
        "Where both experts are trained: learning rate of the low noise expert. 0 = learning_rate, as the other.",
        low=0.0,
        high=10.0,
        offered=(0.0, 1.0),
        step=1e-6,
    )
    low_noise_rank: int = _pair_setting(
        0,
        "Where both experts are trained: rank of the low noise expert's LoRA. 0 = rank, as the other's.",
        low=0,
        high=1024,
    )

    tread_routes: str = objective_setting(
        "",
        "TREAD: a share of the tokens passes by layers while it is trained, which saves their time. 0.5: 2..-2 is half "
        "of them, layer 2 to the last but one; several by semicolons, or SimpleTuner's JSON. Evaluation and previews "
        "see all. Empty: off.",
    )
    loss_scaling: str = objective_setting(
        "off",
        "For base_precision fp16, which loses small gradients. dynamic: the loss is scaled up before the backward "
        "pass, as far as fits, and the gradients down again. off: neither.",
        choices=LOSS_SCALINGS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        read_routes(self.tread_routes)
        if self.max_train_hours and self.expert == "both" and self.expert_order != "alternating":
            raise ConfigError(
                f"max_train_hours is {self.max_train_hours:g}, and expert_order {self.expert_order}: the hours could "
                "end before the low noise expert has begun. Set expert_order to alternating, or max_train_hours to 0."
            )
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

    def identity(self) -> dict[str, Any]:
        """Returns the settings that decide the weights after a step; settings of a pair only with expert "both"."""
        # A widget of the pair must not start another run of one model: there it changes no weight.
        train = self if self.expert == "both" else self.alone()
        return super(TrainConfig, train).identity()

    def alone(self, **changes: Any) -> TrainConfig:
        """Returns the settings of a run of one model, with `changes`; settings of a pair are at their defaults."""
        pair = {name: one.default for name, one in settings_of(TrainConfig).items() if one.counts == "pair"}
        return replace(self, **pair, **changes)

    @property
    def expert_name(self) -> str:
        """The trained model: high_noise, low_noise, both, or auto where only the file's name says which."""
        return expert_named(self.expert)

    @property
    def experts(self) -> tuple[str, ...]:
        """The models that a run trains: both of a pair, else `expert_name`."""
        return EXPERTS if self.expert == "both" else (self.expert_name,)

    @property
    def routes(self) -> tuple[Route, ...]:
        """TREAD routes: the layers that a share of the tokens skips."""
        return read_routes(self.tread_routes)

    @property
    def keeps(self) -> Policy:
        """Activations that checkpointing keeps besides a block's input; none while the policy is auto."""
        if self.checkpointing_policy != "custom":
            return POLICIES.get(self.checkpointing_policy, Policy())
        return Policy(frozenset(self.checkpointing_names_saved), frozenset(self.checkpointing_names_offloaded))

    @property
    def recomputing(self) -> Recomputing:
        """Recomputation in the backward pass."""
        return Recomputing(blocks=self.gradient_checkpointing, policy=self.keeps, unchecked=self.unchecked_blocks)


def expert_named(setting: str) -> str:
    """Returns the code's name of an expert, high_noise, for the setting's, events' and run.json's, high."""
    return f"{setting}_noise" if setting in ("high", "low") else setting


def expert_setting(name: str) -> str:
    """Returns the inverse of `expert_named`: high for high_noise."""
    return name.removesuffix("_noise")
