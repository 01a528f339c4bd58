"""The models of a worker, one at a time on a device; others are offloaded to host memory, or dropped and read again."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack

from ..accelerator import empty_cache
from ..footprint import weights_once_loaded
from ..job.open import OpenRun
from ..model import WanTransformer
from ..placement.host import host_bytes
from ..placement.model_offload import HOST_RESERVE, bytes_to_offload, offloaded_model
from ..words import logger

_log = logger(__name__)


class Placed:
    """A model: on the devices, offloaded to host memory, or not loaded."""

    def __init__(self, run: OpenRun, read: Callable[[], WanTransformer], host: int | None = None) -> None:
        """`read` loads the model. `host`: its planned bytes of host memory; None: the bytes of its weights."""
        self.run, self._read, self._host = run, read, host
        self.loaded: WanTransformer | None = None
        """the model while it is loaded, on the devices or offloaded"""
        self.on_device = False
        self._offloaded = ExitStack()

    @property
    def model(self) -> WanTransformer:
        """The loaded model."""
        assert self.loaded is not None
        return self.loaded

    @property
    def needed(self) -> int:
        """Bytes of host memory that loading the model takes; 0 if it is offloaded."""
        if self.loaded is not None:
            return 0
        on_gpu = any(name != "cpu" for name in self.run.config.model.placement.device_names())
        planned = self._host if on_gpu else None
        return weights_once_loaded(self.run.config.model, self.run.file) if planned is None else planned

    def enter(self) -> None:
        """Load the model to the free devices. After an error the model is dropped, and can be loaded again."""
        try:
            if self.loaded is None:
                self.loaded = self._read()
            else:
                self._offloaded.close()
            self.on_device = True
        except BaseException:  # memory may run out with half of the weights on the device
            self.drop()
            raise

    def leave(self, *, offload: bool) -> None:
        """Free the devices: with `offload` the weights go to host memory, else the model is dropped."""
        self.on_device = False
        if offload:
            self._offloaded.enter_context(offloaded_model(self.model, trained=True))
        else:
            self.drop()

    def drop(self) -> None:
        """Free the model; the next `enter` reads it from its files."""
        self.loaded, self.on_device = None, False
        gc.collect()
        empty_cache()


class Devices:
    """Decides which model is on the devices, and whether the previous one is offloaded or dropped."""

    def __init__(self, processes: int = 1) -> None:
        """`processes`: ranks that share host memory and change models together."""
        self._processes = processes
        self._last: Placed | None = None

    @property
    def on_device(self) -> Placed | None:
        """The model loaded last; None before the first load and after a failed one."""
        return self._last if self._last is not None and self._last.on_device else None

    @property
    def model(self) -> WanTransformer:
        """The model on the devices."""
        assert self.on_device is not None
        return self.on_device.model

    def load(self, coming: Placed) -> None:
        """Load a model to its devices. The previous model is offloaded if host memory holds both, else dropped.

        Raises what `Placed.enter` does.
        """
        leaving = self.on_device
        if leaving is coming:
            return
        if leaving is not None and not leaving.run.apart:
            free = host_bytes()
            needed = bytes_to_offload(leaving.model) + coming.needed + HOST_RESERVE
            offload = free is not None and needed <= free // self._processes
            where = "is offloaded to host memory" if offload else "will be read again"
            left, came = (one.run.config.train.expert_name for one in (leaving, coming))
            _log.info("%s %s; %s is loaded", left, where, came)
            leaving.leave(offload=offload)
        if not coming.on_device:
            coming.enter()
        self._last = coming
