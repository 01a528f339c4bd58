"""The process that sends what a run tells others: it holds no GPU and no lock of the run, and may outlive it.

Its stdin carries a line of JSON about the run and then the run's events; the end of stdin is the end of the run. It
ends by itself: once everything was taken, or nobody took anything for a while.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
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
    """A destination whose messages wait in a file until they are taken."""

    outbox: Outbox

    def keep(self, event: Event) -> None:
        """Writes down what is to be sent of an event, at once."""
        ...


def serve(directory: Path, settings: ServerSettings, lines: BinaryIO, out: BinaryIO) -> None:
    """Send what the events of `lines` say, until they end and all was taken, or patience ends. Each failure is a line
    of `out`; once nobody reads there, of the run's log.
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
    for event in _events(lines):
        for destination in keeping:
            try:
                destination.keep(event)
            except (OSError, WanTrainerError) as error:
                say(f"{destination.title} cannot be told of everything: {error}")
        for delivery in deliveries:
            delivery.put(event)
            say.all(delivery.complaints())
    for delivery in deliveries:
        say.all(delivery.close())
    for destination in keeping:
        if left := len(destination.outbox.waiting()):
            say(_unsent(destination.title, left))


def send_what_waits(directory: Path, settings: ServerSettings, about: About) -> dict[str, dict[str, object]]:
    """Send what waits of the run in `directory` and of those beside it, and every saved step of that run that is not
    at the mirror. Returns, by kind, how many messages were taken, how many wait, and why.
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


def _unsent(title: str, left: int) -> str:
    """Returns what to say of messages that were not taken."""
    return (
        f"{title} has not taken {counted(left, 'message')}. What is kept is sent with the next run in this folder, "
        "or by: python wan_core/launch.py send RUN"
    )


def elsewhere_of(settings: ServerSettings, directory: Path, about: About) -> list[Destination]:
    """Returns whom the settings name beyond this machine, each ready to begin; imports their libraries.

    Raises DependencyError and ConfigError for what cannot be.
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


def _events(lines: BinaryIO) -> Iterator[Event]:
    for line in lines:
        if (event := parse_event(line.decode("utf-8", "replace"))) is not None:
            yield event


class _Saying:
    """Says a sentence once: to the run while it listens, into its log afterwards."""

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
            self._keep(sentence)

    def _keep(self, sentence: str) -> None:
        if not (self._directory / "run.json").is_file():
            return  # deleted: nothing of it is made again
        with contextlib.suppress(OSError, FileError), open_append(self._directory / "log.txt") as log:
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            log.write(f"{when} WARNING wan_trainer: {plain(sentence)}\n".encode())

    def all(self, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            self(sentence)
