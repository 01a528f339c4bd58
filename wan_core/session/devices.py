"""The devices of a worker hold one model at a time; the others are offloaded to host memory, or read again later."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack

from ..footprint import weights_once_loaded
from ..job.open import OpenRun
from ..model import WanTransformer
from ..placement.host import host_bytes
from ..placement.room import HOST_RESERVE, leaving_bytes, release_cached_memory, weights_out_of_the_way
from ..words import logger

_log = logger(__name__)


class Placed:
    """One of the models of a worker: on the devices, offloaded to host memory, or not loaded."""

    def __init__(self, run: OpenRun, read: Callable[[], WanTransformer], host: int | None = None) -> None:
        """`read` loads the model. `host`: bytes of host memory it was planned to take; None: those of its weights."""
        self.run, self._read, self._host = run, read, host
        self.held: WanTransformer | None = None
        """the model while it is loaded, on the devices or offloaded"""
        self.on_device = False
        self._away = ExitStack()

    @property
    def model(self) -> WanTransformer:
        """The model, which is loaded."""
        assert self.held is not None
        return self.held

    @property
    def needed(self) -> int:
        """The bytes of host memory that it takes when it comes to the devices."""
        if self.held is not None:
            return 0
        on_gpu = any(name != "cpu" for name in self.run.config.model.placement.device_names())
        planned = self._host if on_gpu else None
        return weights_once_loaded(self.run.config.model, self.run.file) if planned is None else planned

    def enter(self) -> None:
        """Come to the devices, which are free. On an error, as for want of memory, the model is dropped, of which
        anything may be half there; it can be called again."""
        try:
            if self.held is None:
                self.held = self._read()
            else:
                self._away.close()
            self.on_device = True
        except BaseException:
            self.drop()
            raise

    def leave(self, *, stays: bool) -> None:
        """Leave the devices; with `stays` the weights are kept in host memory."""
        self.on_device = False
        if stays:
            self._away.enter_context(weights_out_of_the_way(self.model, trained=True))
        else:
            self.drop()

    def drop(self) -> None:
        """Give up the model; it is read from its files when it is needed again."""
        self.held, self.on_device = None, False
        gc.collect()
        release_cached_memory()


class Devices:
    """Decides which model is on the devices of this worker, and where the one before it goes."""

    def __init__(self, processes: int = 1) -> None:
        """`processes`: how many share the memory of the computer and change models together."""
        self._processes = processes
        self._last: Placed | None = None

    @property
    def here(self) -> Placed | None:
        """The one that is on the devices; None before the first, and after an error on the way."""
        return self._last if self._last is not None and self._last.on_device else None

    @property
    def model(self) -> WanTransformer:
        """The model on the devices."""
        assert self.here is not None
        return self.here.model

    def bring(self, coming: Placed) -> None:
        """Bring a model to the devices. The one before it is offloaded where host memory holds both, else dropped.

        Raises what loading does.
        """
        leaving = self.here
        if leaving is coming:
            return
        if leaving is not None:
            stays = self._host_holds(leaving.model, coming.needed)
            where = "is offloaded to host memory" if stays else "will be read again"
            left, came = (one.run.config.train.expert_name for one in (leaving, coming))
            _log.info("%s %s; %s comes to the devices", left, where, came)
            leaving.leave(stays=stays)
        coming.enter()
        self._last = coming

    def _host_holds(self, leaving: WanTransformer, coming: int) -> bool:
        """Returns whether host memory holds what a model has on accelerators, and `coming` bytes of the next one."""
        free = host_bytes()
        return free is not None and leaving_bytes(leaving) + coming + HOST_RESERVE <= free // self._processes
