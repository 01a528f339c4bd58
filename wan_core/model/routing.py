"""Token routing (TREAD, arXiv 2501.04765): a share of the tokens skips some layers, and rejoins the others after them.

Routes have SimpleTuner's format. Every latent frame keeps the same number of tokens, in ascending order, so that
per-frame timesteps still apply to equal numbers of tokens. Tokens keep their RoPE positions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..config import Config, setting
from ..errors import ConfigError
from .block import Constants
from .conditioning import sent

_SHORT = re.compile(r"\s*([0-9.eE+-]+?)\s*:\s*(-?\d{1,9})\s*\.\.\s*(-?\d{1,9})\s*", re.ASCII)
_HOW = (
    'Write it as "0.5: 2..-2": share of the tokens that skip, first and last skipped layer; -1 is the last '
    'layer. Separate routes by ";".'
)


@dataclass(frozen=True, kw_only=True)
class Route(Config):
    """Consecutive layers that a share of the tokens skips; field names as in SimpleTuner."""

    selection_ratio: float = setting(0.5, "Share of the tokens (0 to 1) that passes by.", low=0.0, high=0.99)
    start_layer_idx: int = setting(2, "The first layer of the route, from 0; below 0 from the end.")
    end_layer_idx: int = setting(-2, "Its last layer, which belongs to it; -1 is the last of the model.")

    _refusals = ("tread_routes: {name} {value} is out of range. Use {low} to {high}.", "")

    def placed(self, layers: int) -> Route:
        """Returns the route with non-negative layer indices. Raises ConfigError if the model lacks these layers."""
        first, last = (index + layers if index < 0 else index for index in (self.start_layer_idx, self.end_layer_idx))
        if not 0 <= first <= last < layers:
            raise ConfigError(
                f"tread_routes goes from layer {self.start_layer_idx} to {self.end_layer_idx}, and this model has "
                f"layers 0 to {layers - 1}. Use for example 2 and -2, the first not behind the last."
            )
        return Route(selection_ratio=self.selection_ratio, start_layer_idx=first, end_layer_idx=last)

    def kept(self, tokens: int) -> int:
        """Returns how many of a latent frame's `tokens` do not skip the layers: at least one."""
        return max(1, tokens - round(tokens * self.selection_ratio))


def read_routes(text: str) -> tuple[Route, ...]:
    """Parses routes: `0.5: 2..-2; ...`, or SimpleTuner's JSON; an empty text has none.

    Raises ConfigError if `text` has neither format.
    """
    text = text.strip()
    if not text:
        return ()
    if text[0] in "[{":
        return _from_json(text)
    found = []
    for part in filter(str.strip, re.split("[;\n]", text)):
        match = _SHORT.fullmatch(part)
        if match is None:
            raise ConfigError(f'tread_routes has "{part.strip()[:60]}", which is not a route. {_HOW}')
        try:
            share = float(match[1])
        except ValueError:
            raise ConfigError(f'tread_routes has "{part.strip()[:60]}", whose share is not a number. {_HOW}') from None
        found.append({"selection_ratio": share, "start_layer_idx": int(match[2]), "end_layer_idx": int(match[3])})
    return tuple(Route.from_dict(one, "tread_routes") for one in found)


def _from_json(text: str) -> tuple[Route, ...]:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"tread_routes is no JSON: {text[:60]} ... {_HOW}") from None
    for outer in ("tread_config", "routes"):
        if isinstance(data, dict) and outer in data:
            data = cast("dict[str, Any]", data)[outer]
    listed = cast("list[Any]", data) if isinstance(data, list) else [data]
    names = {field.name for field in fields(Route)}
    for one in listed:
        if isinstance(one, dict) and (lacking := names - cast("dict[str, Any]", one).keys()):
            raise ConfigError(f"A route of tread_routes lacks {', '.join(sorted(lacking))}. {_HOW}")
    return tuple(Route.from_dict(one, f"tread_routes[{number}]") for number, one in enumerate(listed))


def placed_routes(routes: Sequence[Route], layers: int) -> tuple[Route, ...]:
    """Returns the routes for a model of `layers` layers, in layer order, without routes of ratio 0.

    Raises ConfigError if two routes share a layer, or the model lacks one.
    """
    placed = sorted((route.placed(layers) for route in routes), key=lambda route: route.start_layer_idx)
    for one, other in pairwise(placed):
        if other.start_layer_idx <= one.end_layer_idx:
            raise ConfigError(
                f"Two routes of tread_routes share layer {other.start_layer_idx}. Start each route after the end of "
                "the previous one."
            )
    return tuple(route for route in placed if route.selection_ratio > 0)


def tokens_by_layer(routes: Sequence[Route], layers: int, in_frame: int, frames: int) -> tuple[int, ...]:
    """Returns the number of tokens in each layer, for a clip of `frames` latent frames of `in_frame` tokens."""
    found = [in_frame * frames] * layers
    for route in placed_routes(routes, layers):
        for layer in range(route.start_layer_idx, route.end_layer_idx + 1):
            found[layer] = route.kept(in_frame) * frames
    return tuple(found)


class Passage(NamedTuple):
    """A route in one pass through the model: layers `first` to `last` see only the tokens `kept`."""

    first: int
    last: int
    kept: Tensor
    """(K,) int64 ascending indices, the same for every clip of the batch"""
    regroup: Any = None
    """moves tokens between copies around these layers, see `parts._Regrouped`; None: the copy runs its own kept
    tokens"""

    def through(self, streams: Streams) -> Streams:
        """Returns the streams reduced to kept tokens, (B, K, D) each, with their RoPE tables."""
        tokens, control, constants = streams
        cos, sin = self.some(constants.rope_cos, 0), self.some(constants.rope_sin, 0)
        here = constants._replace(rope_cos=cos, rope_sin=sin)
        return Streams(self.some(tokens), None if control is None else self.some(control), here)

    def some(self, tensor: Tensor, axis: int = 1) -> Tensor:
        """Returns the kept tokens out of N along `axis`."""
        if self.regroup is not None:
            return self.regroup.to_layers(tensor, axis)
        return tensor.index_select(axis, sent(self.kept, tensor.device))

    def rejoined(self, streams: Streams, before: Streams) -> Streams:
        """Returns the streams of all tokens, (B, N, D) each; tokens that skipped the route come from `before`."""

        def whole(some: Tensor, all_of_them: Tensor) -> Tensor:
            if self.regroup is not None:
                return self.regroup.to_owners(some, all_of_them)
            found = sent(all_of_them, some.device).clone()
            # Not index_copy, which would keep `some` for the backward pass.
            found[:, sent(self.kept, some.device)] = some
            return found

        tokens = whole(streams.tokens, before.tokens)
        if streams.control is None or before.control is None:
            return before._replace(tokens=tokens)
        return before._replace(tokens=tokens, control=whole(streams.control, before.control))


class Streams(NamedTuple):
    """The tensors that the layers of both streams read."""

    tokens: Tensor
    """(B, N, D)"""
    control: Tensor | None
    """(B, N, D) VACE's control stream"""
    constants: Constants


class Routing:
    """Applies the passages of one pass through the model, layer by layer."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._begin = {passage.first: passage for passage in passages}
        self._now: tuple[Passage, Streams] | None = None

    def before(self, layer: int, streams: Streams) -> Streams:
        """Returns the input of layer `layer`: reduced to kept tokens if a route begins there."""
        passage = self._begin.get(layer)
        if passage is None:
            return streams
        self._now = passage, streams
        return passage.through(streams)

    def seen(self, tokens: Tensor) -> Tensor:
        """Selects, from all tokens (B, N, D), the tokens in the layer that runs now."""
        return tokens if self._now is None else self._now[0].some(tokens)

    def moved(self, move: Callable[[Tensor], Tensor]) -> None:
        """Applies `move`, for example to another device, to the stored streams and constants, and to the kept
        indices."""
        self._begin = {first: one._replace(kept=move(one.kept)) for first, one in self._begin.items()}
        if self._now is not None:
            passage, before = self._now
            before = Streams(move(before.tokens), None, before.constants.moved(move))
            self._now = passage._replace(kept=move(passage.kept)), before

    def behind(self, layer: int, streams: Streams) -> Streams:
        """Returns the streams after layer `layer`: of all tokens again if a route ends there."""
        if self._now is None or self._now[0].last != layer:
            return streams
        (passage, before), self._now = self._now, None
        return passage.rejoined(streams, before)


def draw_passages(
    routes: Sequence[Route], frames: int, in_frame: int, generators: Sequence[torch.Generator]
) -> tuple[Passage, ...]:
    """Draws kept tokens for each of `placed_routes`, with one generator per route.

    A clip has `frames` latent frames of `in_frame` tokens.
    """
    starts = torch.arange(frames)[:, None] * in_frame
    found = []
    for route, generator in zip(routes, generators, strict=True):
        order = torch.rand(frames, in_frame, generator=generator).argsort(dim=1)
        kept = order[:, : route.kept(in_frame)].sort(dim=1).values + starts
        found.append(Passage(route.start_layer_idx, route.end_layer_idx, kept.flatten()))
    return tuple(found)
