"""Predicts the peak memory of a training step per device, before any weight is loaded.

Weights and optimizer are counted; activations come from tracing one real block (forward and backward, adapters
included) under fake tensors, which costs under a second for 14B and follows the code as it changes.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..model import Checkpointing, Numerics, WanBlock, WanShape, WanTransformer, block_of
from .plan import Placement

__all__ = [
    "MemoryEstimate",
    "StepShape",
    "estimate_memory",
]

_OPTIMIZER_BYTES = 16
"""per adapter value: float32 weight, gradient and AdamW's two moments"""
_STEP_BYTES = 8
"""per adapter value while AdamW runs: its temporary lists"""


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """The largest micro-batch of a job."""

    batch_size: int
    latent_frames: int
    latent_height: int
    latent_width: int
    text_rows: int = 512

    @property
    def tokens(self) -> int:
        return self.latent_frames * (self.latent_height // 2) * (self.latent_width // 2)


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Bytes on one device at the peak of a step."""

    weights: int
    adapters: int
    """LoRA weights, gradients and optimizer moments"""
    kept: int
    """what the forward pass keeps for the backward pass"""
    working: int
    """the largest temporary set on top"""

    @property
    def peak(self) -> int:
        return self.weights + self.adapters + self.kept + self.working


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Predicted peak per device name."""

    devices: dict[str, DeviceMemory]

    def to_dict(self) -> dict[str, dict[str, int]]:
        return {
            name: {
                "weights_bytes": m.weights,
                "adapters_bytes": m.adapters,
                "kept_bytes": m.kept,
                "working_bytes": m.working,
                "peak_bytes": m.peak,
            }
            for name, m in self.devices.items()
        }


def estimate_memory(
    shape: WanShape,
    numerics: Numerics,
    placement: Placement,
    step: StepShape,
    *,
    storage_bytes: Callable[[str, Tensor], int],
    adapt: Callable[[nn.Module], None],
    checkpoint_blocks: bool,
    unpacking_bytes: int = 0,
) -> MemoryEstimate:
    """Predict a step of `step` on `placement`.

    `storage_bytes(name, meta_parameter)` says what a base weight takes at rest; `adapt(block)` injects the adapters a
    block will train. `unpacking_bytes` is what the widest packed weight takes while its linear runs; nothing of it is
    kept.
    """
    with torch.device("meta"):
        model = WanTransformer(shape, numerics)
    adapters_of, trace = _adapters_once, _traced_once
    try:
        hash((shape, numerics, adapt))
    except TypeError:  # a shape made from JSON may hold lists
        adapters_of, trace = adapters_of.__wrapped__, trace.__wrapped__
    trained = adapters_of(shape, numerics, adapt)
    block = trace(shape, numerics, step, adapt, checkpoint_blocks, _most_adapted(trained))
    tokens = step.batch_size * step.tokens * shape.dim
    passing = tokens * numerics.residual.itemsize
    outputs = step.batch_size * step.tokens * 4 * max(shape.in_channels, shape.out_channels) * 4
    constants = _constants_bytes(shape, numerics, step)
    devices: dict[str, DeviceMemory] = {}
    for device in placement.devices:
        mine = sum(d == device for d in placement.block_devices)
        # VACE's second stream lives on the first device; a layer of it works and keeps as a block does.
        mine += len(shape.vace_layers) if device == placement.first else 0
        weights = sum(
            storage_bytes(name, p) for name, p in model.named_parameters() if placement.device_of(name) == device
        )
        kept = constants + (passing * mine if checkpoint_blocks else block.saved * mine + passing)
        # Latent, noise, noised input, target, prediction and their gradients live on the first device.
        kept += 6 * outputs if device == placement.first else 0
        working = (block.peak if checkpoint_blocks else block.backward) + unpacking_bytes
        head = 3 * tokens * numerics.head.itemsize if device == placement.first else 0
        adapters = sum(values for name, values in trained if placement.device_of(name) == device)
        optimizer_peak = adapters * _STEP_BYTES
        devices[str(device)] = DeviceMemory(
            weights=weights,
            adapters=adapters * _OPTIMIZER_BYTES,
            kept=kept,
            working=max(working, head, optimizer_peak - kept),
        )
    return MemoryEstimate(devices=devices)


@dataclass(frozen=True)
class _BlockTrace:
    saved: int
    """kept between forward and backward, its input not counted"""
    peak: int
    """forward and backward in one go, as under checkpointing"""
    backward: int
    """what backward needs above what forward kept"""


class _StorageMeter(TorchDispatchMode):
    """Counts bytes of live storages made under it; `peak` is the highest sum seen. Views of `known` are not new."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        for tensor in known:
            self._seen[tensor.untyped_storage()] = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        size = -(-storage.nbytes() // 512) * 512
        self._seen[storage] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._release, size)

    def _release(self, size: int) -> None:
        self.live -= size


@lru_cache(maxsize=64)
def _adapters_once(
    shape: WanShape, numerics: Numerics, adapt: Callable[[nn.Module], None]
) -> tuple[tuple[str, int], ...]:
    """Returns name and size of every adapter weight of the whole model: targets may name single blocks or streams."""
    with torch.device("meta"):
        model = WanTransformer(shape, numerics)
    adapt(model)
    return tuple((name, p.numel()) for name, p in model.named_parameters() if p.requires_grad)


@lru_cache(maxsize=64)
def _traced_once(
    shape: WanShape,
    numerics: Numerics,
    step: StepShape,
    adapt: Callable[[nn.Module], None],
    checkpoint_blocks: bool,
    number: int | None,
) -> _BlockTrace:
    """Keeps what `_trace_block` returns.

    Callables are equal where they are frozen dataclasses, as those of footprint.py.
    """
    return _trace_block(shape, numerics, step, adapt, checkpoint_blocks=checkpoint_blocks, number=number)


def _most_adapted(trained: Iterable[tuple[str, int]]) -> int | None:
    """Returns the number of the block with the most adapter values; None where only VACE's stream has any."""
    values: Counter[int] = Counter()
    for name, size in trained:
        place = block_of(name)
        if place is not None and place.stream == "blocks":
            values[place.number] += size
    return max(values, key=lambda number: values[number], default=None)


def _trace_block(
    shape: WanShape,
    numerics: Numerics,
    step: StepShape,
    adapt: Callable[[nn.Module], None],
    *,
    checkpoint_blocks: bool,
    number: int | None = 0,
) -> _BlockTrace:
    # One block as the loader builds it: frozen, compute dtype, adapters on top; without memory, then faked. Its number
    # decides which adapters it gets; without one it gets none.
    holder = nn.Module()
    with torch.device("meta"):
        block = WanBlock(shape, numerics).to(numerics.compute)
    holder.blocks = nn.ModuleDict({str(number): block})
    block.requires_grad_(False)
    if number is not None:
        adapt(holder)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode(False), torch.enable_grad():
        for module in holder.modules():
            for name, p in module.named_parameters(recurse=False):
                fake = torch.empty(p.shape, dtype=p.dtype)
                module.register_parameter(name, nn.Parameter(fake, requires_grad=p.requires_grad))
        head_dim = shape.dim // shape.num_heads
        tokens = torch.empty(step.batch_size, step.tokens, shape.dim, dtype=numerics.residual, requires_grad=True)
        rest = (
            torch.empty(step.batch_size, 1, 6, shape.dim, dtype=numerics.modulation),
            torch.empty(step.batch_size, step.text_rows, shape.dim, dtype=numerics.compute),
            torch.empty(step.tokens, 1, head_dim // 2, dtype=numerics.rope),
            torch.empty(step.tokens, 1, head_dim // 2, dtype=numerics.rope),
        )
        if shape.image_dim:
            rest += (torch.empty(step.batch_size, _image_rows(shape), shape.dim, dtype=numerics.compute),)
        with _StorageMeter([*block.parameters(), tokens, *rest]) as meter:
            output = block(tokens, *rest, recompute=Checkpointing(recomputes=checkpoint_blocks))
            saved, forward_peak = meter.live, meter.peak
            meter.peak = meter.live
            output.backward(torch.empty_like(output))
            peak = max(forward_peak, meter.peak)
            return _BlockTrace(saved, peak, meter.peak - saved)


def _image_rows(shape: WanShape) -> int:
    """Returns the CLIP tokens of one clip: 257 of the first frame, or as many as the model has positions for."""
    return shape.image_positions or 257


def _constants_bytes(shape: WanShape, numerics: Numerics, step: StepShape) -> int:
    head_dim = shape.dim // shape.num_heads
    rope = 2 * step.tokens * (head_dim // 2) * numerics.rope.itemsize
    rows = step.batch_size * step.text_rows * (shape.dim * numerics.compute.itemsize + shape.text_dim * 4)
    if shape.image_dim:
        rows += step.batch_size * _image_rows(shape) * (shape.dim * numerics.compute.itemsize + shape.image_dim * 4)
    return rope + rows + step.batch_size * 6 * shape.dim * numerics.modulation.itemsize
