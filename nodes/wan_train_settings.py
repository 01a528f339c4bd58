"""Wan Train Settings: training settings without a widget on TrainLoRA. Optional."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from comfy_api.latest import io

from ..wan_core.accelerator import default_device
from ..wan_core.config import names_on_nodes
from ..wan_core.errors import ConfigError
from ..wan_core.lora import TARGET_PRESETS, LoraConfig
from ..wan_core.model import check_compile
from ..wan_core.train import TrainConfig, check_optimizer
from .bridge.types import CATEGORY, SettingsHandle, WanSettings
from .bridge.widgets import check_menus, combo, judged_when_it_runs, listed, one_of, searched_as, widget

_EVAL = listed(TrainConfig.eval_timesteps)


class WanTrainSettings(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanTrainSettings",
            display_name="Wan Train Settings",
            category=CATEGORY,
            **searched_as(
                "optimizer",
                "adamw",
                "batch size",
                "gradient accumulation",
                "lr scheduler",
                "loss",
                "ema",
                "dora",
                "lokr",
            ),
            description="Batch size, optimizer, timestep sampling and more. Optional: Train Wan LoRA works without it.",
            inputs=[
                *(
                    widget(TrainConfig, name)
                    for name in (
                        *("batch_size", "gradient_accumulation_steps", "optimizer", "lr_scheduler"),
                        *("lr_warmup_steps", "timestep_sampling", "discrete_flow_shift", "sigmoid_scale"),
                        *("weight_decay", "max_grad_norm", "adam_beta1", "adam_beta2", "adam_epsilon"),
                        "caption_dropout",
                    )
                ),
                widget(LoraConfig, "dropout"),
                widget(
                    LoraConfig,
                    "targets",
                    default="",
                    multiline=True,
                    placeholder="lora_targets: blocks\\.\\d+\\.(self_attn|cross_attn)\\.(q|k|v|o)",
                ),
                *(
                    widget(TrainConfig, name)
                    for name in (
                        *("gradient_checkpointing", "eval_items", "eval_timesteps", "save_dtype", "max_bad_steps"),
                        *("first_frame_conditioning_p", "bucket_sampling", "checkpointing_policy"),
                        *("checkpointing_names_saved", "checkpointing_names_offloaded", "unchecked_blocks"),
                        *("memory", "offload_activations", "compile"),
                        *("optimizer_class", "optimizer_args", "loraplus_lr_ratio", "lr_warmup_share"),
                        *("lr_scheduler_num_cycles", "lr_scheduler_power", "lr_scheduler_min_lr_ratio"),
                        *("lr_decay_share", "lr_scaling", "ema_decay", "loss_type", "huber_delta"),
                        *("loss_weighting", "min_timestep", "max_timestep"),
                        *("high_noise_share", "expert_order", "expert_turn_steps", "low_noise_learning_rate"),
                        "low_noise_rank",
                        *("eval_every_n_steps", "keep_last_saves"),
                        *("logit_mean", "logit_std", "mode_scale"),
                    )
                ),
                widget(LoraConfig, "kind"),
                widget(LoraConfig, "init"),
                combo(
                    "target_preset",
                    list(TARGET_PRESETS),
                    "Layers that get an adapter when lora_targets is empty. motion: the queries and keys that connect "
                    "frames. all linears: also VACE's second stream. Change it for a smaller LoRA, or one of motion "
                    "alone.",
                ),
                widget(
                    LoraConfig,
                    "rank_patterns",
                    multiline=True,
                    placeholder="rank_patterns: blocks\\.\\d+\\.ffn\\..* = 32",
                ),
                widget(LoraConfig, "rank_dropout"),
                widget(LoraConfig, "module_dropout"),
                widget(LoraConfig, "max_norm"),
                widget(LoraConfig, "lokr_factor"),
                widget(TrainConfig, "tread_routes"),
                *(widget(TrainConfig, name) for name in ("timestep_range", "timestep_list", "timestep_strata")),
                *(widget(TrainConfig, name) for name in ("max_train_epochs", "max_train_hours", "global_batch_size")),
                widget(
                    TrainConfig,
                    "lr_patterns",
                    multiline=True,
                    placeholder="lr_patterns: blocks\\.\\d+\\.ffn\\..* = 0.5",
                ),
                widget(TrainConfig, "loss_scaling"),
                widget(LoraConfig, "also_train"),
                *(widget(TrainConfig, name) for name in ("offload_optimizer", "profile_steps", "profile_skip_steps")),
                widget(TrainConfig, "guidance_target"),
                *(widget(LoraConfig, name) for name in ("peft_tuner", "peft_args", "peft_file")),
                *(widget(TrainConfig, name) for name in ("max_grad_value", "early_stopping")),
                *(widget(TrainConfig, name) for name in ("save_every_n_epochs", "save_every_n_minutes")),
            ],
            outputs=[WanSettings.Output(display_name="settings", tooltip="For Train Wan LoRA.")],
        )

    validate_inputs = judged_when_it_runs

    @classmethod
    def execute(
        cls, lora_targets: str = "", target_preset: str = next(iter(TARGET_PRESETS)), **values: Any
    ) -> io.NodeOutput:
        for config in (TrainConfig, LoraConfig):
            check_menus(config, values)
        one_of("target_preset", target_preset, tuple(TARGET_PRESETS))
        for name in values.keys() & _READ.keys():
            values[name] = _READ[name](name, values[name])
        if values.get("compile"):  # Checked here, because TrainLoRA runs only after clips are encoded.
            check_compile(default_device())
        adapter = {name: values.pop(shown) for shown, name in names_on_nodes(LoraConfig).items() if shown in values}
        # TrainLoRA sets the number of steps; this number permits any warm-up.
        train = TrainConfig.from_dict({**values, "steps": 10_000_000})
        train.check_grammar()
        check_optimizer(train)
        targets = _lines("lora_targets", lora_targets) or TARGET_PRESETS[target_preset]
        lora = LoraConfig(**adapter, targets=targets)
        lora.check_grammar()
        return io.NodeOutput(SettingsHandle(tuple(values.items()), lora))


def _lines(_name: str, text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _words(_name: str, text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _numbers(name: str, listed: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in listed.replace(",", " ").split())
    except ValueError as error:
        raise ConfigError(f'{name} "{listed[:100]}" is not a list of numbers. Example: {_EVAL}') from error


_READ: dict[str, Callable[[str, str], tuple[Any, ...]]] = {
    **dict.fromkeys(("eval_timesteps", "timestep_list"), _numbers),
    **dict.fromkeys(("checkpointing_names_saved", "checkpointing_names_offloaded"), _words),
    **dict.fromkeys(("lr_patterns", "rank_patterns"), _lines),
}
"""widget -> parser of a text with several values"""
