"""A setting is written once: its config refuses what its field does not allow, in a sentence that names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from wan_core.audit import AuditConfig
from wan_core.cache import SyntheticConfig
from wan_core.config import Config, Setting, setting, settings_of
from wan_core.dataset import DatasetConfig
from wan_core.errors import ConfigError
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig
from wan_core.placement import PlacementConfig
from wan_core.precision import PrecisionPolicy, QuantizeConfig
from wan_core.sampler import SampleConfig
from wan_core.train import TrainConfig

CONFIGS: tuple[type[Config], ...] = (
    *(AuditConfig, DatasetConfig, LoraConfig, ModelPlan, PlacementConfig, PrecisionPolicy, QuantizeConfig),
    *(SampleConfig, SyntheticConfig, TrainConfig),
)
REQUIRED: dict[type[Config], dict[str, Any]] = {ModelPlan: {"base_file": "models:wan.safetensors"}}
SETTINGS = [
    pytest.param(config, name, known, id=f"{config.__name__}.{name}")
    for config in CONFIGS
    for name, known in settings_of(config).items()
]

SAID_OTHERWISE = {"scheme": "Quantization scheme", "mode": "Split mode", "preset": "precision_policy"}
"""settings that a refusal names as people know them"""


@dataclass(frozen=True, kw_only=True)
class Tea(Config):
    minutes: float = setting(3.0, "How long it draws. 0 = not at all.", low=1, high=9, offered=(2, 5), also=(0,))
    kind: str = setting("green", "What is in the pot.", choices=("green", "black"), also=("mate",))
    cups: int = setting(1, "How many.", low=1, refusal="{name} is {value}, which is no cup. Use {low} or more.")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"minutes": 9.5}, "minutes 9.5 is out of range. Use 1 to 9."),
        ({"minutes": 0.5}, "minutes 0.5 is out of range. Use 1 to 9."),
        ({"minutes": float("nan")}, "minutes nan is not a finite number. Use 2 to 5."),
        ({"minutes": float("-inf")}, "minutes -inf is not a finite number. Use 2 to 5."),
        ({"cups": float("inf")}, "cups inf is not a finite number. Use 1 or more."),
        ({"kind": "blak"}, 'kind "blak" is unknown. Did you mean "black"?'),
        ({"cups": 0}, "cups is 0, which is no cup. Use 1 or more."),
    ],
)
def test_one_field_is_enough_for_a_setting_to_be_checked(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Tea(**values)
    assert str(refusal.value) == sentence


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("config", [LoraConfig, DatasetConfig, TrainConfig, SampleConfig])
def test_every_setting_that_is_a_number_says_when_it_is_given_none(config: type[Config], number: float) -> None:
    names = [name for name, known in settings_of(config).items() if type(known.default) is float]
    assert names
    for name in names:
        with pytest.raises(
            ConfigError, match=rf"^{name} {number} is not a finite number\. Use [-.e\d]+ to [-+.e\d]+\.$"
        ):
            config(**{name: number})


@pytest.mark.parametrize(
    "values", [{}, {"minutes": 9}, {"minutes": 1}, {"minutes": 0}, {"kind": "mate"}, {"cups": 10**9}]
)
def test_what_a_field_allows_is_read_also_where_no_widget_offers_it(values: dict[str, Any]) -> None:
    assert Tea.from_dict(Tea(**values).to_dict()) == Tea(**values)


@pytest.mark.parametrize(("config", "name", "known"), SETTINGS)
def test_every_config_refuses_what_its_settings_do_not_allow(config: type[Config], name: str, known: Setting) -> None:
    """Fails where a `__post_init__` forgot to call the one of Config."""
    wrong: list[Any] = [known.low - 1] if known.low is not None else []
    wrong += [known.high * 2] if known.high is not None else []
    wrong += ["?"] if known.choices else []
    for value in (value for value in wrong if value not in known.also):
        with pytest.raises(ConfigError) as refusal:
            config(**REQUIRED.get(config, {}), **{name: value})
        assert SAID_OTHERWISE.get(name, name) in str(refusal.value)


@pytest.mark.parametrize(("config", "name", "known"), SETTINGS)
def test_what_a_widget_offers_is_what_its_config_reads(config: type[Config], name: str, known: Setting) -> None:
    assert known.sentence.endswith((".", "?"))
    offered = [*known.choices, *(known.offered or ()), known.default]
    for value in [value for value in offered if value is not None]:
        assert known.accepts(value), value
    if isinstance(known.default, int | float) and not isinstance(known.default, bool):
        low, high = known.bounds
        assert low <= high
    assert getattr(config(**REQUIRED.get(config, {})), name) == known.default
