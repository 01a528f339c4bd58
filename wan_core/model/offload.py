"""Lets things leave the device around a block: its frozen weights, and what is kept of it for the backward pass.

The model says when; the placement room decides whether anything leaves, and copies it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor


class Offload(Protocol):
    """Decides what of a block rests in host memory while the block does not run."""

    @property
    def holds_values(self) -> bool:
        """Whether a stage keeps its dequantized weights from its first chunk of tokens to the last."""
        ...

    def weights(self, block: str, *, again: bool) -> AbstractContextManager[None]:
        """Inside, every frozen weight of `block` (for example blocks.7) lies on the block's device.

        `again`: the block runs in the backward pass, so the blocks before it come next.
        """
        ...

    def put(self, kept: Tensor) -> Callable[[], Tensor] | None:
        """Takes over what the block that runs next will need again: a tensor of any shape, which nobody changes.

        The backward pass reads it once, in the reverse order of the puts.

        Returns what gives it back, bit for bit, on the device it came from; None where it shall stay there.
        """
        ...


class NoOffload:
    """Everything stays where it is."""

    holds_values = True

    def weights(self, block: str, *, again: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def put(self, kept: Tensor) -> Callable[[], Tensor] | None:
        return None
