"""The part of a job that predictions depend on: base model, placement, adapters, and how they are trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor, nn

from ..model import Numerics, Route, WanShape, block_of, model_without_values, tokens_by_layer
from .plan import Placement
from .short_model import AsBlock, Recomputing, StepShape


@dataclass(frozen=True)
class TunerBytes:
    """The bytes of a tuner of PEFT beside its trained values, in one linear or together."""

    fixed: int = 0
    """of values that are not trained"""
    kept: int = 0
    """kept by the forward pass for the backward pass"""
    passing: int = 0
    """temporary while a layer runs"""


@dataclass(frozen=True, kw_only=True)
class JobShape:
    """Base model, placement, adapters and training of a job."""

    shape: WanShape
    numerics: Numerics
    placement: Placement
    storage_bytes: Callable[[str, Tensor], int]
    """(name, meta parameter) -> the stored bytes of a base weight"""
    adapt: Callable[[nn.Module], None]
    """injects the adapters into a meta model of this shape, with fewer layers"""
    adapter_values: Mapping[str, int]
    """original Wan name of each adapted linear -> number of adapter values"""
    tuner_bytes: Mapping[str, TunerBytes] = field(default_factory=dict[str, TunerBytes])
    """linear -> bytes of its tuner of PEFT beside the trained values"""
    as_loaded: Callable[[nn.Module], None] | None = None
    """quantizes the weights of such a model, then adapts it; None: only `adapt`"""
    optimizer_bytes: float = 8.0
    """optimizer state on the device, in bytes for each adapter value; AdamW: two moments"""
    optimizer_host_bytes: float = 0.0
    """for an optimizer that steps in host memory: bytes there for each value, of its state, weights and gradients"""
    recomputing: Recomputing = Recomputing()
    unpacking_bytes: int = 0
    """temporary bytes of the widest quantized weight while its linear runs"""
    routes: tuple[Route, ...] = ()
    """layers that a share of the tokens skips"""
    others: tuple[torch.device, ...] = ()
    """further devices of split tokens, each with a copy of the model; `placement` is that of the first copy"""
    shares: tuple[int, ...] = ()
    """proportions of tokens and heads on the first device and on `others`; () for equal parts"""
    sharers: int = 1
    """number of processes that share the swapped weights in host memory (shared.py)"""
    under_way: tuple[float, ...] = ()
    """for split blocks whose cards work at once: the most micro-batches that each device keeps for the backward pass,
    in the order of `placement.devices`; () if a backward pass ends before the next micro-batch begins"""
    sharders: int = 1
    """number of processes that each hold a part of every block and gather it while it runs (parallel/sharded.py)"""
    parts: int = 1
    """number of processes that train one clip together, each a part of its tokens (parallel/ranks.py)"""
    exchange: str = "all-to-all"
    """exchange of cards that split tokens: all-to-all or ring"""

    @property
    def cards(self) -> int:
        """Number of cards that split the tokens of a clip."""
        return max(1 + len(self.others), len(self.shares), self.parts)

    def on_card(self, step: StepShape, number: int = 0) -> StepShape:
        """Returns the part of `step` on card `number`, if cards split the tokens.

        Equal parts differ by at most one token of a frame; then this is the largest part, for every `number`.
        """
        if self.shares:
            return replace(step, parts=self.shares, card=number)
        return replace(step, parts=(1,) * self.cards, card=self.cards - 1)

    @cached_property
    def base_weights(self) -> tuple[tuple[str, str, int, bool], ...]:
        """For every base weight: device, block ("" outside of blocks), stored bytes, whether it belongs to a linear."""
        return tuple(
            (str(self.placement.device_of(name)), block, self.storage_bytes(name, parameter), of_a_linear)
            for name, parameter, block, of_a_linear in _weights_of(self.shape, self.numerics)
        )

    @cached_property
    def largest_values(self) -> int:
        """Number of values of the largest base weight."""
        return max(parameter.numel() for _, parameter, _, _ in _weights_of(self.shape, self.numerics))

    def tokens(self, step: StepShape) -> tuple[int, ...]:
        """Returns the number of tokens of a clip in each layer of the main stream."""
        found = tokens_by_layer(self.routes, self.shape.num_layers, step.in_frame, step.latent_frames)
        return tuple(tokens + step.context_tokens for tokens in found)

    @cached_property
    def layouts(self) -> tuple[int, ...]:
        """For each layer of the main stream, the number of the first layer with the same adapters."""
        found: list[list[tuple[str, int]]] = [[] for _ in range(self.shape.num_layers)]
        for name, values in self.adapter_values.items():
            if (block := block_of(name)) is not None and block.stream == "blocks":
                found[block.number].append((block.inside, values))
        return tuple(map(found.index, found))

    def walks(self, layer: int) -> bool:
        """Returns whether a layer of the main stream has a backward pass: it or an earlier layer has adapters."""
        return layer >= self._first_walked

    @cached_property
    def _first_walked(self) -> int:
        blocks = [block for name in self.adapter_values if (block := block_of(name)) is not None]
        second = [self.shape.vace_layers[block.number] + 1 for block in blocks if block.stream != "blocks"]
        return min([block.number for block in blocks if block.stream == "blocks"] + second, default=0)

    def as_block(self, adapt: Callable[[nn.Module], None], layer: int) -> AsBlock:
        """Returns the `adapt` of a short model whose layers are all like `layer`."""
        return AsBlock(adapt, self.layouts[layer], self._first_of_second_stream)

    @cached_property
    def _first_of_second_stream(self) -> int:
        blocks = [block for name in self.adapter_values if (block := block_of(name)) is not None]
        return min([block.number for block in blocks if block.stream != "blocks"], default=0)

    def tuners_on(self, device: torch.device) -> TunerBytes:
        """Returns the bytes of the tuners on `device`: of a step for `kept`, of the largest layer for `passing`."""
        mine = {name: one for name, one in self.tuner_bytes.items() if self.placement.device_of(name) == device}
        blocks = Counter[str]()
        for name, one in mine.items():
            blocks[_block_name(name)] += one.kept
        sizes = sorted(blocks.values(), reverse=True)
        # The block that is recomputed, and those that are not.
        held = 1 + self.unchecked_on(device) if self.recomputing.blocks else len(sizes)
        passing = max((one.passing for one in mine.values()), default=0)
        return TunerBytes(sum(one.fixed for one in mine.values()), sum(sizes[:held]), passing)

    def unchecked_on(self, device: torch.device) -> int:
        """Returns the number of unchecked blocks on `device`."""
        last = self.placement.block_devices[len(self.placement.block_devices) - self.recomputing.unchecked :]
        return sum(one == device for one in last)


@lru_cache(maxsize=8)
def _weights_of(shape: WanShape, numerics: Numerics) -> tuple[tuple[str, Tensor, str, bool], ...]:
    """Returns for every base weight: name, meta tensor, block ("" outside of blocks), whether it belongs to a linear.

    Cached, because planning a job needs them dozens of times.
    """
    model = model_without_values(shape, numerics)
    linears = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return tuple(
        (name, parameter, _block_name(name), name.rpartition(".")[0] in linears)
        for name, parameter in model.named_parameters()
    )


def _block_name(name: str) -> str:
    found = block_of(name)
    return "" if found is None else f"{found.stream}.{found.number}"
