"""The interface by which a model offloads the frozen weights of a block, and its activations for the backward pass.

The model calls it around each block; the placement room decides what is offloaded, and copies it.
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

        `again`: the block is recomputed in the backward pass, so the blocks before it follow.
        """
        ...

    def put(self, kept: Tensor) -> Callable[[], Tensor] | None:
        """Takes a tensor of any shape, never changed later, that the backward pass of the next block needs.

        The backward pass reads it once, in the reverse order of the puts.

        Returns a function that loads it, bit for bit, to its device; None where it stays on the device.
        """
        ...


class NoOffload:
    """Everything stays where it is."""

    holds_values = True

    def weights(self, block: str, *, again: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def put(self, kept: Tensor) -> Callable[[], Tensor] | None:
        return None
