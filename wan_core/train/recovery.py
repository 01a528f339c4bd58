"""Recovery of a failed step: out of memory (`Relief`), float16 overflow (`LossScale`), not finite (`Streak`).

A step changes no state before its optimizer update, so `Trainer` drops the gradients and retries.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..accelerator import empty_cache
from ..errors import TrainingError
from ..events import Emit, Note, StepSkipped
from ..model import CHUNK_TOKENS, Policy, WanTransformer
from ..parallel import RankTokens, ShardedBlocks
from ..placement.model_offload import device_memory_ran_out
from ..placement.offload import BlockOffload
from ..words import counted, first_line, logger

_log = logger(__name__)
LOSS_SCALINGS = ("off", "dynamic")
_FIRST, _LEAST, _MOST = 2.0**16, 1.0, 2.0**24
_GOOD_STEPS = 2000
"""consecutive steps without overflow after which the factor doubles, as in torch's GradScaler"""
_SCALE = "loss_scale"
_REASONS = {"loss": "the loss is not finite", "gradients": "the gradients are not finite"}


class NotFinite(TrainingError):  # noqa: N818  an event; the session adds which saved step is good
    """Too many consecutive steps were not finite."""


class Streak:
    """Counts consecutive steps that were not finite; after such steps the weights may be unusable."""

    def __init__(self, limit: int, emit: Emit) -> None:
        """`limit`: consecutive bad steps that end the run."""
        self.length = 0
        self._limit, self._emit = limit, emit

    def add(self, step: int, what: str) -> None:
        """Emits `step` as skipped because `what` (loss, gradients) was not finite. Raises NotFinite at the limit."""
        self.length += 1
        self._emit(StepSkipped(step=step, reason=_REASONS[what], in_a_row=self.length))
        self.check(step, what)

    def check(self, step: int, what: str, tries: int = 0) -> None:
        """Raises NotFinite if the streak and `tries` attempts after the last `step` have reached the limit together."""
        if (bad := self.length + tries) >= self._limit:
            raise NotFinite(
                "{bad} steps in a row gave no usable {what} (NaN or infinity), the last one step {step}.",
                bad=bad,
                what=what,
                step=step,
            )

    def end(self) -> None:
        """End the streak: a step was finite, so its weights are too."""
        self.length = 0


class LossScale:
    """Loss scaling for float16; factor 1 if it is off.

    float16 underflows below 6e-8, and the gradient of a mean over a clip starts near 1e-6. Scaling by a power of two is
    exact in float32. Unlike with torch's GradScaler, an overflow repeats the step with half the factor.
    """

    def __init__(self, scaling: str) -> None:
        """`scaling`: one of LOSS_SCALINGS."""
        self._on = scaling == "dynamic"
        self.factor, self._good = _FIRST if self._on else _LEAST, 0

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the scaled loss, a scalar."""
        return loss * self.factor if self._on else loss

    def unscale(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Divides the float32 gradients by the factor, in place."""
        if self._on:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(1.0 / self.factor)

    def halve(self) -> bool:
        """Halves the factor after an overflow; returns False if it is 1 already."""
        if self.factor <= _LEAST:
            return False
        self.factor, self._good = self.factor / 2, 0
        return True

    def count(self) -> None:
        """Counts a finite step; doubles the factor after `_GOOD_STEPS` of them."""
        self._good += 1
        if self._good >= _GOOD_STEPS:
            self.factor, self._good = min(2 * self.factor, _MOST), 0

    def state(self) -> dict[str, Tensor]:
        """Returns the factor and the good steps since it changed, (2,) float64; nothing if it is off."""
        return {_SCALE: torch.tensor([self.factor, self._good], dtype=torch.float64)} if self._on else {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Loads `state()`."""
        if self._on and _SCALE in state:
            factor, good = state[_SCALE].tolist()
            self.factor, self._good = factor, int(good)


class Relief:
    """Frees memory when a step runs out of it.

    In order: chunks of CHUNK_TOKENS, checkpoint all blocks, keep only their inputs, offload these inputs, offload more
    weights. Smaller chunks change the last bit of the adapters' gradients; no other measure changes a number.
    """

    def __init__(self, model: WanTransformer, emit: Emit, *, alone: bool = True) -> None:
        """`alone`: no other rank trains the model; ranks keep one size of chunks."""
        self._model, self._emit, self._alone = model, emit, alone
        self.used_fallback = False
        """whether the run uses stronger measures than planned"""

    def caught(self, step: int, error: RuntimeError) -> RuntimeError:
        """Returns an out-of-memory `error` without its frames; raises any other error."""
        if not device_memory_ran_out(error):
            raise error
        # Logged as text: a kept traceback would keep the tensors of the step.
        _log.warning("step %s ran out of memory\n%s", step, traceback.format_exc())
        error.__context__ = error.__cause__ = None
        return error.with_traceback(None)

    def make_room(self, step: int, error: RuntimeError, *, stronger: bool) -> None:
        """Frees cached memory and, with `stronger`, takes the next measure.

        Raises `error` after the last measure, or if this rank shares blocks or clips with others.
        """
        empty_cache()
        if isinstance(self._model.offload, ShardedBlocks) or isinstance(self._model.team, RankTokens):
            raise error  # The other ranks wait for this rank's part of a block or clip, so it cannot retry alone.
        if not stronger:
            return
        for measure in (self._shorten_chunks, self._check_all_blocks, self._keep_inputs_only, self._offload_more):
            if changed := measure():
                self.used_fallback = True
                text = (
                    f"The GPU ran out of memory in step {step}. The step is repeated with less memory, and nothing "
                    f"is lost: from now on {changed}. ({first_line(error)})"
                )
                self._emit(Note(text=text, level="warning"))
                return
        raise error

    def _shorten_chunks(self) -> str:
        if not self._alone or 0 < self._model.chunk_tokens <= CHUNK_TOKENS:
            return ""
        self._model.run_in_chunks(CHUNK_TOKENS)
        return (
            f"feed-forward and cross-attention run {CHUNK_TOKENS} tokens together; sums of gradients differ in the "
            "last bit"
        )

    def _check_all_blocks(self) -> str:
        model = self._model
        if model.checkpoint_blocks and not model.unchecked_blocks:
            return ""
        model.checkpoint_blocks, model.unchecked_blocks = True, 0
        return "every block is recomputed in the backward pass; a step takes up to a third longer"

    def _keep_inputs_only(self) -> str:
        if not self._model.checkpoint_policy:
            return ""
        self._model.checkpoint_policy = Policy()
        return "gradient checkpointing keeps nothing but the input of a block; a step takes up to a fifth longer"

    def _offload_more(self) -> str:
        before = self._model.offload
        if not isinstance(before, BlockOffload) or (offload := before.stronger(self._model)) is None:
            return ""
        self._model.offload = offload
        if not before.measures.offload_inputs:
            return "the block inputs that gradient checkpointing keeps are offloaded to CPU RAM"
        if offload.measures.in_turn:
            return "the cards work one after the other; a step takes up to twice as long"
        if not offload.measures.dequantize_once:
            return "quantized weights are dequantized for each chunk of tokens instead of once for all"
        blocks = counted(offload.measures.blocks_to_swap, "block")
        return f"the frozen weights of {blocks} are offloaded to CPU RAM and loaded when they are needed (block swap)"
