"""The settings of what is learnt: which noise levels are trained, and what counts as an error."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config, setting
from ..errors import ConfigError
from ..flow import TIMESTEP_SAMPLINGS

__all__ = ["ObjectiveConfig"]


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Config):
    """Which noise levels are drawn, and the loss of a prediction."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.discrete_flow_shift < 0.01:
            raise ConfigError(f"discrete_flow_shift {self.discrete_flow_shift} is too small. Use 0 or 0.01 to 1000.")
