"""Gradient checkpointing of a layer: its inputs are kept, and the backward pass runs it again, stage by stage.

Ours and not torch's, for what the backward pass holds at once. The second stage of a layer is run again and walked
backward by chunks, so its widest tensors exist for a chunk only; what `remade` makes again is made again here too
(torch's checkpoint keeps it); and the frozen weights and the kept inputs may rest elsewhere between the passes.
The gradients are those of a pass that keeps everything, bit for bit on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from .autocast import without_autocast
from .offload import NoOffload, Offload
from .stages import Stages, as_tuple, chunks

__all__ = ["Checkpointing"]


@dataclass(frozen=True)
class Checkpointing:
    """Runs a layer with its weights in place, and so that only its inputs are kept: a `Recompute` for one block."""

    block: str = ""
    """its name, for example blocks.7"""
    _: KW_ONLY
    recomputes: bool = True
    """False: it keeps its activations as any module does; its weights must then stay where they are"""
    offload: Offload = NoOffload()
    keeps_rng: bool = False
    """needed only when the layer draws random numbers (LoRA dropout)"""

    def __call__(self, stages: Stages, *inputs: Any) -> Tensor | tuple[Tensor, ...]:
        """Returns `stages(*inputs)`: the inputs are token streams (B, N, D) and, last, the constants."""
        *streams, constants = inputs
        # A trained parameter among the inputs makes the output want a gradient where the tokens do not.
        anchor = next((p for p in stages.layer.parameters() if p.requires_grad), None)
        tensors = [anchor, *streams, *constants]
        trains = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
        if not (self.recomputes and trains):
            with self.offload.weights(self.block, again=False):
                return stages(*inputs)
        return _Checkpointed.apply(_Pass(self, stages, len(streams), type(constants)._make), *tensors)


@dataclass
class _Pass:
    """One pass through one layer."""

    how: Checkpointing
    stages: Stages
    streams: int
    """how many of the inputs are token streams; the others are the constants"""
    constants: Callable[[Sequence[Tensor | None]], Any]
    taken: Callable[[], Tensor] | None = None
    """gives back the layer's own input, where it was offloaded"""
    rng: tuple[Tensor, list[int], list[Tensor]] | None = None

    def run(self, inputs: Sequence[Tensor | None]) -> Tensor | tuple[Tensor, ...]:
        return self.stages(*inputs[: self.streams], self.constants(inputs[self.streams :]))

    def weights(self, *, again: bool) -> AbstractContextManager[None]:
        return self.how.offload.weights(self.how.block, again=again)

    def walk_back(self, inputs: Sequence[Tensor | None], gradients: Sequence[Tensor | None]) -> None:
        """Runs the layer again and adds to `.grad` of `inputs` and of its parameters; call it with gradients on."""
        stages, constants = self.stages, self.constants(inputs[self.streams :])
        tokens = stages.mix(*inputs[: self.streams], constants)
        shared = stages.share(constants)
        apart = [value.detach().requires_grad_(value.requires_grad) for value in shared]
        values, gradient = tokens.detach(), None
        # From the last chunk to the first: the order in which autograd would walk them.
        for part, own in reversed(chunks(stages, tokens, constants)):
            piece = values[:, part].requires_grad_(tokens.requires_grad)
            pairs = zip(as_tuple(stages.rest(piece, own, tuple(apart))), gradients, strict=True)
            found = [(output, given[:, part]) for output, given in pairs if given is not None and output.requires_grad]
            if found:
                torch.autograd.backward(*zip(*found, strict=True))
            if piece.grad is not None:
                gradient = torch.zeros_like(values) if gradient is None else gradient
                gradient[:, part] = piece.grad
        del values
        if ends := [(value, leaf.grad) for value, leaf in zip(shared, apart, strict=True) if leaf.grad is not None]:
            torch.autograd.backward(*zip(*ends, strict=True))
        if gradient is not None:
            tokens.backward(gradient)


class _Checkpointed(torch.autograd.Function):
    """Inputs after the pass: a trained parameter or None, the token streams, the constants."""

    @staticmethod
    def forward(ctx: Any, layer: _Pass, _anchor: Tensor | None, *inputs: Tensor | None) -> Any:
        if layer.how.keeps_rng:
            layer.rng = torch.get_rng_state(), *get_device_states(*inputs)
        with layer.weights(again=False):
            outputs = layer.run(inputs)
        ctx.set_materialize_grads(False)
        ctx.layer = layer
        assert inputs[0] is not None
        # Only the layer's own input is offloaded; whatever else it reads, others keep too.
        layer.taken = layer.how.offload.put(inputs[0])
        ctx.save_for_backward(*((None, *inputs[1:]) if layer.taken is not None else inputs))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        layer: _Pass = ctx.layer
        first, *others = ctx.saved_tensors
        if layer.taken is not None:
            first, layer.taken = layer.taken(), None
        wanted = ctx.needs_input_grad[2:]
        inputs = [
            None if value is None else value.detach().requires_grad_(wants)
            for value, wants in zip((first, *others), wanted, strict=True)
        ]
        device = first.device.type
        del first, others
        with layer.weights(again=True), _same_random_numbers(layer), torch.enable_grad():
            without_autocast(device, layer.walk_back, inputs, gradients)
        return None, None, *(None if value is None else value.grad for value in inputs)


@contextmanager
def _same_random_numbers(layer: _Pass) -> Iterator[None]:
    """Inside, the layer draws what it drew in the first pass; afterwards the generators are as they were."""
    if layer.rng is None:
        yield
        return
    of_cpu, devices, states = layer.rng
    with torch.random.fork_rng(devices=devices):
        torch.set_rng_state(of_cpu)
        set_device_states(devices, states)
        yield
