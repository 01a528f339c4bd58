"""Trackers through their own libraries: TensorBoard, Weights & Biases and trackio."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DependencyError
from ..events import Event
from ..files import own_folder
from ..packages import imported, pip_line
from .figures import About, figures_of, text_of
from .settings import TrackerSettings


class TensorBoard:
    """Event files in the folder `tensorboard` of the run."""

    title = "TensorBoard"
    patience_s = 30.0

    def __init__(self, directory: Path, about: About, first_step: int, flush_seconds: int) -> None:
        """`first_step`: older figures from this step on are discarded. Raises ImportError without the package."""
        from torch.utils.tensorboard import SummaryWriter

        self._make = lambda: SummaryWriter(
            str(own_folder(directory, "tensorboard")), purge_step=first_step or None, flush_secs=flush_seconds
        )
        self._about, self._writer = about, None
        self._step = max(0, first_step - 1)

    def begin(self) -> None:
        """Opens the file. Raises FileError if the folder is a link."""
        self._writer = self._make()
        settings = json.dumps(self._about.settings, indent=2)
        self._writer.add_text("settings", f"```\n{settings}\n```", self._step)

    def take(self, event: Event) -> None:
        """Writes the figures and the sentence of an event."""
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


def _check_wandb_folder(directory: Path) -> None:
    """Raises ConfigError for a run folder with settings of wandb, and keeps wandb from running git there."""
    # wandb reads these files in its working folder, and sends the API key to the host named there.
    for name in ("wandb/settings", ".wandb"):
        if os.path.lexists(directory / name):
            raise ConfigError(
                f"{directory.name} holds {name}, which would decide where your key and figures are sent. Remove it."
            )
    os.environ["WANDB_DISABLE_GIT"] = "true"  # git may run commands from the folder's .git/config


class Hosted:
    """A run in Weights & Biases or trackio. Their libraries read keys from environment variables."""

    patience_s = 60.0

    def __init__(self, settings: TrackerSettings, directory: Path, about: About) -> None:
        """Raises DependencyError without the library, ConfigError for a folder with settings of wandb."""
        if settings.kind == "wandb":
            _check_wandb_folder(directory)
        self.title = {"wandb": "Weights & Biases", "trackio": "trackio"}[settings.kind]
        try:
            self._library: Any = imported(settings.kind)
        except ImportError as error:
            raise DependencyError(
                f"The server's settings ask for {settings.kind}, which is not installed. Run: {pip_line(settings.kind)}"
            ) from error
        self._settings, self._directory, self._about = settings, directory, about
        self._step = 0

    def begin(self) -> None:
        """Creates the run at the tracker, or resumes the run of the same folder."""
        settings, about = self._settings, self._about
        options: dict[str, Any] = {"project": settings.project, "name": about.folder, "config": about.settings}
        if settings.kind == "wandb":
            options |= {"id": about.folder, "dir": str(self._directory)}
            options |= {"mode": "offline"} if settings.offline else {}
            options |= {"entity": settings.entity} if settings.entity else {}
            options["settings"] = {"console": "off"}  # the log may contain paths
        self._library.init(**options, resume="allow")

    def take(self, event: Event) -> None:
        """Sends the figures of an event, and its sentence to wandb."""
        self._step = getattr(event, "step", self._step)
        if figures := figures_of(event):
            self._library.log(figures, step=self._step)
        if (text := text_of(event)) and self._settings.kind == "wandb":
            self._library.log({event.name: text}, step=self._step)

    def end(self) -> None:
        """Ends the run at the tracker."""
        self._library.finish()
