"""Sweep Wan Settings: trains a separate run for each value of a setting, one after the other."""

from __future__ import annotations

from dataclasses import replace

from comfy_api.latest import io

from ..wan_core.config import names_on_nodes, settings_of
from ..wan_core.errors import ConfigError
from ..wan_core.lora import LoraConfig
from ..wan_core.train import TrainConfig
from .bridge.types import CATEGORY, SettingsHandle, WanSettings
from .bridge.widgets import combo, judged_when_it_runs, one_of, searched_as, text

_SWEPT = [
    *("learning_rate", "rank", "alpha", "steps", "seed", "batch_size", "gradient_accumulation_steps", "optimizer"),
    *("lr_scheduler", "lr_warmup_steps", "timestep_sampling", "discrete_flow_shift", "sigmoid_scale"),
    *("weight_decay", "max_grad_norm", "adam_beta1", "adam_beta2", "lora_dropout", "caption_dropout"),
    *("loraplus_lr_ratio", "ema_decay", "loss_type", "huber_delta", "loss_weighting", "min_timestep", "max_timestep"),
]
"""widget names of Train Wan LoRA and Wan Train Settings"""
_OF_LORA = names_on_nodes(LoraConfig)
_MOST = 100
_LED_BY = {
    "steps": {
        "max_train_epochs": "sets the length of each run in place of steps",
        "max_train_hours": "can end each run before its steps are done, so that runs would be the same",
    },
    "gradient_accumulation_steps": {
        "global_batch_size": "sets the clips of a step in place of gradient_accumulation_steps"
    },
}
"""setting -> the settings that override it if they are not 0"""


class WanSweepSettings(io.ComfyNode):
    """Returns a list, so ComfyUI runs Train Wan LoRA once for each value; two chained nodes give all value pairs."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanSweepSettings",
            display_name="Sweep Wan Settings",
            category=CATEGORY,
            **searched_as("grid search", "hyperparameter", "compare learning rates", "xy plot"),
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
        base = settings or SettingsHandle((), LoraConfig())
        if setting in dict(base.swept):
            raise ConfigError(f"{setting} is swept by two nodes. Choose another setting in one of them.")
        _refuse_without_effect(setting, dict(base.train))
        return io.NodeOutput([_with(base, setting, value) for value in _values(setting, values)])


def _refuse_without_effect(setting: str, said: dict[str, object]) -> None:
    """Raises ConfigError for a setting that Wan Train Settings overrides, so that all runs would be equal."""
    for other, why in _LED_BY.get(setting, {}).items():
        if value := said.get(other):
            raise ConfigError(
                f"{setting} is swept, but {other} is {value}, and that {why}. Set {other} of Wan Train Settings to 0, "
                "or sweep another setting."
            )


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


def _with(base: SettingsHandle, setting: str, value: object) -> SettingsHandle:
    lora = replace(base.lora, **{_OF_LORA[setting]: value}) if setting in _OF_LORA else base.lora  # type: ignore[arg-type]
    return replace(base, lora=lora, swept=(*base.swept, (setting, value)))
