"""Wan Train Settings: everything about training that TrainLoRA has no widget for. Leave it out to use the defaults."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..wan_core.cache import BUCKET_SAMPLINGS
from ..wan_core.errors import ConfigError
from ..wan_core.flow import TIMESTEP_SAMPLINGS
from ..wan_core.lora import LoraConfig
from ..wan_core.train import LR_SCHEDULERS, OPTIMIZERS, SAVE_DTYPES, TrainConfig
from .bridge.types import CATEGORY, SettingsHandle, WanSettings
from .bridge.widgets import combo, flag, number, one_of, searched_as, text, whole

_train, _lora = TrainConfig(), LoraConfig()
_EVAL = ", ".join(f"{t:g}" for t in _train.eval_timesteps)
_CHOICES: dict[str, tuple[str, ...]] = {
    "optimizer": OPTIMIZERS,
    "lr_scheduler": LR_SCHEDULERS,
    "timestep_sampling": TIMESTEP_SAMPLINGS,
    "save_dtype": SAVE_DTYPES,
    "bucket_sampling": BUCKET_SAMPLINGS,
}


class WanTrainSettings(io.ComfyNode):
    """Checked here, used in TrainLoRA."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanTrainSettings",
            display_name="Wan Train Settings",
            category=CATEGORY,
            **searched_as("optimizer", "adamw", "batch size", "gradient accumulation", "lr scheduler"),
            description="Batch size, optimizer, timestep sampling and the rest. Optional: TrainLoRA works without it.",
            inputs=[
                whole(
                    "batch_size",
                    _train.batch_size,
                    1,
                    1024,
                    "Clips per forward pass, all of one size. More takes more memory.",
                ),
                whole(
                    "gradient_accumulation_steps",
                    _train.gradient_accumulation_steps,
                    1,
                    4096,
                    "Forward and backward passes per optimizer step: as a larger batch, without its memory.",
                ),
                combo("optimizer", list(OPTIMIZERS), "adamw: PyTorch's AdamW on float32 adapters.", _train.optimizer),
                combo(
                    "lr_scheduler",
                    list(LR_SCHEDULERS),
                    "Course of the learning rate after warm-up. cosine: down to 0 along a cosine, which learns best. "
                    "linear: straight down to 0. constant: it stays, for runs that will be made longer later.",
                    _train.lr_scheduler,
                ),
                whole(
                    "lr_warmup_steps",
                    _train.lr_warmup_steps,
                    0,
                    10_000_000,
                    "Optimizer steps in which the learning rate rises from 0 to its full value. 0 = no warm-up.",
                ),
                combo(
                    "timestep_sampling",
                    list(TIMESTEP_SAMPLINGS),
                    "Which noise levels are trained. shift: logistic-normal, then the training shift. sigmoid: without "
                    "the shift. uniform: all alike.",
                    _train.timestep_sampling,
                ),
                number(
                    "discrete_flow_shift",
                    _train.discrete_flow_shift,
                    0.0,
                    1000.0,
                    "Training shift: higher trains more on high noise. 0 = the model's: 12 for 2.2 T2V-A14B, 5 for 2.2 "
                    "I2V-A14B and 2.2 TI2V-5B, 3 for the others. The sampling shift is another number.",
                ),
                number(
                    "sigmoid_scale",
                    _train.sigmoid_scale,
                    0.01,
                    100.0,
                    "Width of the logistic-normal draw of shift and sigmoid. Above 1.0: more of very low and very high "
                    "noise.",
                ),
                number(
                    "weight_decay",
                    _train.weight_decay,
                    0.0,
                    10.0,
                    "Pull of the LoRA weights towards zero at every optimizer step, times the learning rate. 0 = none.",
                    step=0.001,
                ),
                number(
                    "max_grad_norm",
                    _train.max_grad_norm,
                    0.0,
                    1e9,
                    "Longer gradients are scaled down to this norm. 0 = off.",
                ),
                number(
                    "adam_beta1",
                    _train.adam_beta1,
                    0.0,
                    0.9999,
                    "Memory of Adam's mean gradient: 0.9 is about the last 10 optimizer steps.",
                    step=0.001,
                ),
                number(
                    "adam_beta2",
                    _train.adam_beta2,
                    0.0,
                    0.99999,
                    "Memory of Adam's mean squared gradient: 0.999 is about the last 1000 optimizer steps.",
                    step=0.001,
                ),
                number(
                    "adam_epsilon",
                    _train.adam_epsilon,
                    1e-9,
                    1.0,
                    "Added to the denominator of Adam, so that it is never 0.",
                    step=1e-9,
                ),
                number(
                    "caption_dropout",
                    _train.caption_dropout,
                    0.0,
                    1.0,
                    "Share of captions (0 to 1) replaced by the empty prompt, so that guidance without a prompt is "
                    "trained too.",
                ),
                number(
                    "lora_dropout",
                    _lora.dropout,
                    0.0,
                    0.99,
                    "Share of the LoRA's inputs (0 to 1) set to 0 in training. 0 = none.",
                ),
                text(
                    "lora_targets",
                    "",
                    "Regular expressions for the names of the layers that get a LoRA, one a line. Empty: attention and "
                    "feed-forward.",
                    multiline=True,
                    placeholder="blocks\\.\\d+\\.(self_attn|cross_attn)\\.(q|k|v|o)",
                ),
                flag(
                    "gradient_checkpointing",
                    _train.gradient_checkpointing,
                    "Recompute blocks in the backward pass: a third more compute, a fraction of the memory.",
                ),
                whole(
                    "eval_items",
                    _train.eval_items,
                    0,
                    1000,
                    "Clips whose loss is measured at every save, always with the same noise. 0 = none.",
                ),
                text(
                    "eval_timesteps",
                    _EVAL,
                    "Noise levels (0 to 1000) at which that loss is measured. For an expert the usual four are spread "
                    "over its own range.",
                ),
                combo(
                    "save_dtype",
                    list(SAVE_DTYPES),
                    "Number format of the LoRA file. The state to resume from is always float32.",
                    _train.save_dtype,
                ),
                whole(
                    "max_bad_steps",
                    _train.max_bad_steps,
                    1,
                    1_000_000,
                    "So many optimizer steps in a row without a finite loss and gradient end the run.",
                ),
                number(
                    "first_frame_conditioning_p",
                    _train.first_frame_conditioning_p,
                    0.0,
                    1.0,
                    "TI2V-5B only: share of clips trained as image-to-video, the others as text-to-video. 0.5 serves "
                    "both, 0 is text-to-video alone, 1 image-to-video alone.",
                ),
                combo(
                    "bucket_sampling",
                    list(BUCKET_SAMPLINGS),
                    "proportional: every clip equally often. balanced: every size equally often, so clips of rare "
                    "sizes come up more.",
                    _train.bucket_sampling,
                ),
            ],
            outputs=[WanSettings.Output(display_name="settings", tooltip="For TrainLoRA.")],
        )

    @classmethod
    def execute(cls, lora_dropout: float = 0.0, lora_targets: str = "", **values: Any) -> io.NodeOutput:
        for name, known in _CHOICES.items():
            if name in values:
                one_of(name, values[name], known)
        if "eval_timesteps" in values:
            values["eval_timesteps"] = tuple(_numbers(values["eval_timesteps"]))
        # Whether warm-up fits into the steps is known only in TrainLoRA; everything else is checked here.
        TrainConfig.from_dict({**values, "steps": 10_000_000})
        targets = tuple(line.strip() for line in lora_targets.splitlines() if line.strip())
        lora = LoraConfig(dropout=lora_dropout, targets=targets or _lora.targets)
        return io.NodeOutput(SettingsHandle(tuple(values.items()), lora))


def _numbers(listed: str) -> list[float]:
    try:
        return [float(part) for part in listed.replace(",", " ").split()]
    except ValueError as error:
        raise ConfigError(f'eval_timesteps "{listed[:100]}" is not a list of numbers. Example: {_EVAL}') from error
