"""Split tokens: a copy of the model on each card computes a part of the tokens (Ulysses).

Tokens and heads are split equally, or in proportions such as the speeds of the cards.

Each copy has a host thread (the first copy uses the caller's), because a copy waits for the others in the middle of its
forward and backward pass. Copies exchange tokens in self-attention only (`model/heads.py`); everything
else is computed on every card. The optimizer has the adapters of the first card: their values are copied to
the others before a step, and gradients are summed once a step. Sampling uses the first card alone, because it may
change a model in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..accelerator import current
from ..errors import ConfigError
from ..lora import adapter_parameters, adapter_tensors, adapters_of
from ..model import Conditioning, Passage, WanTransformer, sent
from ..model.attention import WanSelfAttention
from ..model.heads import TokenSeat
from ..model.parts import Part, parts_of, video_places
from ..model.transformer import grid_of
from ..placement.offload import BlockOffload
from .exchange import Ended, Exchange


@dataclass
class _Copy:
    """One copy of the model on its device, with its thread (None: the caller's)."""

    model: WanTransformer
    device: torch.device
    seat: TokenSeat
    thread: ThreadPoolExecutor | None


_Inputs = tuple[Tensor, Tensor, Tensor, Conditioning]
"""latent, timestep, text and conditioning of a pass, on one device"""


@dataclass
class _Pass:
    team: SplitTokens
    parts: list[Part]
    """tokens of each copy, on its device"""
    places: list[Tensor]
    """indexes of each copy's tokens in the video, (n,) int64 on its device"""
    patches: list[Tensor]
    """output (B, n, C) of each copy, with its graph"""

    def forward(self, inputs: list[_Inputs], *, grads: bool) -> Tensor:
        """Returns the tokens of the video (B, N, C) on the first device, without a graph."""

        def work(number: int, model: WanTransformer) -> Tensor:
            latent, timestep, text, given = inputs[number]
            part = self.parts[number]
            return model.patches(latent, timestep, text, given, part.passages, part)

        self.patches = self.team.run(work, grads=grads)
        first = self.patches[0]
        whole = first.new_empty(first.shape[0], sum(one.shape[1] for one in self.patches), first.shape[2])
        for places, patches in zip(self.places, self.patches, strict=True):
            whole.index_copy_(1, sent(places, first.device), sent(patches.detach(), first.device))
        return whole

    def backward(self, gradient: Tensor) -> None:
        """Runs the backward pass of all copies, from the gradient (B, N, C) of the result of `forward`."""
        own = [sent(gradient.index_select(1, sent(at, gradient.device)), at.device) for at in self.places]
        patches, self.patches = self.patches, []
        self.team.run(lambda number, _model: torch.autograd.backward(patches[number], own[number]), grads=True)


class SplitTokens:
    """The `Team` of `first` and its further copies."""

    def __init__(
        self, first: WanTransformer, copies: Sequence[WanTransformer], proportions: Sequence[int] = ()
    ) -> None:
        """`copies`: models like `first` with the same adapters, each on another device. `proportions`: of tokens and
        heads, for `first` and each copy; () for equal parts."""
        self.copies, self._proportions = tuple(copies), tuple(proportions) or (1,) * (1 + len(copies))
        models = (first, *copies)
        devices = [next(model.parameters()).device for model in models]
        drops = any(adapter.config.dropout for adapter in adapters_of(first))
        if drops and any(device.type == "cpu" for device in devices):  # Threads share the CPU's random generator.
            raise ConfigError("Split tokens cannot drop inputs of a LoRA on a CPU: set dropout to 0, or use GPUs.")
        self._exchange = Exchange(devices)
        self._all: list[_Copy] = []
        for number, (model, device) in enumerate(zip(models, devices, strict=True)):
            seat = TokenSeat(self._exchange, number, self._proportions, first.shape.num_heads)
            for module in model.modules():
                if isinstance(module, WanSelfAttention):
                    module.seat = seat
            thread = ThreadPoolExecutor(1, f"wan tokens {device}") if number else None
            self._all.append(_Copy(model, device, seat, thread))
        self.watches = False
        self._sent = False
        """whether the copies have the adapter values of this step"""

    def patches(
        self, latent: Tensor, timestep: Tensor, text: Tensor, given: Conditioning, passages: Sequence[Passage]
    ) -> Tensor:
        """Returns `WanTransformer.patches` of all tokens, (B, N, C), on the first device."""
        grads = torch.is_grad_enabled()
        self._send_settings()
        self._send_values()
        frames, height, width = grid_of(latent)
        more = given.reference is not None
        devices = [one.device for one in self._all]
        seats = [one.seat for one in self._all]
        parts = parts_of(frames + more, height * width, devices, passages, self._proportions, seats)
        inputs = [
            (sent(latent, one.device), sent(timestep, one.device), sent(text, one.device), given.to(one.device))
            for one in self._all
        ]
        places = [video_places(part, frames + more, height * width * more) for part in parts]
        made = _Pass(self, parts, places, [])
        anchor = latent.new_empty(0, dtype=torch.float32).requires_grad_()
        return cast(Tensor, _Together.apply(made, inputs, anchor) if grads else made.forward(inputs, grads=False))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, passes without gradients are split too, with the current adapters of the first copy."""
        self._sent, self.watches = False, True
        try:
            yield
        finally:
            self._sent, self.watches = False, False

    def sum_gradients(self) -> None:
        """Add the gradients of the other copies to the first copy's, in the order of the copies."""
        mine = adapter_parameters(self._all[0].model)
        for one in self._all[1:]:
            for name, parameter in adapter_parameters(one.model).items():
                if parameter.grad is None:
                    continue
                gradient = sent(parameter.grad, mine[name].device)
                own = mine[name].grad
                mine[name].grad = gradient if own is None else own.add_(gradient)
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Drop the gradients of all copies but the first. Called between steps."""
        self._sent = False
        for one in self._all[1:]:
            for parameter in adapter_parameters(one.model).values():
                parameter.grad = None

    def _send_settings(self) -> None:
        """Set checkpointing, chunks and offload of all copies as in the first one."""
        first = self._all[0].model
        for one in self._all[1:]:
            model = one.model
            for name in ("checkpoint_blocks", "checkpoint_policy", "unchecked_blocks", "checkpoint_keeps_rng"):
                setattr(model, name, getattr(first, name))
            model.train(first.training)
            if model.chunk_tokens != first.chunk_tokens:
                model.run_in_chunks(first.chunk_tokens)
            if isinstance(wanted := first.offload, BlockOffload):
                while isinstance(here := model.offload, BlockOffload) and here.measures != wanted.measures:
                    stronger = here.stronger(model)
                    assert stronger is not None, "measures become stronger in one order"
                    model.offload = stronger

    def _send_values(self) -> None:
        """Copy the adapters of the first copy to the others, before the first pass of a step.

        The version counter of a tensor does not show whether that is needed, because torch's fused AdamW does not
        increase it.
        """
        if self._sent:
            return
        values = adapter_tensors(self._all[0].model)
        with torch.no_grad():
            for one in self._all[1:]:
                for name, value in adapter_tensors(one.model).items():
                    value.copy_(values[name], non_blocking=True)
        self._sent = True

    def run(self, work: Callable[[int, WanTransformer], Any], *, grads: bool) -> list[Any]:
        """Runs `work(number, model)` for every copy in its thread, and returns the results.

        After an error, the other copies end at their next exchange, and the first error is raised.
        """
        with self._joined():
            others = [
                one.thread.submit(self._guarded, number, work, grads)
                for number, one in enumerate(self._all)
                if one.thread is not None
            ]
            found = [self._guarded(0, work, grads), *(other.result() for other in others)]
        errors = [one for one in found if isinstance(one, BaseException)]
        if errors:
            raise next((one for one in errors if not isinstance(one, Ended)), errors[0])
        return found

    def _guarded(self, number: int, work: Callable[[int, WanTransformer], Any], grads: bool) -> Any:
        one = self._all[number]
        try:
            with current(one.device), torch.inference_mode(False), torch.set_grad_enabled(grads):
                return work(number, one.model)
        except BaseException as error:  # raised below; other copies wait for this one
            self._exchange.end()
            return error

    @contextmanager
    def _joined(self) -> Iterator[None]:
        for one in self._all:
            one.seat.joined = True
        try:
            yield
        finally:
            for one in self._all:
                one.seat.joined = False
            self._exchange.restart()


class _Together(torch.autograd.Function):
    """All copies as one node of the caller's graph; each copy has its own graph and thread."""

    @staticmethod
    def forward(ctx: Any, made: _Pass, inputs: list[_Inputs], _anchor: Tensor) -> Tensor:
        ctx.made = made
        return made.forward(inputs, grads=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.made.backward(gradients[0])
        return None, None, None
