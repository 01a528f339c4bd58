"""Gives way when a device's memory runs out in a step: the same step is made again, with stronger measures.

A step changes nothing before its optimizer runs, so there is nothing to restore: its gradients are dropped, and what
torch reserved goes back to the driver. No measure changes a number; the run goes on as if nothing had happened.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from typing import TypeVar

from ..events import Emit, Note
from ..model import Policy, WanTransformer
from ..placement.offload import BlockOffload
from ..placement.room import device_memory_ran_out, release_cached_memory
from ..words import counted, first_line, logger

_log = logger(__name__)
R = TypeVar("R")


class Relief:
    """Tries again what ran out of memory; each time something more is given up.

    In this order: speed that was bought with memory, then the place of what blocks keep, then that of their weights.
    """

    def __init__(self, model: WanTransformer, emit: Emit) -> None:
        self._model, self._emit = model, emit
        self.gave_way = False
        """whether the run takes stronger measures by now than it was planned with"""

    def attempt(self, step: int, work: Callable[[], R], clear: Callable[[], None]) -> R:
        """Returns `work()`. Where it runs out of memory, `clear()` forgets what it left, and it is tried again.

        The first time nothing changes but that reserved memory is given back. Raises what it ran out with
        when nothing more can be given up.
        """
        for tries in itertools.count():
            try:
                return work()
            except RuntimeError as error:
                if not device_memory_ran_out(error):
                    raise
                # As text: the frames of a traceback hold the tensors of the attempt.
                _log.warning("step %s ran out of memory\n%s", step, traceback.format_exc())
                full = error.with_traceback(None)
                full.__context__ = full.__cause__ = None
            clear()
            release_cached_memory()
            if tries and not self._give_way(step, first_line(full)):
                raise full
        raise AssertionError("count() ends")

    def _give_way(self, step: int, said: str) -> bool:
        for measure in (self._check_all_blocks, self._keep_inputs_only, self._rest_more):
            if changed := measure():
                self.gave_way = True
                self._emit(
                    Note(
                        text=f"The GPU ran out of memory in step {step}. It is tried again with less, and nothing is "
                        f"lost: from now on {changed}. ({said})",
                        level="warning",
                    )
                )
                return True
        return False

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

    def _rest_more(self) -> str:
        before = self._model.offload
        if not isinstance(before, BlockOffload) or (offload := before.stronger(self._model)) is None:
            return ""
        self._model.offload = offload
        if not before.measures.offload_inputs:
            return "what gradient checkpointing keeps of each block rests in the computer's own memory"
        blocks = counted(offload.measures.blocks_to_swap, "block")
        return f"the frozen weights of {blocks} rest in the computer's own memory, and travel when they are needed"
