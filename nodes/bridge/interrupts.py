"""ComfyUI's Cancel button as presses that are polled, instead of exceptions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from comfy import model_management as mm

from ...wan_core.errors import Stopped

InterruptProcessingException = mm.InterruptProcessingException
raise_if_cancelled = mm.throw_exception_if_processing_interrupted


class CancelButton:
    """Turns ComfyUI's interrupt flag into presses; reading a press clears the flag, so that a second press counts."""

    def __init__(self) -> None:
        self._caught = False

    def pressed(self) -> bool:
        """Returns True once for each press."""
        if mm.processing_interrupted():
            mm.interrupt_current_processing(False)
            return True
        caught, self._caught = self._caught, False
        return caught

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, an interrupt exception of ComfyUI becomes a press."""
        try:
            yield
        except InterruptProcessingException:
            self._caught = True


def press_again() -> None:
    """Set the flag again, for a press without an effect."""
    mm.interrupt_current_processing(True)


@contextlib.contextmanager
def stops_become_interrupts() -> Iterator[None]:
    """Inside, Stopped becomes ComfyUI's interrupt. For scans and encoding in this process."""
    try:
        yield
    except Stopped as stop:
        mm.interrupt_current_processing(False)
        raise InterruptProcessingException() from stop
