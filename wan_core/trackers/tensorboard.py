"""TensorBoard's event files, in the folder `tensorboard` of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..events import Event
from ..files import own_folder
from .figures import About, figures_of, text_of


class TensorBoard:
    """Writes figures as they come; a resumed run takes back those of steps it does again."""

    title = "TensorBoard"
    patience_s = 30.0

    def __init__(self, directory: Path, about: About, first_step: int, flush_seconds: int) -> None:
        """`first_step`: figures from this one on are new. Raises ImportError where the package is missing."""
        from torch.utils.tensorboard import SummaryWriter

        self._make = lambda: SummaryWriter(
            str(own_folder(directory, "tensorboard")), purge_step=first_step or None, flush_secs=flush_seconds
        )
        self._about, self._writer = about, None
        self._step = max(0, first_step - 1)

    def begin(self) -> None:
        """Opens the file. Raises FileError where a link would lead it out of the run."""
        self._writer = self._make()
        settings = json.dumps(self._about.settings, indent=2)
        self._writer.add_text("settings", f"```\n{settings}\n```", self._step)

    def take(self, event: Event) -> None:
        """Writes what the event has."""
        writer: Any = self._writer
        self._step = getattr(event, "step", self._step)
        for name, value in figures_of(event).items():
            writer.add_scalar(name, value, self._step)
        if text := text_of(event):
            writer.add_text(event.name, text, self._step)

    def end(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()
