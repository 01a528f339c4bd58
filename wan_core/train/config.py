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
# Settings of memory and evaluation do not change the weights: offloading and recomputation compute the same values.
_memory_setting = partial(setting, group="memory", counts="never")
_evaluation_setting = partial(setting, group="evaluation", counts="never")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(UpdateConfig, ObjectiveConfig):
    """All settings of training except model, LoRA and data."""

    caption_dropout: float = batch_setting(
        0.0,
        "Share of captions (0 to 1) replaced by the empty prompt. This trains guidance without a prompt too. Set it to "
        "0.1 when the LoRA should also work with short prompts.",
        within=(0.0, 1.0),
        counts="always",
    )
    gradient_checkpointing: bool = _memory_setting(
        True,
        "Gradient checkpointing: blocks are recomputed in the backward pass. It needs a third more compute and a "
        "fraction of the memory. Turn it off for faster steps when memory is free.",
    )
    expert: str = counted(
        "auto",
        "Wan 2.2 A14B: which of the two experts is trained. both: the two in one run. high, low: only that one. auto: "
        "both when two files are loaded, otherwise the one that the file name states. Choose one to save time and "
        "memory.",
        choices=("auto", "both", "high", "low"),
    )
    seed: int = counted(
        0,
        "Seed of the initial weights, the noise and the order of clips. It never changes by itself. Change it to "
        "repeat a run with other random numbers.",
        offered=(0, 2**63 - 1),
    )
    save_every_n_steps: int = _evaluation_setting(
        250,
        "Optimizer steps between saved steps (checkpoints). Lower it to choose from more of them; each takes disk "
        "space.",
        within=(1, 10_000_000),
    )
    save_every_n_epochs: int = _evaluation_setting(
        0,
        "Epochs (passes over all clips) between saved steps (checkpoints), instead of save_every_n_steps. 0 = "
        "save_every_n_steps is used. Set it when you compare datasets of different size.",
        within=(0, 1_000_000),
    )
    save_every_n_minutes: float = _evaluation_setting(
        0.0,
        "Minutes between saved steps (checkpoints), in addition to save_every_n_steps. 0 = off. Set it on a computer "
        "that may be switched off.",
        within=(0.0, 100_000.0),
    )
    preview_every_n_steps: int = _evaluation_setting(
        250,
        "Optimizer steps between preview clips. 0 = no previews. Raise it when previews take too much time.",
        within=(0, 10_000_000),
    )
    eval_items: int = _evaluation_setting(
        4,
        "Validation: number of clips whose loss is measured at every save, always with the same noise. 0 = none. Raise "
        "it for a more exact loss; each clip takes time.",
        within=(0, 1000),
    )
    keep_last_saves: int = _evaluation_setting(
        0,
        "Number of newest saved steps (checkpoints) to keep, plus the best one; older ones are deleted with their "
        "resume state. LoRAs already in the loader lists are kept. 0 = keep all. Set it when disk space is short.",
        within=(0, 100_000),
    )
    eval_every_n_steps: int = _evaluation_setting(
        0,
        "Optimizer steps between validations, in addition to those at every save. 0 = only at saves. Set it for a "
        "validation curve with more points.",
        within=(0, 10_000_000),
    )
    eval_timesteps: tuple[float, ...] = _evaluation_setting(
        EVALUATION_TIMESTEPS,
        "Noise levels (0 to 1000) at which the validation loss is measured. For one expert, the usual four are spread "
        "over its own range. Change them to measure other levels.",
    )
    early_stopping: bool = _evaluation_setting(
        False,
        "Early stopping: saves and ends the run when the loss of held-out clips has risen clearly in two validations "
        "in a row while the training loss fell. Without held-out clips, the run never stops early. Turn it on for "
        "long runs.",
    )
    save_dtype: str = _evaluation_setting(
        "bf16",
        "Dtype of the saved LoRA file. The resume state is always float32. Choose fp32 for exact weights, in a file of "
        "twice the size.",
        choices=("bf16", "fp16", "fp32"),
    )
    max_bad_steps: int = batch_setting(
        10,
        "The run stops after this many optimizer steps in a row without a finite loss and gradient. Raise it when a "
        "run would recover by itself.",
        within=(1, 1_000_000),
        counts="never",
    )
    first_frame_conditioning_p: float = batch_setting(
        0.5,
        "TI2V-5B only: share of clips trained as image-to-video; the rest is text-to-video. 0.5 trains both, 0 only "
        "text-to-video, 1 only image-to-video. Change it when you will use one of them alone.",
        within=(0.0, 1.0),
    )
    """image-to-video: the first latent frame is given clean, the loss covers the other frames"""
    # batches
    bucket_sampling: str = batch_setting(
        "proportional",
        "How batches are chosen from size buckets. proportional: every clip equally often. balanced: every size "
        "equally often, so clips of rare sizes are trained more. Choose balanced when rare sizes are learned too "
        "little.",
        choices=BUCKET_SAMPLINGS,
    )
    prefetch_batches: int = _memory_setting(
        2, "Micro-batches read ahead while one is trained; 0 = none. Changes nothing but the time.", low=0, high=64
    )
    compile: bool = _memory_setting(
        False,
        "Compile the blocks with torch.compile: the first steps take a minute longer, later steps are faster. On a GPU "
        "it needs triton. Turn it on for long runs.",
        counts="changed",
    )
    # The next four settings trade memory for time and do not change results.
    checkpointing_policy: str = _memory_setting(
        "auto",
        "Activations of a block that gradient checkpointing keeps in addition to its input. auto: attn_output if it "
        "fits. full: none. attn_output: the attention output, which is then computed only once. matmul_without_batch: "
        "the result of every linear; with offload_ in host memory. custom: those in the two lists below. Change it to "
        "trade memory for speed.",
        choices=("auto", *POLICIES, "custom"),
    )
    checkpointing_names_saved: tuple[str, ...] = _memory_setting(
        (),
        "For checkpointing_policy custom: activations kept on the GPU, such as attn_output, query_proj, key_proj, "
        "value_proj, xq_out, xk_out, self_attn, cross_attn, ffn_activation, hidden_states. Name those that are slow to "
        "recompute.",
    )
    checkpointing_names_offloaded: tuple[str, ...] = _memory_setting(
        (),
        "For checkpointing_policy custom: activations kept in host memory, by the same names. Name some when the GPU "
        "has no memory for them.",
    )
    unchecked_blocks: int = _memory_setting(
        0,
        "Number of last blocks that keep all their activations, for when memory is free. Each one saves the time of "
        "its recomputation. 0 = none. Raise it for faster steps.",
        within=(0, 1000),
        offered=(0, 64),
    )

    profile_steps: int = _memory_setting(
        0,
        "Number of optimizer steps to profile with PyTorch: a trace of every operator for Perfetto or "
        "chrome://tracing, and on a GPU a memory record of one more step. Both are saved in the run's folder profile. "
        "0 = none. Set it to find out what takes time.",
        within=(0, 10),
    )
    profile_skip_steps: int = _memory_setting(
        1,
        "Optimizer steps to skip before profile_steps starts: the first steps compile and allocate. Raise it when "
        "later steps matter.",
        within=(0, 10_000_000),
    )
    memory: str = _memory_setting(
        "auto",
        "Memory planning. auto: predicts the memory before the run, and chooses settings that fit and cost the least "
        "time. manual: uses offload_activations and blocks_to_swap as set, and refuses nothing. Choose manual when "
        "the prediction is wrong.",
        choices=("auto", "manual"),
    )
    offload_activations: str = _memory_setting(
        "auto",
        "Offload the activations that gradient checkpointing keeps to CPU RAM between the passes. auto: when it is "
        "needed to fit. Choose on when the GPU still runs out of memory.",
        choices=("auto", "on", "off"),
    )
    offload_optimizer: bool = _memory_setting(
        False,
        "Offload the optimizer: its state stays in CPU RAM and its step runs on the CPU. With AdamW this saves 8 bytes "
        "of GPU memory per LoRA value. Weights and gradients are copied once per step. Turn it on when the GPU runs "
        "out of memory.",
    )
    blocks_to_swap: int = _memory_setting(
        -1,
        "Number of transformer blocks kept in CPU RAM and streamed to the GPU when they run (block swap). -1: as few "
        "as needed to fit. 0: none. Raise it when the GPU runs out of memory.",
        within=(-1, 1000),
        offered=(-1, 100),
    )
    # both experts of a pair in one run
    high_noise_share: float = _pair_setting(
        0.5,
        "When both experts are trained: share of the steps (0 to 1) for the high noise expert. Raise it for motion and "
        "layout, lower it for fine detail.",
        within=(0.01, 0.99),
        step=0.05,
    )
    expert_order: str = _pair_setting(
        "high first",
        "Order in which both experts are trained. high first: all steps of the high noise expert, then those of the "
        "other. alternating: in turns, so that both are usable early; each turn swaps the models. Choose alternating "
        "to see early previews of both.",
        choices=_EXPERT_ORDERS,
    )
    expert_turn_steps: int = _pair_setting(
        100,
        "When experts alternate: average number of optimizer steps per turn. high_noise_share makes one longer, the "
        "other shorter. Raise it when swapping the models takes too long.",
        within=(1, 1_000_000),
    )
    low_noise_learning_rate: float = _pair_setting(
        0.0,
        "When both experts are trained: learning rate of the low noise expert. 0 = learning_rate, as for the high "
        "noise expert. Set it when one expert learns faster than the other.",
        within=(0.0, 10.0),
        offered=(0.0, 1.0),
        step=1e-6,
    )
    low_noise_rank: int = _pair_setting(
        0,
        "When both experts are trained: rank of the low noise expert's LoRA. 0 = rank, as for the high noise expert. "
        "Set it when that expert needs a LoRA of another size.",
        within=(0, 1024),
    )

    tread_routes: str = objective_setting(
        "",
        "TREAD token routing: a share of the tokens skips some layers in training, which saves time. 0.5: 2..-2 routes "
        "half of them around layer 2 to the last but one. Separate several by semicolons, or use SimpleTuner's JSON. "
        "Evaluation and previews use all tokens. Empty: off. Set it when a step takes too long.",
    )
    loss_scaling: str = objective_setting(
        "off",
        "Loss scaling for base_precision fp16, in which small gradients are lost. dynamic: scales the loss up before "
        "the backward pass, as far as it fits, and the gradients down again. off: no scaling. Choose dynamic when you "
        "train in fp16.",
        choices=LOSS_SCALINGS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        read_routes(self.tread_routes)
        ends = {"early_stopping": ("on", "off", self.early_stopping)}
        ends["max_train_hours"] = (f"{self.max_train_hours:g}", "0", bool(self.max_train_hours))
        for name, (now, off, is_set) in ends.items():
            if is_set and self.expert == "both" and self.expert_order != "alternating":
                raise ConfigError(
                    f"{name} is {now}, and expert_order {self.expert_order}: the run could end before the low noise "
                    f"expert has begun. Set expert_order to alternating, or {name} to {off}."
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
                f"blocks_to_swap is {self.blocks_to_swap}, and a block whose activations are kept cannot be swapped. "
                f"Set {which}, or blocks_to_swap to 0."
            )
        if self.keeps.offloaded and self.offload_activations == "off":
            raise ConfigError(
                f'checkpointing_policy "{self.checkpointing_policy}" keeps activations in host memory, and '
                "offload_activations is off. Set it to auto, or choose another policy."
            )
        if self.compile and self.keeps:
            raise ConfigError(
                f'compile does not work with checkpointing_policy "{self.checkpointing_policy}": a compiled block '
                "has no "
                "activations to name. Set checkpointing_policy to full, or turn compile off."
            )

    def identity(self) -> dict[str, Any]:
        """Returns the settings that decide the weights after a step; settings of a pair only with expert "both"."""
        # In a run of one model, settings of the pair change no weight, so they must not make it another run.
        train = self if self.expert == "both" else self.alone()
        return super(TrainConfig, train).identity()

    def alone(self, **changes: Any) -> TrainConfig:
        """Returns the settings of a run of one model, with `changes`; settings of a pair are at their defaults."""
        pair = {name: one.default for name, one in settings_of(TrainConfig).items() if one.counts == "pair"}
        return replace(self, **pair, **changes)

    @property
    def expert_name(self) -> str:
        """The trained model: high_noise, low_noise, both, or auto, where the file's name decides."""
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
    """Returns the name of an expert in code, such as high_noise; `setting`: its name in settings, events and run.json,
    high.
    """
    return f"{setting}_noise" if setting in ("high", "low") else setting


def expert_setting(name: str) -> str:
    """Returns the inverse of `expert_named`: high for high_noise."""
    return name.removesuffix("_noise")
