"""The partner of a run while its clips are rendered: on the devices for its own steps, else resting or not loaded."""

from __future__ import annotations

from collections.abc import Callable

from ..job.open import OpenRun
from ..model import WanTransformer
from .device_place import DevicePlace, host_holds


class Guest:
    """A model that the run does not train and nothing is saved of."""

    def __init__(self, run: OpenRun, read: Callable[[], WanTransformer]) -> None:
        """`read` loads the model of `run`."""
        self.run, self._read = run, read
        self._place = DevicePlace[WanTransformer](lambda model: model)
        self.here = False
        """whether it lies on the devices"""

    @property
    def rests(self) -> bool:
        """Whether its weights lie in host memory."""
        return self._place.held is not None and not self.here

    @property
    def model(self) -> WanTransformer:
        """The model, where it is loaded."""
        assert self._place.held is not None
        return self._place.held

    def come(self) -> None:
        """Lie on the devices from now on, which are free. Raises what loading does; it can be asked again."""
        self._place.come(self._read)
        self.here = True

    def leave(self, coming: int, processes: int) -> None:
        """Leave the devices: for host memory where that holds it beside `coming` bytes, else to be read again."""
        if self.here:
            self.here = False
            self._place.leave(stays=host_holds(self.model, coming, processes))
