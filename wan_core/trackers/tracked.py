"""Forwards the events of a run to its trackers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from ..children import OWN_GROUP
from ..errors import ExitCode, Stopped, WanTrainerError
from ..events import Emit, Event, Failed, Note
from ..packages import version_of
from ..words import logger
from .delivery import Delivery, Destination
from .figures import About
from .mirror import Mirror
from .settings import ServerSettings
from .webhook import Webhook

_log = logger(__name__)
_LAUNCH = Path(__file__).resolve().parents[1] / "launch.py"
_MOMENT_S = 10.0
"""longest wait of a queued run: wandb needs some seconds to end an entry"""


def with_trackers(emit: Emit, directory: Path, file: Path | None, *, waits: bool) -> Tracked:
    """Returns an `emit` that also sends events to the trackers of the settings in `file`.

    `waits`: the end of the run waits until all events are sent; else a moment, and a process of its own copies what the
    mirror lacks. Raises DependencyError and ConfigError for unusable settings.
    """
    settings = ServerSettings.read(file) if file is not None else ServerSettings()
    deliveries = [Delivery(destination) for destination in trackers_of(settings, directory)]
    rest = () if waits or file is None or not settings.mirror.url else ("--trackers", str(file.resolve()))
    return Tracked(emit, deliveries, directory, None if waits else _MOMENT_S, rest)


def trackers_of(settings: ServerSettings, directory: Path) -> list[Destination]:
    """Returns the destinations of the settings; imports their libraries. Raises DependencyError and ConfigError for an
    unusable destination."""
    from ..train import SaveStore

    about = About.read(directory)
    found: list[Destination] = []
    if settings.tensorboard.enabled and version_of("tensorboard"):
        from .hosted import TensorBoard

        saved = SaveStore(directory).steps()
        first_step = saved[-1] + 1 if saved else 0
        try:
            found.append(TensorBoard(directory, about, first_step, settings.tensorboard.flush_seconds))
        except ImportError as error:  # only a warning, because TensorBoard is on by default
            _log.warning("TensorBoard cannot be imported: %s", error)
    if settings.tracker.kind:
        from .hosted import Hosted

        found.append(Hosted(settings.tracker, directory, about))
    if settings.webhook.url:
        found.append(Webhook(settings.webhook, about))
    if settings.mirror.url:
        found.append(Mirror(settings.mirror, directory))
    return found


class Tracked:
    """An `Emit` with trackers. Leaving its context sends an error of the run, and waits for deliveries."""

    def __init__(
        self,
        emit: Emit,
        deliveries: Sequence[Delivery],
        directory: Path = Path(),
        most_s: float | None = None,
        rest: Sequence[str] = (),
    ) -> None:
        """`most_s`: longest wait at the end, instead of that of each destination; `rest`: options of the command that
        copies what the mirror lacks then."""
        self._emit, self._deliveries, self._most_s = emit, deliveries, most_s
        self._directory, self._rest = directory, rest

    def __call__(self, event: Event) -> None:
        """Forwards an event without waiting. Errors of trackers are not raised."""
        self._emit(event)
        for delivery in self._deliveries:
            delivery.put(event)
            self._complain(delivery.complaints())

    def __enter__(self) -> Tracked:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: TracebackType | None) -> None:
        failed = isinstance(error, Exception) and not isinstance(error, Stopped)
        for delivery in self._deliveries:
            if failed:
                code = error.exit_code if isinstance(error, WanTrainerError) else ExitCode.BUG
                delivery.put(Failed(message=str(error), kind=type(error).__name__, exit_code=int(code)))
        began = time.monotonic()
        for delivery in self._deliveries:
            left = None if self._most_s is None else max(1.0, self._most_s - (time.monotonic() - began))
            self._complain(delivery.close(left))
        if self._rest and not all(delivery.is_over for delivery in self._deliveries):
            self._copy_rest()

    def _copy_rest(self) -> None:
        subprocess.Popen(
            [sys.executable, "-X", "utf8", str(_LAUNCH), "send", str(self._directory), *self._rest],
            cwd=self._directory.parent,  # not the run's folder: Windows cannot delete the folder a process works in
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=os.name != "nt",
            creationflags=OWN_GROUP,
        )

    def _complain(self, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            self._emit(Note(text=sentence, level="warning"))
