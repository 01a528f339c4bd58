"""ComfyUI's Cancel button as presses that are polled, in place of exceptions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from comfy import model_management as mm

from ...wan_core.errors import Stopped

InterruptProcessingException = mm.InterruptProcessingException
processing_interrupted = mm.processing_interrupted
raise_if_cancelled = mm.throw_exception_if_processing_interrupted


class CancelButton:
    """Turns ComfyUI's interrupt flag into presses: reading a press clears the flag, so that a second is noticed."""

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
        """Keeps the press and drops the exception, around calls into ComfyUI that raise when the flag is set."""
        try:
            yield
        except InterruptProcessingException:
            self._caught = True


def press_again() -> None:
    """Sets the flag again for a press that nothing has acted on."""
    mm.interrupt_current_processing(True)


@contextlib.contextmanager
def stops_become_interrupts() -> Iterator[None]:
    """Turns Stopped into ComfyUI's interrupt, around scans and encodings in this process."""
    try:
        yield
    except Stopped as stop:
        mm.interrupt_current_processing(False)
        raise InterruptProcessingException() from stop
