"""The interface by which a model offloads a block's frozen weights, and its activations for the backward pass.

The model calls it around each block; the room `placement` implements it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor


class Offload(Protocol):
    """Decides which tensors of a block are offloaded to host memory while the block does not run."""

    @property
    def holds_values(self) -> bool:
        """Whether a stage keeps its dequantized weights from its first chunk of tokens to the last."""
        ...

    def weights(self, block: str, *, again: bool) -> AbstractContextManager[None]:
        """Inside, every frozen weight of `block` (for example blocks.7) lies on the block's device.

        `again`: this is the backward pass, so the next block is the one before it.
        """
        ...

    def put(self, kept: Tensor) -> Callable[[], Tensor] | None:
        """Starts to copy `kept` (any shape, needed in the backward pass, not modified until then) to host memory.

        Returns a function that loads the copy, bit for bit, to its device; None if the tensor stays on the device. Call
        these functions once each, in the reverse order of the puts.
        """
        ...


class NoOffload:
    """Offloads nothing."""

    holds_values = True

    def weights(self, block: str, *, again: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def put(self, kept: Tensor) -> Callable[[], Tensor] | None:
        return None
