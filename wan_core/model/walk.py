"""One forward pass through the blocks, which can pause between two blocks and continue on another device.

Shapes as in transformer.py: B batch, N tokens, D width, T time rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from .block import Constants
from .routing import Passage, Routing, Streams
from .scopes import scope


class Carrier(Protocol):
    """Moves tensors to the device of the module that runs next."""

    def to_block(self, index: int, tokens: Tensor, constants: Constants) -> tuple[Tensor, Constants]: ...

    def to_head(self, tokens: Tensor, time: Tensor) -> tuple[Tensor, Tensor]: ...

    def to_start(self, predicted: Tensor) -> Tensor: ...


class StayHere:
    """Moves nothing: for a model on one device, and for a pass whose caller moves the tensors."""

    def to_block(self, index: int, tokens: Tensor, constants: Constants) -> tuple[Tensor, Constants]:
        return tokens, constants

    def to_head(self, tokens: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        return tokens, time

    def to_start(self, predicted: Tensor) -> Tensor:
        return predicted


@dataclass
class Walk:
    """A forward pass whose next block is number `layer`; it holds the tensors that the remaining blocks read."""

    model: Any
    """the WanTransformer, whose module imports this one"""
    carrier: Carrier
    grid: tuple[int, int, int]
    """the video's tokens: latent frames, rows, columns"""
    tokens: Tensor
    """(B, N, D) the main stream"""
    time: Tensor
    """(B, T, D) time embedding of the head"""
    constants: Constants
    reference_tokens: int = 0
    """number of reference image tokens, before the video's"""
    context_tokens: int = 0
    """number of context stream or pose video tokens, after the video's"""
    control: Tensor | None = None
    """(B, N, D) VACE's control stream"""
    hint_strength: float = 1.0
    passages: Sequence[Passage] = ()
    layer: int = 0
    hints: dict[int, Tensor] = field(default_factory=dict)
    """block number -> VACE hint (B, N, D) that `run_control` computed in advance"""

    def __post_init__(self) -> None:
        self._routing = Routing(self.passages)
        self._start: Tensor | None = self.tokens

    def go_on(self, stop: int | None = None) -> None:
        """Runs the blocks before number `stop`; None: all remaining blocks."""
        for index in range(self.layer, len(self.model.blocks) if stop is None else stop):
            self._run_block(index)
        self.layer = len(self.model.blocks) if stop is None else stop

    def _run_block(self, index: int) -> None:
        model, routing = self.model, self._routing
        tokens, control, constants = routing.before(index, Streams(self.tokens, self.control, self.constants))
        tokens, here = self.carrier.to_block(index, tokens, constants)
        if index not in model.skipped_blocks:
            tokens = model.blocks[index](tokens, *here, recompute=model.recompute_of("blocks", index))
        hint = self.hints.pop(index, None)
        if control is not None and index in model.shape.vace_layers:
            # The control stream stays on the first device, where its blocks are; only hints are copied.
            control, hint = self._run_control(index, control, constants, routing)
            hint, _ = self.carrier.to_block(index, hint, constants)
        if hint is not None:
            tokens = torch.add(tokens, hint.to(tokens.dtype), alpha=self.hint_strength)
        self.tokens, self.control, self.constants = routing.behind(index, Streams(tokens, control, constants))

    def _run_control(self, index: int, control: Tensor, constants: Constants, routing: Routing) -> Any:
        """Runs the VACE block that belongs to block `index`; returns control and hint."""
        number = self.model.shape.vace_layers.index(index)
        assert self._start is not None
        # Only the first VACE layer reads the main stream.
        start = routing.seen(self._start) if number == 0 else self._start
        block, recompute = self.model.vace_blocks[number], self.model.recompute_of("vace_blocks", number)
        return block(control, start, *constants, recompute=recompute)

    def run_control(self) -> None:
        """Runs all VACE blocks, if there are any, and stores their hints in `hints`.

        The main stream may then move to another device.
        """
        if self.control is None:
            return
        routing, control, constants = Routing(self.passages), self.control, self.constants
        for index in range(len(self.model.blocks)):
            control, _, constants = routing.before(index, Streams(control, None, constants))
            if index in self.model.shape.vace_layers:
                control, self.hints[index] = self._run_control(index, control, constants, routing)
            control, _, constants = routing.behind(index, Streams(control, None, constants))
        self.control = self._start = None

    def moved(self, move: Callable[[Tensor], Tensor]) -> None:
        """Applies `move` to every tensor that the remaining blocks or the head read."""
        self._start = None
        self.tokens, self.time = move(self.tokens), move(self.time)
        self.constants = self.constants.moved(move)
        self.hints = {layer: move(hint) for layer, hint in self.hints.items()}
        self._routing.moved(move)

    def patches(self) -> Tensor:
        """Runs the head, after the last block; returns the video's tokens (B, N, 4 * C_out)."""
        self._start = None
        with scope("head"):
            tokens = self.tokens[:, : self.tokens.shape[1] - self.context_tokens]
            tokens, time = self.carrier.to_head(tokens, self.time)
            if self.reference_tokens:
                tokens, time = tokens[:, self.reference_tokens :], time[:, -max(time.shape[1] - 1, 1) :]
            return self.model.head(tokens, time)

    def end(self) -> Tensor:
        """Runs the head, after the last block; returns the velocity (B, C, F, H, W) on the first device."""
        return self.carrier.to_start(self.model.unpatchify(self.patches(), self.grid))
