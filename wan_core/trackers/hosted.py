"""Weights & Biases, trackio and MLflow: each told the same figures through its own library."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DependencyError
from ..events import Event
from ..packages import imported, pip_line
from .figures import About, figures_of, text_of
from .settings import TrackerSettings

_MOST_TEXT = 250
"""characters MLflow takes for a setting"""


_STEERS = ("wandb/settings", ".wandb")
"""read by wandb where it works, the second one in place of the first: it sends the key to whatever host they name"""


def _check_unsteered(directory: Path) -> None:
    """Raises ConfigError for a run folder that would steer wandb, and keeps git away from it."""
    for name in _STEERS:
        if os.path.lexists(directory / name):
            raise ConfigError(
                f"{directory.name} holds {name}, by which a run folder would say where your key and figures go. "
                "Remove it."
            )
    os.environ["WANDB_DISABLE_GIT"] = "true"  # git runs the commands that a folder's own repository names


class Hosted:
    """A run in somebody's tracker. Their libraries find keys and servers in environment variables of their own."""

    patience_s = 60.0

    def __init__(self, settings: TrackerSettings, directory: Path, about: About) -> None:
        """Raises DependencyError where the library is missing, ConfigError for a folder that would steer it.

        Nothing is sent before `begin`.
        """
        if settings.kind == "wandb":
            _check_unsteered(directory)
        self.title = {"wandb": "Weights & Biases", "trackio": "trackio", "mlflow": "MLflow"}[settings.kind]
        try:
            self._library: Any = imported(settings.kind)
        except ImportError as error:
            raise DependencyError(
                f"The server's settings ask for {settings.kind}, which is not installed. Run: {pip_line(settings.kind)}"
            ) from error
        self._settings, self._directory, self._about = settings, directory, about
        self._log: Callable[[dict[str, Any], int], Any] = lambda _figures, _step: None
        self._step = 0

    def begin(self) -> None:
        """Makes the run there, or goes on with the one of the same folder."""
        library, settings, about = self._library, self._settings, self._about
        if settings.kind == "mlflow":
            if settings.address:
                library.set_tracking_uri(settings.address)
            library.set_experiment(settings.project)
            known = library.search_runs(
                filter_string=f"tags.run_folder = '{about.folder}'", output_format="list", max_results=1
            )
            library.start_run(
                run_id=known[0].info.run_id if known else None,
                run_name=about.name,
                tags={"run_folder": about.folder},
            )
            if not known:
                library.log_params({name: str(value)[:_MOST_TEXT] for name, value in about.settings.items()})
            self._log = lambda figures, step: library.log_metrics(figures, step=step)
            return
        options: dict[str, Any] = {"project": settings.project, "name": about.folder, "config": about.settings}
        if settings.kind == "wandb":
            options |= {"id": about.folder, "dir": str(self._directory), "resume": "allow"}
            options |= {"mode": "offline"} if settings.offline else {}
            options |= {"entity": settings.entity} if settings.entity else {}
        else:
            options["resume"] = "allow"
        library.init(**options)
        self._log = lambda figures, step: library.log(figures, step=step)

    def take(self, event: Event) -> None:
        """Sends what the event has."""
        self._step = getattr(event, "step", self._step)
        if figures := figures_of(event):
            self._log(figures, self._step)
        if (text := text_of(event)) and self._settings.kind == "wandb":
            self._library.log({event.name: text}, step=self._step)

    def end(self) -> None:
        """Ends the run there."""
        getattr(self._library, "end_run" if self._settings.kind == "mlflow" else "finish")()
