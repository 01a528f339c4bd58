"""The sender process of a run. The process uses no GPU, holds no lock of the run, and may continue after the run has
ended. Its stdin receives a line of JSON about the run, then the events of the run, and closes at the end of the run.
The process exits once all events are sent, or after a time without progress.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from ..errors import WanTrainerError
from ..events import Event, parse_event
from ..files import FileError, open_append
from ..words import counted, plain
from .delivery import Delivery, Destination
from .figures import About
from .mirror import Mirror
from .outbox import Outbox
from .settings import ServerSettings
from .webhook import Webhook

Say = Callable[[str], None]


class Keeping(Destination, Protocol):
    """A destination whose messages wait in an outbox until they are sent."""

    outbox: Outbox

    def keep(self, event: Event) -> None:
        """Puts the message of an event into the outbox."""
        ...


def serve(directory: Path, settings: ServerSettings, lines: BinaryIO, out: BinaryIO) -> None:
    """Send the events of `lines` until they end, and wait until all are sent (`Delivery.close`).

    A failure becomes a line in `out`, or in the run's log once `out` is closed.
    """
    first = lines.readline()
    if not first:
        return
    about = About(**json.loads(first))
    say = _Saying(directory, out)
    keeping = _keeping_of(settings, directory, about)
    deliveries = [Delivery(destination) for destination in (*keeping, *_hosted_of(settings, directory, about))]
    for destination in keeping:
        if earlier := len(destination.outbox.waiting()):
            say(f"{destination.title} had not taken {counted(earlier, 'message')} before this run began. Sent now too.")
    for line in lines:
        if (event := parse_event(line.decode("utf-8", "replace"))) is None:
            continue
        for destination in keeping:  # written to disk first, so that a kill loses no message
            try:
                destination.keep(event)
            except (OSError, WanTrainerError) as error:
                say(f"{destination.title} does not receive every message: {error}")
        for delivery in deliveries:
            delivery.put(event)
            say.all(delivery.complaints())
    for delivery in deliveries:
        say.all(delivery.close())
    for destination in keeping:
        if left := len(destination.outbox.waiting()):
            say(
                f"{destination.title} has not taken {counted(left, 'message')}. What is kept is sent with the next run "
                "in this folder, or by: python wan_core/launch.py send RUN"
            )


def send_what_waits(directory: Path, settings: ServerSettings, about: About) -> dict[str, dict[str, object]]:
    """Send the waiting messages of all runs in the folder of `directory`, and this run's saved steps that the mirror
    lacks.

    Returns kind -> numbers of sent and of waiting messages, and why they wait.
    """
    found: dict[str, dict[str, object]] = {}
    for kind, destination in zip(_kinds_of(settings), _keeping_of(settings, directory, about), strict=True):
        if kind == "mirror":
            destination.outbox.put({"run": directory.name})
        before = len(destination.outbox.waiting())
        delivery = Delivery(destination, begins=True)
        delivery.close()
        left = len(destination.outbox.waiting())
        why = delivery.failure or (f"no answer for {destination.patience_s:.0f} s" if left else "")
        found[kind] = {"sent": max(0, before - left), "waiting": left, "why": why}
    return found


def elsewhere_of(settings: ServerSettings, directory: Path, about: About) -> list[Destination]:
    """Returns the destinations that are not local; imports their libraries.

    Raises DependencyError and ConfigError for an unusable destination.
    """
    return [*_hosted_of(settings, directory, about), *_keeping_of(settings, directory, about)]


def _kinds_of(settings: ServerSettings) -> list[str]:
    return [kind for kind, url in (("webhook", settings.webhook.url), ("mirror", settings.mirror.url)) if url]


def _keeping_of(settings: ServerSettings, directory: Path, about: About) -> list[Keeping]:
    made: dict[str, Callable[[], Keeping]] = {
        "webhook": lambda: Webhook(settings.webhook, directory.parent, about),
        "mirror": lambda: Mirror(settings.mirror, directory),
    }
    return [made[kind]() for kind in _kinds_of(settings)]


def _hosted_of(settings: ServerSettings, directory: Path, about: About) -> Sequence[Destination]:
    if not settings.tracker.kind:
        return ()
    from .hosted import Hosted

    return (Hosted(settings.tracker, directory, about),)


class _Saying:
    """Reports each sentence once: to the run, or to its log once the run has ended."""

    def __init__(self, directory: Path, out: BinaryIO) -> None:
        self._directory, self._out, self._said = directory, out, set[str]()

    def __call__(self, sentence: str) -> None:
        if sentence in self._said:
            return
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

    def all(self, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            self(sentence)
