"""Gradient checkpointing of a block: it keeps its inputs, and the backward pass recomputes it stage by stage.

It needs less memory than `torch.utils.checkpoint`. Stage 2 is recomputed and differentiated chunk by chunk, so its
widest tensors exist for one chunk only. Inputs of linears are recomputed too (`remade`); torch's checkpoint would keep
them. Frozen weights and kept inputs may be offloaded between the passes.
On a CPU the gradients equal those without checkpointing bit for bit, also if several passes accumulate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..accelerator import random_state, set_random_state
from ..kernels import made_once, parameters_below, storage_number, without_autocast
from .keeping import Kept, Policy
from .narrowed import narrowed
from .offload import NoOffload, Offload
from .scopes import scope
from .stages import Stages, as_tuple, chunks

_FEW_TOKENS = 2048
"""largest batch, in tokens, for which recomputation keeps the inputs of linears, to save kernel launches"""


@dataclass(frozen=True)
class Checkpointing:
    """Runs one block: loads its offloaded weights and checkpoints its activations. A `Recompute`."""

    block: str = ""
    """the block's name, for example blocks.7"""
    _: KW_ONLY
    recomputes: bool = True
    """False: the block keeps its activations; its weights must then not be offloaded"""
    offload: Offload = NoOffload()
    policy: Policy = Policy()
    """activations to keep besides the inputs"""
    keeps_rng: bool = False
    """whether to restore random states before recomputing; only LoRA dropout needs it"""

    def __call__(self, stages: Stages, *inputs: Any) -> Tensor | tuple[Tensor, ...]:
        """Returns `stages(*inputs)`: the inputs are token streams (B, N, D) and, last, the constants."""
        with scope(self.block, "forward"):
            return self._run(stages, *inputs)

    def _run(self, stages: Stages, *inputs: Any) -> Tensor | tuple[Tensor, ...]:
        *streams, constants = inputs
        if not self.offload.holds_values:
            stages = stages._replace(hold=nullcontext)
        trained = next((p for p in parameters_below(stages.layer) if p.requires_grad), None)
        wanted = trained is not None or any(t is not None and t.requires_grad for t in (*streams, *constants))
        if not (self.recomputes and wanted and torch.is_grad_enabled()):
            with self.offload.weights(self.block, again=False):
                return stages(*inputs)
        # Parameters are no inputs of the autograd function. If no input requires grad, the anchor makes the output do.
        anchor = None if trained is None else trained.new_empty(0).requires_grad_()
        return _Checkpointed.apply(
            _Pass(self, stages, len(streams), type(constants)._make), anchor, *streams, *constants
        )


@dataclass
class _Pass:
    """One forward and backward pass of one layer."""

    how: Checkpointing
    stages: Stages
    streams: int
    """number of leading inputs that are token streams; the others are the constants"""
    constants: Callable[[Sequence[Tensor | None]], Any]
    taken: Callable[[], Tensor] | None = None
    """loads the layer's offloaded input; None: it was not offloaded"""
    kept: Kept | None = None
    """activations that the policy keeps"""
    drawn: list[_RandomState] = field(default_factory=list)
    """random states before stage 1, before `share`, and before each chunk"""

    def run(self, inputs: Sequence[Tensor | None]) -> Tensor | tuple[Tensor, ...]:
        """Runs the forward pass."""
        stages, parts, near = self.stages, itertools.count(), inputs[0]
        if self.how.policy:
            self.kept = Kept(self.how.policy, self.how.offload)

        def noted(stage: Callable[..., Any]) -> Callable[..., Any]:
            def run(*inputs: Any) -> Any:
                part = next(parts)
                if self.how.keeps_rng:
                    self.drawn.append(_RandomState.now(near))
                with self.kept.seen(part, again=False) if self.kept is not None else nullcontext():
                    return stage(*inputs)

            return run

        if self.kept is not None or self.how.keeps_rng:
            stages = stages._replace(mix=noted(stages.mix), share=noted(stages.share), rest=noted(stages.rest))
        return stages(*inputs[: self.streams], self.constants(inputs[self.streams :]))

    def _again(self, part: int) -> AbstractContextManager[None]:
        """Inside, `part` is recomputed with its random state and kept activations; 0 stage 1, 1 `share`, 2.. chunks."""
        if self.drawn:
            self.drawn[part].restore()
        return self.kept.seen(part, again=True) if self.kept is not None else nullcontext()

    def weights(self, *, again: bool) -> AbstractContextManager[None]:
        return self.how.offload.weights(self.how.block, again=again)

    def backward(self, inputs: Sequence[Tensor | None], gradients: Sequence[Tensor | None]) -> None:
        """Recomputes the layer and adds to `.grad` of `inputs` and of its parameters; call it with gradients on."""
        with self.stages.keep(), narrowed(self.stages.layer, backward=True) as trained:
            self._run_backward(inputs, gradients, trained.gather)

    def _run_backward(
        self, inputs: Sequence[Tensor | None], gradients: Sequence[Tensor | None], gather: Callable[[], None]
    ) -> None:
        stages, constants = self.stages, self.constants(inputs[self.streams :])
        first = inputs[0]
        assert first is not None
        few = first.shape[0] * first.shape[1] <= _FEW_TOKENS
        with scope("recompute stage 1"), self._again(0), made_once() if few else nullcontext():
            tokens = stages.mix(*inputs[: self.streams], constants)
        with scope("recompute keys and values of the text"), self._again(1):
            shared = stages.share(constants)
        apart = [value.detach().requires_grad_(value.requires_grad) for value in shared]
        values, reached, rest = tokens.detach(), False, stages.again or stages.rest
        sums: list[Tensor | None] = [None] * len(apart)
        parts = chunks(stages, tokens, constants)
        # One chunk may keep the inputs of its linears, because stage 1, which runs on all tokens, needs more memory.
        with stages.hold(), made_once() if few or len(parts) > 1 else nullcontext():
            # The last chunk comes first, in the order in which autograd would sum the gradients.
            for number, (part, own) in reversed(list(enumerate(parts))):
                piece = values[:, part].detach().requires_grad_(tokens.requires_grad)
                with scope("recompute stage 2"), self._again(2 + number):
                    outputs = as_tuple(rest(piece, own, tuple(apart)))
                pairs = zip(outputs, gradients, strict=True)
                with scope("backward of stage 2"):
                    _backward([(output, g[:, part]) for output, g in pairs if g is not None and output.requires_grad])
                    # Not after the last chunk: the backward pass of stage 1 follows, and gathers the gradients of both
                    # stages.
                    if number:
                        gather()
                del outputs, pairs
                sums = _added(sums, apart)
                if piece.grad is None:
                    continue
                reached = True
                if len(parts) == 1:
                    values = piece.grad
                elif storage_number(piece.grad) != storage_number(values):
                    # These tokens are no longer needed, so their gradient overwrites them, unless it is in that memory
                    # already.
                    with torch.no_grad():
                        values[:, part] = piece.grad
        with scope("backward of stage 1"):
            _backward([(value, total) for value, total in zip(shared, sums, strict=True) if total is not None])
            if reached:
                _backward([(tokens, values)])
            gather()


@torch.no_grad()
def _added(sums: list[Tensor | None], leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """Adds the gradients of `leaves` to `sums`, returns the sums, and sets the leaves' `.grad` to None."""
    pairs = zip(sums, leaves, strict=True)
    both = [(own, leaf.grad) for own, leaf in pairs if own is not None and leaf.grad is not None]
    if both:
        torch._foreach_add_(*(list(parts) for parts in zip(*both, strict=True)))  # pyright: ignore[reportPrivateUsage]
    found = [leaf.grad if own is None else own for own, leaf in zip(sums, leaves, strict=True)]
    for leaf in leaves:
        leaf.grad = None
    return found


def _backward(ends: list[tuple[Tensor, Tensor]]) -> None:
    """Runs autograd's backward pass from pairs of an output (any shape) and its gradient.

    It calls the engine directly: `torch.autograd.backward` compares shapes symbolically first, and importing sympy for
    that costs 0.3 CPU seconds at every start.
    """
    if ends:
        values, gradients = zip(*ends, strict=True)
        engine: Any = torch.autograd.Variable._execution_engine  # pyright: ignore[reportPrivateUsage]
        engine.run_backward(values, gradients, False, False, (), allow_unreachable=True, accumulate_grad=True)


class _Checkpointed(torch.autograd.Function):
    """Its inputs: the pass, an anchor (empty tensor or None), the token streams, the constants."""

    @staticmethod
    def forward(ctx: Any, layer: _Pass, _anchor: Tensor | None, *inputs: Tensor | None) -> Any:
        assert inputs[0] is not None
        # The copy starts before the layer runs, so that both overlap. Only the first input is offloaded: all layers
        # read the others.
        layer.taken = layer.how.offload.put(inputs[0])
        with layer.weights(again=False), narrowed(layer.stages.layer, backward=False):
            outputs = layer.run(inputs)
        ctx.set_materialize_grads(False)
        ctx.layer = layer
        ctx.save_for_backward(*((None, *inputs[1:]) if layer.taken is not None else inputs))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        layer: _Pass = ctx.layer
        with scope(layer.how.block, "backward"):
            first, *others = ctx.saved_tensors
            if layer.kept is not None:
                layer.kept.fetch()
            if layer.taken is not None:
                first, layer.taken = layer.taken(), None
            wanted = ctx.needs_input_grad[2:]
            inputs = [
                None if value is None else value.detach().requires_grad_(wants)
                for value, wants in zip((first, *others), wanted, strict=True)
            ]
            before, device = (_RandomState.now(first) if layer.drawn else None), first.device.type
            del first, others
            with layer.weights(again=True), _summed_apart(layer.stages.layer), torch.enable_grad():
                without_autocast(device, layer.backward, inputs, gradients)
            if before is not None:
                before.restore()
            return None, None, *(None if value is None else value.grad for value in inputs)


@contextmanager
def _summed_apart(module: nn.Module) -> Iterator[None]:
    """Inside, `.grad` of the module's parameters is None; afterwards the gradients from before are added.

    Autograd sums the gradients of one pass first, and then adds that sum to earlier passes' gradients. Adding each
    chunk's gradient to `.grad` at once would differ in the last bit.
    """
    every = {id(p): p for p in parameters_below(module)}
    before = [(p, gradient) for p in every.values() if (gradient := p.grad) is not None]
    for p, _ in before:
        p.grad = None
    yield
    added = [(gradient, p.grad) for p, gradient in before if p.grad is not None]
    if added:
        with torch.no_grad():
            torch._foreach_add_(*(list(parts) for parts in zip(*added, strict=True)))  # pyright: ignore[reportPrivateUsage]
    for p, gradient in before:
        p.grad = gradient


class _RandomState(NamedTuple):
    """The random states of the CPU and of one GPU."""

    of_cpu: Tensor
    device: torch.device
    of_device: Tensor | None
    """None for a device without a generator of its own"""

    @classmethod
    def now(cls, near: Tensor | None) -> _RandomState:
        """Returns the current states; `near` lies on the GPU in question."""
        device = torch.device("cpu") if near is None else near.device
        return cls(torch.get_rng_state(), device, random_state(device))

    def restore(self) -> None:
        torch.set_rng_state(self.of_cpu)
        if self.of_device is not None:
            set_random_state(self.device, self.of_device)
