"""Posts events to an address in the server's settings."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigError, WanTrainerError
from ..events import CheckpointSaved, Evaluated, Event, Failed, Finished, SampleReady, StepDone, to_line
from ..run_lines import loss_text
from .figures import About, text_of
from .settings import WebhookSettings

_TIMEOUT_S = 10.0
_PAUSES_S = (1.0, 5.0)
"""pauses between attempts"""
_LONGEST = 1900
"""characters of a message; Discord accepts 2,000"""


class Unreachable(WanTrainerError):  # noqa: N818  not an error of the program
    """The address did not accept an event. The message names only the host, because the path may be a key."""


class Webhook:
    """Posts events as JSON."""

    title = "The webhook"
    patience_s = 30.0

    def __init__(self, settings: WebhookSettings, about: About) -> None:
        """Raises ConfigError for an invalid address."""
        parts = urlsplit(settings.url)
        try:
            _ = parts.port
        except ValueError as error:
            raise ConfigError("webhook.url has a port that is no number. Give the complete address.") from error
        if not parts.hostname or parts.username is not None:
            raise ConfigError("webhook.url has no host, or a name and password before it. Give the complete address.")
        self._settings, self._about, self._parts, self._host = settings, about, parts, parts.hostname
        self._last: StepDone | None = None
        self.moved_at = 0.0

    def begin(self) -> None:
        """Does nothing."""

    def end(self) -> None:
        """Nothing to end."""

    def take(self, event: Event) -> None:
        """Posts a configured event. Raises Unreachable after three attempts."""
        self._last = event if isinstance(event, StepDone) else self._last
        if event.name not in self._settings.events:
            return
        body = json.dumps(self._body(event), ensure_ascii=True).encode("ascii")
        for pause in _PAUSES_S:
            try:
                return self._post(body)
            except Unreachable:
                time.sleep(pause)
        self._post(body)

    def _body(self, event: Event) -> dict[str, Any]:
        text = sentence_of(event, self._about, self._last)
        if self._settings.shape != "json":
            return {"content" if self._settings.shape == "discord" else "text": text[:_LONGEST]}
        about = {"run": self._about.folder, "run_name": self._about.name, "steps": self._about.steps, "text": text}
        return {"version": 1, **about, **json.loads(to_line(event))}

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "ComfyUI-WanTrainer", "Connection": "close"}
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._host, self._parts.port, timeout=_TIMEOUT_S)
        target = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        try:
            connection.request("POST", target, body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise Unreachable(f"{self._host} did not answer ({why}). Check the address, or wait.") from None
        finally:
            connection.close()
        if 300 <= status < 400:
            raise Unreachable(f"{self._host} answered {status}: it redirects to another address. Use that address.")
        if status >= 400:
            raise Unreachable(f"{self._host} answered {status}. Check the address and its key.")
        self.moved_at = time.monotonic()


def sentence_of(event: Event, about: About, last: StepDone | None) -> str:
    """Returns an event as a sentence; `last`: the newest step."""
    loss = f", loss {last.loss:.4f}" if last is not None else ""
    if isinstance(event, CheckpointSaved):
        said = f"step {event.step} of {about.steps} is saved{loss}."
    elif isinstance(event, Evaluated):
        said = f"evaluation loss {loss_text(event.eval_loss)} at step {event.step}."
    elif isinstance(event, SampleReady):
        said = f"a preview of step {event.step} is ready."
    elif isinstance(event, Finished):
        reason = str(event.result.get("reason") or "")
        said = f"{event.state} at step {event.step} of {about.steps}{loss}{': ' + reason if reason else ''}."
    elif isinstance(event, Failed):
        said = f"failed: {event.message}"
    else:
        said = text_of(event) or event.name
    return f"{about.name}: {said}"
