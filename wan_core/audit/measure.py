"""Runs one model forward and backward in several dtypes on the same noised clips, and measures the errors.

An error is a relative L2 norm, |found - exact| / |exact|, computed in float64. Measured are the velocity,
all LoRA gradients as one vector, and each block's output and gradients.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..accelerator import is_gpu, memory_of, reset_peak, synchronize
from ..errors import Stopped
from ..flow import velocity_loss
from ..lora import adapter_parameters
from ..model import Numerics, WanTransformer
from ..train import NoisedBatch, true_velocity
from .any_dtype import compute_in
from .candidates import REFERENCE

_ROWS_PER_BLOCK = 64
"""number of evenly spaced tokens that are compared per block, so that 40 blocks need little memory"""


@dataclass(frozen=True)
class Distance:
    """The error of a tensor, or of several tensors as one vector, against the reference."""

    relative: float
    """relative L2 norm; NaN or infinity for an overflow"""
    cosine: float
    largest: float
    """largest absolute difference, divided by the root mean square of the reference"""


@dataclass(frozen=True)
class Pass:
    velocity: Tensor
    gradients: dict[str, Tensor]
    """adapter parameter name -> error of its gradient"""
    stream: tuple[Tensor, ...]
    """the compared tokens after each block, (B, tokens, dim) float32 on the CPU"""
    seconds: float
    memory_bytes: int
    """peak memory of the first GPU; 0 without a GPU"""


@dataclass
class Measurement:
    """The errors of one set of dtypes against the reference, with an entry per point (clip and timestep)."""

    output: list[Distance] = field(default_factory=list[Distance])
    gradient: list[Distance] = field(default_factory=list[Distance])
    block_output: list[list[float]] = field(default_factory=list[list[float]])
    block_gradient: list[list[float]] = field(default_factory=list[list[float]])
    seconds: list[float] = field(default_factory=list[float])
    memory_bytes: int = 0

    def add(self, found: Pass, exact: Pass) -> None:
        self.output.append(_distance([(found.velocity, exact.velocity)]))
        pairs = {name: (value, exact.gradients[name]) for name, value in found.gradients.items()}
        self.gradient.append(_distance(list(pairs.values())))
        streams = zip(found.stream, exact.stream, strict=True)
        self.block_output.append([_distance([pair]).relative for pair in streams])
        groups: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for name, pair in pairs.items():
            groups.setdefault(".".join(name.split(".")[:2]), []).append(pair)
        self.block_gradient.append([_distance(group).relative for group in groups.values()])
        self.seconds.append(found.seconds)
        self.memory_bytes = max(self.memory_bytes, found.memory_bytes)


def measure(
    model: WanTransformer,
    points: Callable[[], Iterator[NoisedBatch]],
    numerics: Sequence[Numerics],
    *,
    on_pass: Callable[[], None],
    stop_reason: Callable[[], str],
) -> tuple[dict[Numerics, Measurement], list[float]]:
    """Measures each set of dtypes against `REFERENCE` on all points; also returns the seconds of the reference passes.

    `model` has adapters, and linears that cast (any_dtype.py). `on_pass` is called after each pass. Raises Stopped
    between blocks once `stop_reason` returns a text. No gradients are left on the model.
    """
    found = {wanted: Measurement() for wanted in numerics}
    reference_s: list[float] = []
    runner = _Runner(model, stop_reason)
    try:
        for point in points():
            exact = runner.run(point, REFERENCE)
            reference_s.append(exact.seconds)
            on_pass()
            for wanted, measurement in found.items():
                measurement.add(runner.run(point, wanted), exact)
                on_pass()
    finally:
        runner.close()
    return found, reference_s


class _Runner:
    def __init__(self, model: WanTransformer, stop_reason: Callable[[], str]) -> None:
        self._model, self._stop_reason = model, stop_reason
        self._parameters = adapter_parameters(model)
        self._stream: list[Tensor] | None = None
        self._hooks = [block.register_forward_hook(self._after_block) for block in model.blocks]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._drop_gradients()

    def run(self, point: NoisedBatch, numerics: Numerics) -> Pass:
        """Runs the forward and backward pass of a training step in these dtypes."""
        compute_in(self._model, numerics)
        self._drop_gradients()
        device = point.noised.device
        on_gpu = is_gpu(device)
        if on_gpu:
            reset_peak(device)
        synchronize(device)
        began = time.perf_counter()
        self._stream = []
        velocity = self._model(point.noised, point.timestep, point.text, point.conditioning)
        # Taken away before the backward pass, so that its recompute does not record into it.
        stream, self._stream = self._stream, None
        velocity_loss(velocity, true_velocity(point), point.trained).backward()
        synchronize(device)
        seconds = time.perf_counter() - began
        gradients = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        self._drop_gradients()
        return Pass(
            velocity.detach(), gradients, tuple(stream), seconds, (memory_of(device)["peak"] or 0) if on_gpu else 0
        )

    def _after_block(self, _block: Any, _inputs: Any, output: Tensor) -> None:
        if reason := self._stop_reason():
            raise Stopped(reason)
        if self._stream is not None:
            count = output.shape[1]
            rows = torch.linspace(0, count - 1, min(count, _ROWS_PER_BLOCK)).long()
            self._stream.append(output.detach()[:, rows.to(output.device)].float().cpu())

    def _drop_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None


def _distance(pairs: Sequence[tuple[Tensor, Tensor]]) -> Distance:
    """Returns the distance of (found, exact) tensors of equal shapes, as one vector."""
    difference = exact_square = found_square = product = largest = 0.0
    count = 0
    for found, exact in pairs:
        a, b = found.double(), exact.double()
        apart = a - b
        difference += float(apart.square().sum())
        exact_square += float(b.square().sum())
        found_square += float(a.square().sum())
        product += float((a * b).sum())
        largest = max(largest, float(apart.abs().max()))
        count += b.numel()
    if not exact_square:
        same = not difference
        return Distance(0.0 if same else math.inf, 1.0 if same else 0.0, 0.0 if same else math.inf)
    lengths = math.sqrt(exact_square) * math.sqrt(found_square)
    return Distance(
        relative=math.sqrt(difference / exact_square),
        cosine=product / lengths if lengths else 0.0,
        largest=largest / math.sqrt(exact_square / count),
    )
