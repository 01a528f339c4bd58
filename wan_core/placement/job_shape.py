"""The job that a plan counts: its base model, where that lies, its adapters, and how they are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor, nn

from ..model import Numerics, Route, WanShape, block_of, model_without_values, tokens_by_layer
from .plan import Placement
from .short_model import AsBlock, Recomputing, StepShape


@dataclass(frozen=True, kw_only=True)
class JobShape:
    """The base model of a job, where it lies, and how it is trained."""

    shape: WanShape
    numerics: Numerics
    placement: Placement
    storage_bytes: Callable[[str, Tensor], int]
    """(name, meta parameter) -> the stored bytes of a base weight"""
    adapt: Callable[[nn.Module], None]
    """injects the adapters into a model without values, of this shape but for fewer layers"""
    adapter_values: Mapping[str, int]
    """values of the adapters of each linear that has some, by original Wan name"""
    as_loaded: Callable[[nn.Module], None] | None = None
    """quantizes the weights of such a model, then does what `adapt` does; None: `adapt` does all"""
    optimizer_bytes: float = 8.0
    """what the optimizer holds on the device for each adapter value; AdamW its two moments"""
    optimizer_host_bytes: float = 0.0
    """the same in host memory, where it steps there: what it holds, and the weights and gradients it steps with"""
    recomputing: Recomputing = Recomputing()
    unpacking_bytes: int = 0
    """what the widest packed weight takes while its linear runs; nothing of it is kept"""
    routes: tuple[Route, ...] = ()
    """layers that a share of the tokens passes by"""
    others: tuple[torch.device, ...] = ()
    """devices that each hold such a model too, and run a part of the tokens; `placement` is that of the first"""
    shares: tuple[int, ...] = ()
    """the proportions in which the first and `others` share out tokens and heads; () for equal parts"""
    sharers: int = 1
    """how many processes of the machine have the swapped weights together (shared.py)"""
    under_way: tuple[float, ...] = ()
    """of a split whose cards work at once: the micro-batches that each device keeps for the backward pass, at most,
    in the order of `placement.devices`; () where a backward pass ends before the next micro-batch begins"""
    sharders: int = 1
    """how many processes hold a part of each block and gather it while it runs (parallel/sharded.py)"""
    parts: int = 1
    """how many processes train one clip together, each a part of its tokens (parallel/ranks.py)"""
    exchange: str = "all-to-all"
    """how cards that share out tokens exchange them: all-to-all or ring"""

    @property
    def cards(self) -> int:
        """How many cards share out the tokens of a clip."""
        return max(1 + len(self.others), len(self.shares), self.parts)

    def on_card(self, step: StepShape, number: int = 0) -> StepShape:
        """Returns the part of `step` that card `number` computes where cards share out the tokens.

        Equal parts differ by one token of a frame at most; then it is the largest part, whatever `number` is.
        """
        if self.shares:
            return replace(step, parts=self.shares, card=number)
        return replace(step, parts=(1,) * self.cards, card=self.cards - 1)

    @cached_property
    def base_weights(self) -> tuple[tuple[str, str, int, bool], ...]:
        """Of every base weight its device, its block ("" outside of blocks), its stored bytes, and whether it is one
        of a linear."""
        return tuple(
            (str(self.placement.device_of(name)), block, self.storage_bytes(name, parameter), of_a_linear)
            for name, parameter, block, of_a_linear in _weights_of(self.shape, self.numerics)
        )

    @cached_property
    def largest_values(self) -> int:
        """How many values the largest base weight has."""
        return max(parameter.numel() for _, parameter, _, _ in _weights_of(self.shape, self.numerics))

    def tokens(self, step: StepShape) -> tuple[int, ...]:
        """Returns how many tokens of a clip go through each layer of the main stream."""
        found = tokens_by_layer(self.routes, self.shape.num_layers, step.in_frame, step.latent_frames)
        return tuple(tokens + step.context_tokens for tokens in found)

    @cached_property
    def layouts(self) -> tuple[int, ...]:
        """Of each layer of the main stream the number of the first one that has the same adapters."""
        found: list[list[tuple[str, int]]] = [[] for _ in range(self.shape.num_layers)]
        for name, values in self.adapter_values.items():
            if (block := block_of(name)) is not None and block.stream == "blocks":
                found[block.number].append((block.inside, values))
        return tuple(map(found.index, found))

    def walks(self, layer: int) -> bool:
        """Returns whether a layer of the main stream has a backward pass: it has adapters, or an earlier layer does."""
        return layer >= self._first_walked

    @cached_property
    def _first_walked(self) -> int:
        blocks = [block for name in self.adapter_values if (block := block_of(name)) is not None]
        second = [self.shape.vace_layers[block.number] + 1 for block in blocks if block.stream != "blocks"]
        return min([block.number for block in blocks if block.stream == "blocks"] + second, default=0)

    def as_block(self, adapt: Callable[[nn.Module], None], layer: int) -> AsBlock:
        """Returns what adapts a short model whose layers are all like `layer`; `adapt`: of this job."""
        return AsBlock(adapt, self.layouts[layer], self._first_of_second_stream)

    @cached_property
    def _first_of_second_stream(self) -> int:
        blocks = [block for name in self.adapter_values if (block := block_of(name)) is not None]
        return min([block.number for block in blocks if block.stream != "blocks"], default=0)

    def unchecked_on(self, device: torch.device) -> int:
        """Returns how many of the last blocks, which keep their activations, lie on `device`."""
        last = self.placement.block_devices[len(self.placement.block_devices) - self.recomputing.unchecked :]
        return sum(one == device for one in last)


@lru_cache(maxsize=8)
def _weights_of(shape: WanShape, numerics: Numerics) -> tuple[tuple[str, Tensor, str, bool], ...]:
    """Returns of every base weight its name, itself without values, its block ("" outside of blocks), and whether it
    is one of a linear; cached: planning one job needs them dozens of times."""
    model = model_without_values(shape, numerics)
    linears = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return tuple(
        (name, parameter, _block_name(name), name.rpartition(".")[0] in linears)
        for name, parameter in model.named_parameters()
    )


def _block_name(name: str) -> str:
    found = block_of(name)
    return "" if found is None else f"{found.stream}.{found.number}"
