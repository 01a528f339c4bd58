"""Frozen LoRAs: LoRA files that act without being trained, under the trained LoRA or in previews.

Linears of blocks may be quantized, so they get a branch, y = base(x) + strength * change(x), and the base weight stays
bit-equal. Biases, norms and other linears are never quantized: the change is added to the value, as in ComfyUI, and
undone by restoring a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from ..kernels import unread_product
from ..model import block_of
from .changes import Change, Hadamard, Kronecker, LowRank, Whole, scale_of
from .source import LoraSource

Undo = Callable[[], None]
_WHOLES, _BIASES = ("diff", "w_norm"), ("diff_b", "b_norm")
"""ComfyUI's names for full changes of weights and of biases"""


@dataclass(frozen=True)
class _Changed:
    """A file's changes of one module."""

    module: str
    pair: LoraSource | None
    """the file, if it contains a LoRA, LoKr or LoHa for the module"""
    whole: str
    """name of the part with a full change of the weight; "" if there is none"""
    bias: str


def check_frozen(source: LoraSource, model: nn.Module, itemsize: int) -> dict[str, int]:
    """Returns the bytes of a LoRA's branches by the weight they are added to; `model` may be meta.

    `itemsize`: of the branches' dtype. CheckpointError for other sizes, no common module or an unsupported kind.
    """
    shapes = _shapes_of(model)
    modules = dict(model.named_modules())
    found: dict[str, int] = {}
    fits = 0
    for change in _changes(source):
        weight = _weight_of(change.module, shapes)
        if weight not in shapes:
            continue
        fits += 1
        values = _checked_values(source, change, shapes)
        if _linear_of_a_block(change.module, modules.get(change.module)) is not None:
            found[weight] = values * itemsize
    if not fits:
        raise CheckpointError(
            "{name} does not match any part of this model (for example {modules}): it was trained for another Wan "
            "model. Choose a LoRA of this model.",
            name=source.name,
            modules=next(iter(source.modules)),
        )
    return found


def fitting_modules(source: LoraSource, model: nn.Module) -> dict[str, Mapping[str, str]]:
    """Returns the modules of a LoRA that `check_frozen` accepts, with their keys."""
    shapes, fits = _shapes_of(model), dict[str, Mapping[str, str]]()
    for module, parts in source.modules.items():
        one = replace(source, modules={module: parts})
        with contextlib.suppress(CheckpointError):
            if _weight_of(module, shapes) in shapes:
                _checked_values(one, next(_changes(one)), shapes)
                fits[module] = parts
    return fits


def _shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in model.named_parameters()}


def _checked_values(source: LoraSource, change: _Changed, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Returns the number of values in a change; CheckpointError for other sizes than the model's."""
    weight = _weight_of(change.module, shapes)
    values = 0 if change.pair is None else _check_pair(change, change.pair, shapes[weight])
    for part, name in ((change.whole, weight), (change.bias, f"{change.module}.bias")):
        if part:
            own = source.header.tensors[source.modules[change.module][part]].shape
            if tuple(own) != shapes.get(name):
                raise _misfit(source, name, own, shapes.get(name))
            values += prod(own)
    return values


def act_on(
    part: nn.Module,
    source: LoraSource,
    strength: float,
    *,
    dtype: torch.dtype,
    device_of: Callable[[str], torch.device],
    prefix: str = "",
) -> list[Undo]:
    """Applies a LoRA that passed `check_frozen` to a model, or to its `part` named `prefix`.

    Returns undo functions, to be called in reverse order. `dtype`: storage and compute dtype of branches; `device_of`:
    the device that computes a module. Modules that the model lacks are skipped.
    """
    begin = f"{prefix}." if prefix else ""
    modules, parameters = dict(part.named_modules()), dict(part.named_parameters())
    undo: list[Undo] = []
    for change in _changes(source, begin):
        inside = change.module.removeprefix(begin)
        if (linear := _linear_of_a_block(change.module, modules.get(inside))) is not None:
            found: Change | None = None
            if change.whole:  # as in ComfyUI, where a full change replaces the pair
                found = Whole(strength * source.values(change.module, change.whole))
            elif change.pair is not None:
                found = _at_strength(change.pair.change(change.module), strength)
            bias = strength * source.values(change.module, change.bias) if change.bias else None
            undo.append(_over(linear, _Branch(found, bias).to(device_of(change.module), dtype)))
        elif (weight := _weight_of(inside, parameters)) in parameters:
            undo += _edits(part, source, change, weight, strength)
    return undo


def _changes(source: LoraSource, begin: str = "") -> Iterator[_Changed]:
    """Yields a file's changes of modules whose names start with `begin`.

    Raises CheckpointError for kinds that need the base weight.
    """
    modules = {name: parts for name, parts in source.modules.items() if name.startswith(begin)}
    pairs = _pairs_of(replace(source, modules=modules))
    for module, parts in modules.items():
        whole, bias = (next((part for part in names if part in parts), "") for names in (_WHOLES, _BIASES))
        pair = pairs if pairs.modules[module].keys() - {"alpha"} else None
        if pair is not None and (what := pair.unlike_a_pair(module)):
            raise CheckpointError(
                f"{source.name} is {what} ({module}), which needs changed base weights, so it cannot be applied as a "
                "frozen LoRA. Choose a LoRA, LoKr or LoHa, set only_what_fits of the node that reads it, or merge it "
                "into the base model first."
            )
        yield _Changed(module, pair, whole, bias)


def _pairs_of(source: LoraSource) -> LoraSource:
    """Returns the file without full changes of weights and biases."""
    more, kept = {*_WHOLES, *_BIASES}, dict[str, Mapping[str, str]]()
    for name, parts in source.modules.items():
        kept[name] = {part: key for part, key in parts.items() if part not in more}
    return replace(source, modules=kept)


def what_cannot_act(source: LoraSource) -> str:
    """Returns the kind of a file in words, if that kind needs the base weight; "" for a supported kind."""
    return next(filter(None, map(_pairs_of(source).unlike_a_pair, source.modules)), "")


def _linear_of_a_block(name: str, module: nn.Module | None) -> nn.Linear | None:
    """Returns a block's linear, which gets a branch; the base layer where an adapter wraps it."""
    linear = getattr(module, "base_layer", module)
    return linear if isinstance(linear, nn.Linear) and block_of(name) is not None else None


def _weight_of(module: str, names: Mapping[str, Any]) -> str:
    """Returns the parameter that a module's change applies to; a modulation table has no module of its own."""
    return module if module in names else f"{module}.weight"


def _check_pair(change: _Changed, pair: LoraSource, shape: tuple[int, ...]) -> int:
    """Returns the number of values in the branch of a pair."""
    parts = pair.modules[change.module]
    if len(shape) != 2:  # a pair of a convolution is flattened to matrices, or has the sides of its weight
        down, up = (pair.header.tensors[parts[part]].shape if part in parts else () for part in ("down", "up"))
        if not down or not up or prod(up) != up[0] * down[0] or (up[0], prod(down[1:])) != (shape[0], prod(shape[1:])):
            raise _misfit(pair, change.module, (*up[:1], *down[1:]), shape)
        return 0
    if (own := pair.shape(change.module)) != shape:
        raise _misfit(pair, change.module, own, shape)
    values = {part: pair.header.tensors[key].shape for part, key in parts.items() if part != "alpha"}
    if pair.kind(change.module) != "LoHa":
        return sum(map(prod, values.values()))
    return min(prod(values[part][0] for part in ("hada_w1_b", "hada_w2_b")), *shape) * sum(shape)


def _misfit(source: LoraSource, name: str, own: tuple[int, ...], here: tuple[int, ...] | None) -> CheckpointError:
    return CheckpointError(
        f"{source.name} was trained for a model of another size: {name} is {own} there and {here} here. Choose a LoRA "
        "of this model, or set only_what_fits of the node that reads it."
    )


class _Branch(nn.Module):
    """Adds a LoRA to a linear's output. Not trained, and x is not saved for backward."""

    def __init__(self, change: Change | None, bias: Tensor | None) -> None:
        super().__init__()
        values = {} if change is None else {name: value for name, value in vars(change).items() if name != "scale"}
        self._kind: Any = type(change)
        self._names = tuple(values)
        for name, value in (values | ({} if bias is None else {"bias": bias})).items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor, result: Tensor) -> Tensor:
        """x (..., in), base output result (..., out) -> their sum in the dtype of result."""
        if self._names:
            values = [self.get_buffer(name) for name in self._names]
            result = result + self._kind(*values).product(x.to(values[0].dtype)).to(result.dtype)
        bias = getattr(self, "bias", None)
        return result if bias is None else result + bias.to(result.dtype)


def _at_strength(change: Change, strength: float) -> Change:
    """Returns the change multiplied by strength and scale; a LoHa becomes a pair, whose product is built once."""
    if isinstance(change, Kronecker):
        return Kronecker(strength * change.scale * change.first, change.second)
    if isinstance(change, Hadamard):
        found = change.factors(min(change.up1.shape[0], change.down1.shape[1]))
        return LowRank(found.down, strength * found.up)
    assert isinstance(change, LowRank)
    return LowRank(change.down, strength * change.scale * change.up)


def _over(linear: nn.Linear, branch: nn.Module) -> Undo:
    """Adds `branch` to the linear's forward, after any earlier branches; returns the function that undoes it."""
    own = linear.__dict__
    before = {name: own[name] for name in ("forward", "unread") if name in own}
    forward, unread = linear.forward, getattr(linear, "unread", None) or partial(unread_product, linear)
    number = sum(name.startswith("frozen_") for name, _ in linear.named_children())
    linear.add_module(f"frozen_{number}", branch)
    # Instance attributes shadow the methods: quantized linears keep their class, on which isinstance checks rely.
    own["forward"] = lambda x: branch(x, forward(x))
    own["unread"] = lambda x: branch(x, unread(x))

    def undo() -> None:
        delattr(linear, f"frozen_{number}")
        for name in ("forward", "unread"):
            own.pop(name)
        own.update(before)

    return undo


def _edits(part: nn.Module, source: LoraSource, change: _Changed, weight: str, strength: float) -> list[Undo]:
    """Changes weight and bias of a module that gets no branch."""
    undo: list[Undo] = []
    if change.whole:
        undo.append(_edit(part, weight, strength * source.values(change.module, change.whole)))
    elif change.pair is not None:
        undo.append(_edit(part, weight, strength * _delta(change.pair, change.module)))
    if change.bias:
        name = f"{weight.removesuffix('.weight')}.bias"
        undo.append(_edit(part, name, strength * source.values(change.module, change.bias)))
    return undo


def _delta(pair: LoraSource, module: str) -> Tensor:
    parts = pair.modules[module]
    if len(pair.header.tensors[parts.get("down", next(iter(parts.values())))].shape) == 2:
        return pair.change(module).delta()
    down, up = pair.values(module, "down"), pair.values(module, "up")
    return LowRank(down.flatten(1), up.flatten(1), scale=scale_of(pair.alpha(module), len(down))).delta()


def _edit(part: nn.Module, name: str, change: Tensor) -> Undo:
    """Adds to a parameter in place, on any device; the copy for undo is in host memory."""
    value = part.get_parameter(name)
    before = value.detach().to("cpu", copy=True)
    with torch.no_grad():
        value.copy_(before.float() + change.view(before.shape))

    def undo() -> None:
        with torch.no_grad():
            # The parameter is looked up again, because it may have been moved or replaced.
            part.get_parameter(name).copy_(before)

    return undo
