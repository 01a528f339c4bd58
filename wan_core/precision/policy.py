"""The precision policy: a preset, and single switches that override it. Stated in run.json, never ambient."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..config import Config, nearest
from ..errors import ConfigError
from ..model import Numerics

__all__ = ["PRESETS", "PrecisionPolicy", "torch_dtype"]

_DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# "compute" follows the base precision. Reference is official Wan 2.1; balanced drops only what was measured to be free
# (float64 in the rotation product); fast also stores the token stream in the compute dtype, which is where nearly all
# of the bf16 error of other trainers comes from.
PRESETS: dict[str, dict[str, str]] = {
    "reference": {
        "residual": "fp32", "norm": "fp32", "qk_norm": "fp32", "time": "fp32",
        "modulation": "fp32", "head": "fp32", "rope": "fp64", "adapter": "fp32",
    },
    "balanced": {
        "residual": "fp32", "norm": "fp32", "qk_norm": "fp32", "time": "fp32",
        "modulation": "fp32", "head": "fp32", "rope": "fp32", "adapter": "compute",
    },
    "fast": {
        "residual": "compute", "norm": "fp32", "qk_norm": "fp32", "time": "fp32",
        "modulation": "fp32", "head": "compute", "rope": "fp32", "adapter": "compute",
    },
}  # fmt: skip


def torch_dtype(name: str) -> torch.dtype:
    """fp64, fp32, bf16, fp16 -> torch dtype."""
    if name not in _DTYPES:
        raise ConfigError(f'"{name}" is not a precision.{nearest(name, list(_DTYPES))}')
    return _DTYPES[name]


@dataclass(frozen=True, kw_only=True)
class PrecisionPolicy(Config):
    """One preset; a switch left empty follows it. Values: "fp32", "fp64" (rope only), "bf16", "fp16", "compute"."""

    preset: str = "balanced"
    residual: str = ""
    norm: str = ""
    qk_norm: str = ""
    time: str = ""
    modulation: str = ""
    head: str = ""
    rope: str = ""
    adapter: str = ""

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ConfigError(f'precision_policy "{self.preset}" is unknown.{nearest(self.preset, list(PRESETS))}')
        for part in PRESETS["reference"]:
            value = getattr(self, part)
            if value not in ("", "compute"):
                torch_dtype(value)

    def numerics(self, compute: torch.dtype) -> Numerics:
        """The dtypes of a forward pass whose linears run in `compute`."""

        def chosen(part: str) -> torch.dtype:
            name = getattr(self, part) or PRESETS[self.preset][part]
            return compute if name == "compute" else torch_dtype(name)

        parts = {part: chosen(part) for part in PRESETS["reference"]}
        return Numerics(compute=compute, **parts)
