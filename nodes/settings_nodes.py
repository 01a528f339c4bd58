"""Wan Train Settings: settings without a widget on TrainLoRA. Sweep Wan Settings: a run for each value of a setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from comfy_api.latest import io

from ..wan_core.accelerator import default_device
from ..wan_core.config import Config, names_on_nodes, settings_of
from ..wan_core.errors import ConfigError
from ..wan_core.lora import TARGET_PRESETS, LoraConfig
from ..wan_core.model import check_compile
from ..wan_core.train import TrainConfig, check_optimizer
from .bridge.types import SettingsHandle, WanSettings
from .bridge.widgets import (
    check_menus,
    combo,
    in_menu,
    judged_when_it_runs,
    listed,
    numbers_of,
    one_of,
    text,
    widget,
    widgets,
)


class WanTrainSettings(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanTrainSettings",
            display_name="Wan Train Settings",
            **in_menu("optimizer, adamw, batch size, gradient accumulation, lr scheduler, loss, ema, dora, lokr"),
            description="Batch size, optimizer, timestep sampling and more. Optional: Train Wan LoRA works without it.",
            inputs=[
                *widgets(
                    TrainConfig,
                    "batch_size gradient_accumulation_steps optimizer lr_scheduler lr_warmup_steps timestep_sampling "
                    "discrete_flow_shift sigmoid_scale weight_decay max_grad_norm adam_beta1 adam_beta2 adam_epsilon "
                    "caption_dropout",
                ),
                widget(LoraConfig, "dropout"),
                _lines_of(LoraConfig, "targets", "blocks\\.\\d+\\.(self_attn|cross_attn)\\.(q|k|v|o)", default=""),
                *widgets(
                    TrainConfig,
                    "gradient_checkpointing eval_items eval_timesteps save_dtype max_bad_steps "
                    "first_frame_conditioning_p bucket_sampling checkpointing_policy checkpointing_names_saved "
                    "checkpointing_names_offloaded unchecked_blocks memory offload_activations compile optimizer_class "
                    "optimizer_args loraplus_lr_ratio lr_warmup_share lr_scheduler_num_cycles lr_scheduler_power "
                    "lr_scheduler_min_lr_ratio lr_decay_share lr_scaling ema_decay loss_type huber_delta "
                    "loss_weighting min_timestep max_timestep high_noise_share expert_order expert_turn_steps "
                    "low_noise_learning_rate low_noise_rank eval_every_n_steps keep_last_saves logit_mean logit_std "
                    "mode_scale",
                ),
                *widgets(LoraConfig, "kind init"),
                combo(
                    "target_preset",
                    list(TARGET_PRESETS),
                    "Layers that get an adapter when lora_targets is empty. motion: the queries and keys that connect "
                    "frames. all linears: also VACE's second stream. Change it for a smaller LoRA, or one of motion "
                    "alone.",
                ),
                _lines_of(LoraConfig, "rank_patterns", "blocks\\.\\d+\\.ffn\\..* = 32"),
                *widgets(LoraConfig, "rank_dropout module_dropout max_norm lokr_factor"),
                *widgets(
                    TrainConfig,
                    "tread_routes timestep_range timestep_list timestep_strata max_train_epochs max_train_hours "
                    "global_batch_size",
                ),
                _lines_of(TrainConfig, "lr_patterns", "blocks\\.\\d+\\.ffn\\..* = 0.5"),
                widget(TrainConfig, "loss_scaling"),
                widget(LoraConfig, "also_train"),
                *widgets(TrainConfig, "offload_optimizer profile_steps profile_skip_steps guidance_target"),
                *widgets(LoraConfig, "peft_tuner peft_args peft_file"),
                *widgets(TrainConfig, "max_grad_value early_stopping save_every_n_epochs save_every_n_minutes"),
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


def _lines_of(config: type[Config], name: str, example: str, **own: Any) -> io.Input:
    """Returns a widget of several lines, with its name and an example as placeholder."""
    called = settings_of(config)[name].called or name
    return widget(config, name, multiline=True, placeholder=f"{called}: {example}", **own)


def _lines(_name: str, text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _words(_name: str, text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _numbers(name: str, text: str) -> tuple[float, ...]:
    return numbers_of(name, text, float, "numbers", listed(TrainConfig.eval_timesteps))


_READ: dict[str, Callable[[str, str], tuple[Any, ...]]] = {
    **dict.fromkeys(("eval_timesteps", "timestep_list"), _numbers),
    **dict.fromkeys(("checkpointing_names_saved", "checkpointing_names_offloaded"), _words),
    **dict.fromkeys(("lr_patterns", "rank_patterns"), _lines),
}
"""widget -> parser of a text with several values"""


_SWEPT = [
    *("learning_rate", "rank", "alpha", "steps", "seed", "batch_size", "gradient_accumulation_steps", "optimizer"),
    *("lr_scheduler", "lr_warmup_steps", "timestep_sampling", "discrete_flow_shift", "sigmoid_scale"),
    *("weight_decay", "max_grad_norm", "adam_beta1", "adam_beta2", "lora_dropout", "caption_dropout"),
    *("loraplus_lr_ratio", "ema_decay", "loss_type", "huber_delta", "loss_weighting", "min_timestep", "max_timestep"),
]
"""widget names of Train Wan LoRA and Wan Train Settings"""
_OF_LORA = names_on_nodes(LoraConfig)
_MOST = 100
_LED_BY = {"steps": ("max_train_epochs", "max_train_hours"), "gradient_accumulation_steps": ("global_batch_size",)}
"""setting -> the settings that override it if they are not 0, so that all runs would be equal"""


class WanSweepSettings(io.ComfyNode):
    """Returns a list, so ComfyUI runs Train Wan LoRA once for each value; two chained nodes give all value pairs."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanSweepSettings",
            display_name="Sweep Wan Settings",
            **in_menu("grid search, hyperparameter, compare learning rates, xy plot"),
            description="Trains one LoRA for each value of a setting. Each is a separate run with the value in its "
            "name; the runs tab compares them. Put it between Wan Train Settings and Train Wan LoRA.",
            inputs=[
                WanSettings.Input(
                    "settings",
                    optional=True,
                    tooltip="From Wan Train Settings, or another sweep: then each value of one runs with each value "
                    "of the other. Unconnected: defaults are used.",
                ),
                combo(
                    "setting",
                    _SWEPT,
                    "The setting to vary. It overrides the widgets of Train Wan LoRA and Wan Train Settings.",
                ),
                text(
                    "values",
                    "5e-5, 1e-4, 2e-4",
                    "Values to try, separated by commas or one per line, such as 8, 16, 32. For menus, use their "
                    "words: adamw, lion.",
                    multiline=True,
                ),
            ],
            outputs=[
                WanSettings.Output(
                    display_name="settings", tooltip="For Train Wan LoRA: one for each value.", is_output_list=True
                )
            ],
        )

    validate_inputs = judged_when_it_runs

    @classmethod
    def execute(
        cls, settings: SettingsHandle | None = None, setting: str = _SWEPT[0], values: str = "5e-5, 1e-4, 2e-4"
    ) -> io.NodeOutput:
        one_of("setting", setting, _SWEPT)
        base = settings or SettingsHandle()
        if setting in dict(base.swept):
            raise ConfigError(f"{setting} is swept by two nodes. Choose another setting in one of them.")
        for other in _LED_BY.get(setting, ()):
            if led := dict(base.train).get(other):
                raise ConfigError(
                    f"{setting} is swept, but {other} is {led}, which overrides it. Set {other} of Wan Train Settings "
                    "to 0, or sweep another setting."
                )
        made: list[SettingsHandle] = []
        for value in _values(setting, values):
            adapter: dict[str, Any] = {_OF_LORA[setting]: value} if setting in _OF_LORA else {}
            lora, swept = replace(base.lora, **adapter), (*base.swept, (setting, value))
            made.append(replace(base, lora=lora, swept=swept))
        return io.NodeOutput(made)


def _values(setting: str, written: str) -> list[object]:
    """Returns the values in order, each once. Raises ConfigError for an invalid one, or too many."""
    words = [word.strip() for line in written.splitlines() for word in line.split(",") if word.strip()]
    if not 1 <= len(words) <= _MOST:
        raise ConfigError(f"values has {len(words)} values of {setting}. Write 1 to {_MOST}, such as 5e-5, 1e-4.")
    return list(dict.fromkeys(_value(setting, word) for word in words))


def _value(setting: str, word: str) -> object:
    config, name = (LoraConfig, _OF_LORA[setting]) if setting in _OF_LORA else (TrainConfig, setting)
    known = settings_of(config)[name]
    if known.choices:
        return one_of(setting, word, known.choices)
    try:
        number = float(word)
    except ValueError as error:
        raise ConfigError(f'values: "{word[:40]}" is not a number for {setting}. Example: 5e-5, 1e-4, 2e-4') from error
    whole = isinstance(known.default, int) and number.is_integer()
    exact = word.isdecimal() and len(word) < 30  # a float would round a seed above 53 bits
    value = number if not whole else int(word) if exact else int(number)
    config.from_dict({name: value, **({"steps": 10_000_000} if setting == "lr_warmup_steps" else {})})
    return value
