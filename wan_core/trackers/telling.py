"""A run tells its trackers: what the engine emits goes on to each of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from ..errors import ExitCode, Stopped, WanTrainerError
from ..events import Emit, Event, Failed, Note
from ..packages import version_of
from ..run import read_run
from ..train import SaveStore
from ..words import logger
from .delivery import Delivery, Destination
from .figures import About
from .settings import ServerSettings

__all__ = ["Telling", "trackers_of"]

_log = logger(__name__)


def trackers_of(settings: ServerSettings, directory: Path) -> list[Destination]:
    """Returns whom the settings name for the run in `directory`, each ready to begin; imports their libraries.

    Raises DependencyError and ConfigError for what cannot be.
    """
    about = About.of(directory, read_run(directory))
    saved = SaveStore(directory).steps()
    first_step = saved[-1] + 1 if saved else 0
    found: list[Destination] = []
    if settings.tensorboard.enabled and version_of("tensorboard"):
        from .tensorboard import TensorBoard

        try:
            found.append(TensorBoard(directory, about, first_step, settings.tensorboard.flush_seconds))
        except ImportError as error:  # there, and broken: nobody asked for it by name
            _log.warning("TensorBoard cannot be imported: %s", error)
    if settings.tracker.kind:
        from .hosted import Hosted

        found.append(Hosted(settings.tracker, directory, about))
    if settings.webhook.url:
        from .webhook import Webhook

        found.append(Webhook(settings.webhook, about))
    if settings.mirror.url:
        from .mirror import Mirror

        found.append(Mirror(settings.mirror, directory, about))
    return found


class Telling:
    """An `Emit` that tells trackers too. Used as a context: its end waits until they know how the run ended."""

    def __init__(self, emit: Emit, destinations: Sequence[Destination]) -> None:
        self._emit = emit
        self._deliveries = [Delivery(destination) for destination in destinations]

    def __call__(self, event: Event) -> None:
        """Hands an event on; never waits, and never raises for a tracker."""
        self._emit(event)
        for delivery in self._deliveries:
            delivery.put(event)
            self._complain(delivery.complaints())

    def __enter__(self) -> Telling:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: TracebackType | None) -> None:
        failed = isinstance(error, Exception) and not isinstance(error, Stopped)
        for delivery in self._deliveries:
            if failed:
                code = error.exit_code if isinstance(error, WanTrainerError) else ExitCode.BUG
                delivery.put(Failed(message=str(error), kind=type(error).__name__, exit_code=int(code)))
        for delivery in self._deliveries:
            self._complain(delivery.close())

    def _complain(self, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            self._emit(Note(text=sentence, level="warning"))
