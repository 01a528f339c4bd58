"""Forwards the events of a run to its trackers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from ..errors import ExitCode, Stopped, WanTrainerError
from ..events import Emit, Event, Failed, Note
from ..packages import version_of
from ..words import logger
from .companion import Companion
from .delivery import Delivery, Destination
from .figures import About
from .sender import elsewhere_of
from .settings import ServerSettings

_log = logger(__name__)


def with_trackers(emit: Emit, directory: Path, file: Path | None, *, waits: bool) -> Tracked:
    """Returns an `emit` that also sends events to the trackers of the settings in `file`.

    TensorBoard runs in this process, other trackers in the sender process. `waits`: the end of the run waits until all
    events are sent. Raises DependencyError and ConfigError for unusable settings.
    """
    settings = ServerSettings.read(file) if file is not None else ServerSettings()
    here, elsewhere = trackers_of(settings, directory)
    deliveries: list[Delivery | Companion] = [Delivery(destination) for destination in here]
    if elsewhere and file is not None:
        deliveries.append(Companion(directory, file.resolve(), About.read(directory), waits=waits))
    return Tracked(emit, deliveries)


def trackers_of(settings: ServerSettings, directory: Path) -> tuple[list[Destination], list[Destination]]:
    """Returns the destinations of the settings (on this machine, elsewhere); imports their libraries. Raises
    DependencyError and ConfigError for an unusable destination."""
    from ..train import SaveStore

    about = About.read(directory)
    here: list[Destination] = []
    if settings.tensorboard.enabled and version_of("tensorboard"):
        from .hosted import TensorBoard

        saved = SaveStore(directory).steps()
        first_step = saved[-1] + 1 if saved else 0
        try:
            here.append(TensorBoard(directory, about, first_step, settings.tensorboard.flush_seconds))
        except ImportError as error:  # only a warning, because TensorBoard is on by default
            _log.warning("TensorBoard cannot be imported: %s", error)
    return here, elsewhere_of(settings, directory, about)


class Tracked:
    """An `Emit` with trackers. Leaving its context sends an error of the run, and waits for deliveries."""

    def __init__(self, emit: Emit, deliveries: Sequence[Delivery | Companion]) -> None:
        self._emit, self._deliveries = emit, deliveries

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
        for delivery in self._deliveries:
            self._complain(delivery.close())

    def _complain(self, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            self._emit(Note(text=sentence, level="warning"))
