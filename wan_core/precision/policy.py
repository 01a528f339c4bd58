"""The precision policy: a preset, and switches that override single parts. It is recorded in run.json."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..config import Config, counted, nearest, setting
from ..errors import ConfigError
from ..model import Numerics

_DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# "compute" follows the base precision. reference: as official Wan 2.1. balanced: drops only precision that was measured
# to be free, such as float64 in the rotation. fast: also stores the token stream in the compute dtype, the cause of
# nearly all of the bf16 error of other trainers. Figures: docs/use/precision.md.
PRESETS: dict[str, dict[str, str]] = {
    "reference": {
        "residual": "fp32", "norm": "fp32", "qk_norm": "fp32", "time": "fp32", "modulation": "fp32", "head": "fp32",
        "rope_table": "fp64", "rope": "fp64", "attention": "compute", "adapter": "fp32",
    },
    "balanced": {
        "residual": "fp32", "norm": "fp32", "qk_norm": "fp32", "time": "fp32", "modulation": "fp32", "head": "fp32",
        "rope_table": "fp64", "rope": "fp32", "attention": "compute", "adapter": "compute",
    },
    "fast": {
        "residual": "compute", "norm": "fp32", "qk_norm": "fp32", "time": "fp32", "modulation": "fp32",
        "head": "compute", "rope_table": "fp64", "rope": "fp32", "attention": "compute", "adapter": "compute",
    },
}  # fmt: skip
SWITCHES = tuple(PRESETS["reference"])
"""the parts with a switch"""
_WITH_FLOAT64 = ("rope_table", "rope")


def switch_values(part: str) -> tuple[str, ...]:
    """Returns the choices of a part's switch; fp64 only where official Wan uses it."""
    values = ("fp32", "bf16", "fp16", "compute")
    return ("fp64", *values) if part in _WITH_FLOAT64 else values


_MATMULS = {"compute": None, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


def torch_dtype(name: str) -> torch.dtype:
    """fp64, fp32, bf16, fp16 -> torch dtype."""
    if name not in _DTYPES:
        raise ConfigError(f'"{name}" is not a precision.{nearest(name, list(_DTYPES))}')
    return _DTYPES[name]


def dtype_name(dtype: torch.dtype | None) -> str:
    """torch dtype -> fp64, fp32, bf16, fp16; for products also fp8, int8 and compute (None)."""
    return next(name for name, known in {**_DTYPES, **_MATMULS}.items() if known == dtype)


def _switch(part: str, sentence: str) -> Any:
    return counted(
        "",
        sentence,
        choices=switch_values(part),
        also=("",),
        refusal='precision of {name} "{value}" is not a choice. Use one of: {known}; or leave it empty for what '
        '"{preset}" says.',
    )


@dataclass(frozen=True, kw_only=True)
class PrecisionPolicy(Config):
    """A preset, and switches that override it if they are not empty. Values: fp32, bf16, fp16, compute (the dtype of
    the linears), and fp64 for the rotary embedding."""

    preset: str = counted(
        "balanced",
        "The preset that the switches below start from.",
        choices=tuple(PRESETS),
        refusal='precision_policy "{value}" is unknown.{nearest}',
    )
    residual: str = _switch(
        "residual", "Dtype of the token stream between blocks. bf16 here loses the most precision by far."
    )
    norm: str = _switch("norm", "Dtype of the layer norms of blocks and head, with their scale and shift.")
    qk_norm: str = _switch(
        "qk_norm",
        "Dtype of the RMS norm of queries and keys. In 16 bits, values are rounded before the learned scale too.",
    )
    time: str = _switch("time", "Dtype of the time embedding and its projection.")
    modulation: str = _switch("modulation", "Dtype of the modulation tables and gates.")
    head: str = _switch("head", "Dtype of the output projection.")
    rope_table: str = _switch(
        "rope_table",
        "Dtype of the angles of the rotary position embedding, their cosine and sine. bf16 is too coarse for them.",
    )
    rope: str = _switch("rope", "Dtype in which queries and keys are rotated by the rotary embedding.")
    attention: str = _switch(
        "attention", "Dtype of the attention product. fp32 has no flash kernel, so it is slow and needs much memory."
    )
    adapter: str = _switch("adapter", "Dtype of the LoRA's matrix products. Its weights are always fp32.")
    matmul: str = setting(
        "compute",
        "Dtype of matrix products with frozen 8-bit weights. compute: weights are dequantized first. fp8, int8: "
        "computed in 8 bits, for weights of that dtype with one scale per weight or row; less exact, and refused where "
        "the device does not support it. Change it when a step takes too long.",
        choices=tuple(_MATMULS),
        refusal='{name} "{value}" is not a choice. Use one of: {known}.',
    )
    """not part of presets; inputs and gradients are rounded row by row (precision/matmul.py)"""
    float32_matmul_precision: str = setting(
        "highest",
        "Precision of float32 matrix products in a training step, as in PyTorch; for base_precision fp32. highest: "
        "float32. high: TF32 on a GPU that supports it, which is faster. medium: bfloat16 internally. Previews and "
        "evaluations always use float32. Choose high when a step in fp32 takes too long.",
        choices=("highest", "high", "medium"),
    )
    """not part of presets; ignored for other base precisions, whose few float32 products stay exact"""

    def resolved(self) -> dict[str, str]:
        """Returns the value of every part: its switch, or the preset's value if the switch is empty."""
        return {part: getattr(self, part) or PRESETS[self.preset][part] for part in SWITCHES}

    def numerics(self, compute: torch.dtype) -> Numerics:
        """Returns the dtypes of a forward pass whose linears run in `compute`."""
        parts = {part: compute if name == "compute" else torch_dtype(name) for part, name in self.resolved().items()}
        return Numerics(
            compute=compute,
            matmul=_MATMULS[self.matmul],
            float32_products=self.float32_matmul_precision if compute == torch.float32 else "highest",
            plain_attention=False,
            **parts,
        )

    def describe(self) -> str:
        """Returns the preset and the differences from it, such as "balanced, but residual compute"."""
        preset, parts = PRESETS[self.preset], self.resolved()
        changed = [f"{part} {value}" for part, value in parts.items() if value != preset[part]]
        changed += [f"matmul {self.matmul}"] if self.matmul != "compute" else []
        if self.float32_matmul_precision != "highest":
            changed.append(f"float32 products {self.float32_matmul_precision}")
        return self.preset + (f", but {', '.join(changed)}" if changed else "")


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Inside, torch computes float32 products in this process with `precision`: highest, high (TF32), medium (bf16)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
