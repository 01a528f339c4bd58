"""Two models take turns on the devices: one is there, the other rests in host memory or is read again."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from typing import Generic, TypeVar

from ..model import WanTransformer
from ..placement.host import host_bytes
from ..placement.room import HOST_RESERVE, leaving_bytes, release_cached_memory, weights_out_of_the_way

Held = TypeVar("Held")


class DevicePlace(Generic[Held]):
    """The place of one of the models: it is on the devices, rests in host memory, or is not loaded."""

    def __init__(self, model_of: Callable[[Held], WanTransformer]) -> None:
        """`model_of` returns the model in what is held: it may come with a trainer."""
        self.held: Held | None = None
        self._model_of = model_of
        self._away = ExitStack()

    def come(self, read: Callable[[], Held]) -> Held:
        """Returns what is on the devices from now on: home from host memory, else what `read` returns.

        Where that fails, as for want of memory, the model is given up, of which anything may be half there; it can be
        asked again.
        """
        try:
            if self.held is None:
                self.held = read()
            else:
                self._away.close()
            return self.held
        except BaseException:
            self.give_up()
            raise

    def leave(self, *, stays: bool) -> None:
        """Leave the devices to the other one; with `stays` the weights are kept in host memory."""
        if stays and self.held is not None:
            self._away.enter_context(weights_out_of_the_way(self._model_of(self.held), trained=True))
        else:
            self.give_up()

    def give_up(self) -> None:
        """Drop the model; it is read from its files when it is needed again."""
        self.held = None
        gc.collect()
        release_cached_memory()


def host_holds(leaving: WanTransformer, coming: int, processes: int = 1) -> bool:
    """Returns whether host memory holds what a model has on accelerators, beside `coming` bytes of another one there.

    `processes`: how many share that memory and ask the same.
    """
    free = host_bytes()
    return free is not None and leaving_bytes(leaving) + coming + HOST_RESERVE <= free // processes
