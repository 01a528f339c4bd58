"""The sender process of a run. The process uses no GPU, holds no lock of the run, and may continue after the run has
ended. Its stdin receives a line of JSON about the run, then the events of the run, and closes at the end of the run.
The process exits once all events are sent, or after a time without progress.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ..events import parse_event
from ..files import FileError, open_append
from ..words import plain
from .delivery import Delivery, Destination
from .figures import About
from .mirror import Mirror
from .settings import ServerSettings
from .webhook import Webhook


def serve(directory: Path, settings: ServerSettings, lines: BinaryIO, out: BinaryIO) -> None:
    """Send the events of `lines` until they end, and wait until all are sent (`Delivery.close`).

    A failure becomes a line in `out`, or in the run's log once `out` is closed.
    """
    first = lines.readline()
    if not first:
        return
    about = About(**json.loads(first))
    say = _Saying(directory, out)
    deliveries = [Delivery(destination) for destination in elsewhere_of(settings, directory, about)]
    for line in lines:
        if (event := parse_event(line.decode("utf-8", "replace"))) is None:
            continue
        for delivery in deliveries:
            delivery.put(event)
            say.all(delivery.complaints())
    for delivery in deliveries:
        say.all(delivery.close())


def elsewhere_of(settings: ServerSettings, directory: Path, about: About) -> list[Destination]:
    """Returns the destinations that are not local; imports their libraries.

    Raises DependencyError and ConfigError for an unusable destination.
    """
    found: list[Destination] = []
    if settings.tracker.kind:
        from .hosted import Hosted

        found.append(Hosted(settings.tracker, directory, about))
    if settings.webhook.url:
        found.append(Webhook(settings.webhook, about))
    if settings.mirror.url:
        found.append(Mirror(settings.mirror, directory))
    return found


class _Saying:
    """Reports each sentence once: to the run, or to its log once the run has ended."""

    def __init__(self, directory: Path, out: BinaryIO) -> None:
        self._directory, self._out, self._said = directory, out, set[str]()

    def all(self, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            if sentence in self._said:
                continue
            self._said.add(sentence)
            try:
                self._out.write(json.dumps({"said": sentence}).encode("ascii") + b"\n")
                self._out.flush()
            except (OSError, ValueError):
                self._log(sentence)

    def _log(self, sentence: str) -> None:
        if not (self._directory / "run.json").is_file():
            return  # writing the log would create the folder of a deleted run again
        with contextlib.suppress(OSError, FileError), open_append(self._directory / "log.txt") as log:
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            log.write(f"{when} WARNING wan_trainer: {plain(sentence)}\n".encode())
