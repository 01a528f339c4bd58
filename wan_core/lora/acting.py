"""A LoRA beside a model: each module puts out y + strength * change(x, y), whatever y came from.

The weights of the model are neither read nor changed, so they may be packed in any way. Every kind that is trained
here acts so: LoRA, DoRA, LoKr, LoHa, OFT, and changes of norms and biases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import ExportError
from .names import parse_key

_MOST_ROWS = 4096
"""of the unit matrix that goes through a linear at once"""


def acting_parts(tensors: Mapping[str, Tensor], strength: float) -> dict[str, Acting]:
    """Returns what a LoRA file says, by module; ExportError where it holds what cannot act so."""
    modules: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        found = parse_key(key)
        if found is None:
            raise ExportError(f'"{key[:80]}" is not the key of a Wan LoRA. Choose a LoRA trained for Wan 2.1 or 2.2.')
        modules.setdefault(found.module, {})[found.part] = value
    return {name: Acting(name, parts, strength) for name, parts in modules.items()}


class Acting(nn.Module):
    """The part of a LoRA that is about one module. Values keep the dtype of the file until they are used."""

    def __init__(self, name: str, parts: dict[str, Tensor], strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.ran = False
        """whether its module was called since somebody set this to False"""
        self._seen: tuple[object, Tensor, Tensor | None] | None = None
        values = {part: value for part, value in parts.items() if part != "alpha"}
        makes = _MAKERS.get(frozenset(values) - {"diff_b"})
        if makes is None or not values:
            raise ExportError(
                f"{name} holds {', '.join(sorted(values)) or 'nothing'}, which Apply Wan LoRA cannot add to a model. "
                "Use core Load LoRA for this file."
            )
        self._makes = _norm if makes is _whole and values["diff"].ndim == 1 else makes
        ranks = [len(values[part]) for part in ("down", "hada_w1_b", "lokr_w2_b", "lokr_w1_b") if part in values]
        self.scale = float(parts["alpha"]) / ranks[0] if "alpha" in parts and ranks else 1.0
        if "oft_blocks" in values:
            values["turn"] = _turn(values.pop("oft_blocks").float())
        for part, value in values.items():
            self.register_parameter(part, nn.Parameter(value, requires_grad=False))

    def shape(self) -> tuple[int, ...]:
        """Returns (out, in) of the linear it was made for, (D,) of a norm, (out,) where only outputs are known."""
        at = dict(self.named_parameters())
        if "down" in at:
            return at["up"].shape[0], at["down"].shape[1]
        if "hada_w1_a" in at:
            return at["hada_w1_a"].shape[0], at["hada_w1_b"].shape[1]
        if "lokr_w1" in at or "lokr_w1_a" in at:
            first, second = _factor(at, "lokr_w1"), _factor(at, "lokr_w2")
            return first.shape[0] * second.shape[0], first.shape[1] * second.shape[1]
        if "turn" in at:
            return (at["turn"].shape[0] * at["turn"].shape[1],)
        return tuple(at["diff" if "diff" in at else "diff_b"].shape)

    def forward(self, base: nn.Module, x: Tensor, y: Tensor, mark: object) -> Tensor:
        """Returns what `base` gave for `x`, which is `y`, with the change added.

        `mark` changes when the weight of `base` does: lengths of rows are then measured again.
        """
        self.ran = True
        at = {part: value.to(x.device, x.dtype) for part, value in self.named_parameters()}
        change = self._makes(self, base, at, x, y, mark)
        if "turn" in at:
            change = change * self.strength  # a second time, as ComfyUI's loader counts it
        if "diff_b" in at and self._makes is not _norm:
            change = change + at["diff_b"]
        return torch.add(y, change.to(y.dtype), alpha=self.strength)

    def seen(self, base: nn.Module, x: Tensor, mark: object, *, lengths: bool) -> tuple[Tensor, Tensor | None]:
        """Returns the bias of `base` (out,), and the `lengths` of the rows of its weight, as it computes with them.

        Both are what it makes of zeros and of a unit matrix, so that it does not matter how it holds its weight.
        """
        seen = self._seen
        if seen is None or seen[0] != mark or seen[1].device != x.device:
            wide = x.shape[-1]
            bias = base.forward(x.new_zeros(1, wide))[0].float()
            squares = None
            if lengths:
                one = _exact_in(base)
                squares = torch.zeros_like(bias)
                for start in range(0, wide, _MOST_ROWS):
                    rows = torch.zeros(min(_MOST_ROWS, wide - start), wide, device=x.device, dtype=x.dtype)
                    rows.diagonal(start).fill_(one)
                    squares += ((base.forward(rows).float() - bias) / one).square().sum(0)
                squares = squares.sqrt()
            self._seen = seen = (mark, bias, squares)
        return seen[1], seen[2]


def _exact_in(base: nn.Module) -> float:
    """Returns a number that a linear with 8-bit inputs of a fixed scale takes in without rounding."""
    fixed = getattr(base, "input_scale", None)
    fixed = getattr(base, "scale_input", None) if fixed is None else fixed
    return 1.0 if fixed is None or fixed.numel() != 1 else float(fixed)


def _turn(blocks: Tensor) -> Tensor:
    """oft_blocks (k, n, n) -> the transposes of the turns, less one: rows of outputs are multiplied from the right."""
    skew = blocks - blocks.transpose(1, 2)
    unit = torch.eye(blocks.shape[1], device=blocks.device)
    return torch.linalg.solve(unit - skew, unit + skew) - unit


def _factor(at: Mapping[str, Tensor], name: str) -> Tensor:
    return at[name] if name in at else at[f"{name}_a"] @ at[f"{name}_b"]


def _pair(own: Acting, _base: Any, at: dict[str, Tensor], x: Tensor, _y: Tensor, _mark: object) -> Tensor:
    return functional.linear(functional.linear(x, at["down"]) * own.scale, at["up"])


def _dora(own: Acting, base: nn.Module, at: dict[str, Tensor], x: Tensor, y: Tensor, mark: object) -> Tensor:
    """ComfyUI's reading of a file: a row of the sum times dora_scale over the length of that row of the base."""
    bias, lengths = own.seen(base, x, mark, lengths=True)
    assert lengths is not None
    ratio = own.get_parameter("dora_scale").to(x.device).float().flatten() / lengths
    return (ratio - 1).to(y.dtype) * (y - bias.to(y.dtype)) + ratio.to(y.dtype) * _pair(own, base, at, x, y, mark)


def _kronecker(own: Acting, _base: Any, at: dict[str, Tensor], x: Tensor, _y: Tensor, _mark: object) -> Tensor:
    """kron(first (a, c), second (b, d)) @ x, for x (..., c * d), without the whole matrix."""
    first, second = _factor(at, "lokr_w1") * own.scale, _factor(at, "lokr_w2")
    rows = x.unflatten(-1, (first.shape[1], second.shape[1]))
    return (first @ functional.linear(rows, second)).flatten(-2)


def _hadamard(own: Acting, _base: Any, at: dict[str, Tensor], x: Tensor, _y: Tensor, _mark: object) -> Tensor:
    """The product of both ranks as one rank where that is less work than the whole matrix."""
    tall1, wide1, tall2, wide2 = (at[f"hada_{part}"] for part in ("w1_a", "w1_b", "w2_a", "w2_b"))
    if 2 * len(wide1) * len(wide2) < min(tall1.shape[0], wide1.shape[1]):
        down = torch.einsum("ib,jb->ijb", wide1, wide2).flatten(0, 1)
        up = torch.einsum("ai,aj->aij", tall1, tall2).flatten(1)
        return functional.linear(functional.linear(x, down) * own.scale, up)
    return functional.linear(x, (tall1 @ wide1) * (tall2 @ wide2) * own.scale)


def _oft(own: Acting, base: nn.Module, at: dict[str, Tensor], x: Tensor, y: Tensor, mark: object) -> Tensor:
    bias, _ = own.seen(base, x, mark, lengths=False)
    size = at["turn"].shape[1]
    blocks = (y - bias.to(y.dtype)).unflatten(-1, (-1, size)).transpose(-2, -3)
    return torch.matmul(blocks, at["turn"].to(y.dtype)).transpose(-2, -3).flatten(-2)


def _whole(_own: Acting, _base: Any, at: dict[str, Tensor], x: Tensor, _y: Tensor, _mark: object) -> Tensor:
    return functional.linear(x, at["diff"])


def _bias(_own: Acting, _base: Any, _at: dict[str, Tensor], _x: Tensor, y: Tensor, _mark: object) -> Tensor:
    return torch.zeros_like(y)


def _norm(_own: Acting, base: nn.Module, at: dict[str, Tensor], x: Tensor, _y: Tensor, _mark: object) -> Tensor:
    """A norm is linear in its scale and its shift."""
    eps: Any = getattr(base, "eps", None)
    if isinstance(base, nn.LayerNorm):
        return functional.layer_norm(x, tuple(at["diff"].shape), at["diff"], at.get("diff_b"), eps)
    return functional.rms_norm(x, tuple(at["diff"].shape), at["diff"], eps)


_LOHA = frozenset(("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"))
_HALVES = {"lokr_w1": ("lokr_w1_a", "lokr_w1_b"), "lokr_w2": ("lokr_w2_a", "lokr_w2_b")}
_LOKR = [
    frozenset((*first, *second))
    for first in (("lokr_w1",), _HALVES["lokr_w1"])
    for second in (("lokr_w2",), _HALVES["lokr_w2"])
]
_MAKERS: dict[frozenset[str], Callable[..., Tensor]] = {
    frozenset(("down", "up")): _pair,
    frozenset(("down", "up", "dora_scale")): _dora,
    **dict.fromkeys(_LOKR, _kronecker),
    _LOHA: _hadamard,
    frozenset(("oft_blocks",)): _oft,
    frozenset(("diff",)): _whole,
    frozenset(): _bias,
}
"""by the parts that a file holds of a module, its bias apart"""
