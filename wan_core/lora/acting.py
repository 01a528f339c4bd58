"""Applies a LoRA without changing weights: each module returns y + strength * change(x, y).

Base weights are neither read nor changed, so they may be quantized in any way. All trained kinds work: LoRA, DoRA,
LoKr, LoHa, OFT, and changes of norms and biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import ExportError
from .changes import BIAS, Turned, change_of, scale_of, turned
from .names import parse_key

_MOST_ROWS = 4096
"""rows per forward of the identity matrix"""


def acting_parts(tensors: Mapping[str, Tensor], strength: float) -> dict[str, Acting]:
    """Returns the parts of a LoRA file by module; ExportError for an unsupported part."""
    modules: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        found = parse_key(key)
        if found is None:
            raise ExportError(f'"{key[:80]}" is not the key of a Wan LoRA. Choose a LoRA trained for Wan 2.1 or 2.2.')
        modules.setdefault(found.module, {})[found.part] = value
    return {name: Acting(name, parts, strength) for name, parts in modules.items()}


class Acting(nn.Module):
    """A LoRA's change of one module. Values keep the file's dtype until they are used."""

    def __init__(self, name: str, parts: dict[str, Tensor], strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.ran = False
        """whether the module ran after a caller set this to False"""
        self._seen: tuple[object, Tensor, Tensor | None] | None = None
        values = {part: value for part, value in parts.items() if part != "alpha"}
        self._change = change_of(values.keys() - {BIAS})
        if not values or (self._change is None and values.keys() != {BIAS}):
            raise ExportError(
                f"{name} holds {', '.join(sorted(values)) or 'nothing'}, which Apply Wan LoRA cannot add to a model. "
                "Use core Load LoRA for this file."
            )
        self._sizes = {part: tuple(value.shape) for part, value in values.items()}
        rank = self._change.rank(self._sizes) if self._change is not None else 0
        self.scale = scale_of(float(parts["alpha"]) if "alpha" in parts else None, rank)
        if self._change is Turned:
            turns = Turned.of({"oft_blocks": values.pop("oft_blocks").float()}, 1.0).turns()
            values["turns"] = turns - torch.eye(turns.shape[1], device=turns.device)
        for part, value in values.items():
            self.register_parameter(part, nn.Parameter(value, requires_grad=False))

    def shape(self) -> tuple[int, ...]:
        """Returns (out, in) of a linear, (D,) of a norm, (out,) for a bias alone; () for inconsistent parts."""
        return self._sizes[BIAS] if self._change is None else self._change.shape(self._sizes) or ()

    def forward(self, base: nn.Module, x: Tensor, y: Tensor, mark: object) -> Tensor:
        """Returns y, the output of `base` for x, plus the change.

        `mark` identifies the weight of `base`: another value discards the cached row lengths.
        """
        self.ran = True
        at = {
            part: value if part == "dora_scale" else value.to(x.device, x.dtype)
            for part, value in self.named_parameters()
        }
        if "diff" in at and at["diff"].ndim == 1:
            change = _of_norm(base, at, x)
        else:
            change = self._of_linear(base, at, x, y, mark)
            if BIAS in at:
                change = change + at[BIAS]
        return torch.add(y, change.to(y.dtype), alpha=self.strength)

    def _of_linear(self, base: nn.Module, at: dict[str, Tensor], x: Tensor, y: Tensor, mark: object) -> Tensor:
        """Returns the change (..., out) of a linear's output, without the bias change."""
        if self._change is None:
            return torch.zeros_like(y)
        if self._change is Turned:
            bias, _ = self.seen(base, x, mark, lengths=False)
            change = turned(y - bias.to(y.dtype), at["turns"].to(y.dtype))
            return change * self.strength  # The strength is applied twice, as in ComfyUI's loader.
        change = self._change.of(at, self.scale)
        return change.added(x, y, lambda lengths: self.seen(base, x, mark, lengths=lengths))

    def seen(self, base: nn.Module, x: Tensor, mark: object, *, lengths: bool) -> tuple[Tensor, Tensor | None]:
        """Returns the bias (out,) of `base` and the `lengths` of its weight's rows, both as computed by its forward."""
        seen = self._seen
        if seen is None or seen[0] != mark or seen[1].device != x.device:
            # Measured by forward passes of zeros and of the identity, because the weight may be quantized in any
            # format.
            wide = x.shape[-1]
            bias = base.forward(x.new_zeros(1, wide))[0].float()
            squares = None
            if lengths:
                # A linear with a fixed 8-bit input scale represents that value exactly.
                fixed = getattr(base, "input_scale", None)
                fixed = getattr(base, "scale_input", None) if fixed is None else fixed
                one = 1.0 if fixed is None or fixed.numel() != 1 else float(fixed)
                squares = torch.zeros_like(bias)
                for start in range(0, wide, _MOST_ROWS):
                    rows = torch.zeros(min(_MOST_ROWS, wide - start), wide, device=x.device, dtype=x.dtype)
                    rows.diagonal(start).fill_(one)
                    squares += ((base.forward(rows).float() - bias) / one).square().sum(0)
                squares = squares.sqrt()
            self._seen = seen = (mark, bias, squares)
        return seen[1], seen[2]


def _of_norm(base: nn.Module, at: Mapping[str, Tensor], x: Tensor) -> Tensor:
    # A norm is linear in its scale and shift, so their change is computed by the same formula.
    eps: Any = getattr(base, "eps", None)
    if isinstance(base, nn.LayerNorm):
        return functional.layer_norm(x, tuple(at["diff"].shape), at["diff"], at.get(BIAS), eps)
    return functional.rms_norm(x, tuple(at["diff"].shape), at["diff"], eps)
