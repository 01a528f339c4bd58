"""Memory measures of a job: what it offloads, recomputes or splits so that it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..config import Config, setting
from ..model import CHUNK_TOKENS


@dataclass(frozen=True, kw_only=True)
class MemoryMeasures(Config):
    """The memory measures of one job. They cost time and, except for `chunk_tokens`, do not change results."""

    offload_inputs: bool = False
    """the inputs that activation checkpointing keeps are offloaded to pinned memory and prefetched one block ahead"""
    blocks_to_swap: int = setting(
        0, "Number of transformer blocks kept in CPU RAM and streamed to the GPU (block swap).", low=0, high=1000
    )
    """of all blocks, VACE's second stream included; in a split model, spread over its devices"""
    dequantize_once: bool = True
    """a stage dequantizes each weight once and holds the values for all chunks of tokens (14B: 0.39 GB in bfloat16);
    False: once a chunk"""

    chunk_tokens: int = setting(
        CHUNK_TOKENS, "Tokens that run through the second stage of a layer together, at most; 0 = all.", low=0
    )
    """each chunk's sum is rounded, so another size changes the last bits of the adapters' gradients"""

    in_turn: bool = False
    """the cards of a split model work one after the other, so that fewer micro-batches wait for their backward pass"""

    def stronger(self, blocks: int, *, split: bool = False) -> MemoryMeasures | None:
        """Returns the next stronger measures for a model of `blocks` blocks; None if these are the strongest.

        `split`: whether the model is split over cards. Offloaded blocks stay offloaded, because twice as many blocks
        always include the earlier ones (`swapped_blocks`).
        """
        if not self.offload_inputs:
            return replace(self, offload_inputs=True)
        if self.blocks_to_swap >= blocks:
            if self.dequantize_once:
                return replace(self, dequantize_once=False)
            return replace(self, in_turn=True) if split and not self.in_turn else None
        return replace(self, blocks_to_swap=min(2 * self.blocks_to_swap or -(-blocks // 8), blocks))


def running_order(num_layers: int, vace_layers: Sequence[int] = ()) -> list[str]:
    """Returns the names of all blocks in the order in which a forward pass runs them (`WanTransformer._run_blocks`)."""
    found: list[str] = []
    for layer in range(num_layers):
        found.append(f"blocks.{layer}")
        if layer in vace_layers:
            found.append(f"vace_blocks.{vace_layers.index(layer)}")
    return found


def swapped_blocks(order: Sequence[str], count: int) -> tuple[str, ...]:
    """Returns the `count` blocks of `order` that are offloaded: evenly spread, so that copies overlap with computing.

    The last block is always included, the first only if all are. A larger count means all blocks.
    """
    total = len(order)
    count = min(count, total)
    return tuple(name for index, name in enumerate(order) if (index + 1) * count // total > index * count // total)
