"""Posts events to an address in the server's settings; unsent events wait in the outbox."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigError, WanTrainerError
from ..events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Failed,
    Finished,
    Marked,
    SampleReady,
    StepDone,
    Suggested,
    to_line,
)
from ..run_lines import loss_text
from .figures import About
from .outbox import Outbox
from .settings import WebhookSettings

_TIMEOUT_S = 10.0
"""limit of one attempt, from resolving the name to the complete answer"""
_MOST_FAILED = 3
"""number of failed messages after which the others wait for the next event"""
_PAUSES_S = (1.0, 5.0)
"""pauses between attempts"""
_LONGEST = 1900
"""characters of a message; Discord accepts 2,000"""
_TRANSLATED, _TRANSLATED_HERE = ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48")
"""IPv6 networks of public and local translators, whose addresses contain IPv4 addresses (RFC 6052, RFC 8215)"""


class Unreachable(WanTrainerError):  # noqa: N818  not an error of the program
    """The address did not accept an event. The message names only the host, because the path may be a key."""


class Webhook:
    """Posts events as JSON, to public addresses only, unless the settings allow private ones."""

    title = "The webhook"
    patience_s = 30.0

    def __init__(self, settings: WebhookSettings, runs: Path, about: About) -> None:
        """`runs`: the folder that holds the run. Raises ConfigError for an invalid address."""
        parts = urlsplit(settings.url)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise ConfigError("webhook.url has a port that is no number. Give the complete address.") from error
        if not parts.hostname or parts.username is not None:
            raise ConfigError("webhook.url has no host, or a name and password before it. Give the complete address.")
        self._settings, self._about = settings, about
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._last: StepDone | None = None
        self.outbox = Outbox(runs, "webhook")
        self.moved_at = 0.0

    def keep(self, event: Event) -> None:
        """Puts a configured event into the outbox. Raises OSError or FileError."""
        self._last = event if isinstance(event, StepDone) else self._last
        if event.name in self._settings.events:
            self.outbox.put({"run": self._about.folder, "body": self._body(event)})

    def begin(self) -> None:
        """Does nothing."""

    def end(self) -> None:
        """Posts all waiting events; waits if another process is posting."""
        self.outbox.drain(self._post_waiting)

    def take(self, event: Event) -> None:
        """Posts all waiting events, if `event` is a configured one."""
        if event.name in self._settings.events:
            self._post_waiting()

    def _post_waiting(self) -> bool:
        """Posts all waiting events; returns False if another process is posting. Raises the first failure at the
        end."""
        failures: list[Exception] = []
        with self.outbox.alone() as alone:
            for file in self.outbox.waiting() if alone else ():
                if (message := self.outbox.read(file)) is None:
                    continue
                if self.outbox.run_of(message) is None:
                    self.outbox.remove(file)
                    continue
                try:
                    self._try(json.dumps(message.get("body"), ensure_ascii=True).encode("ascii"))
                except (OSError, http.client.HTTPException, Unreachable) as error:
                    failures.append(error)
                    if len(failures) == _MOST_FAILED:
                        break
                else:
                    self.outbox.remove(file)
                    self.moved_at = time.monotonic()
        if failures:
            raise failures[0]
        return alone

    def _try(self, body: bytes) -> None:
        for pause in _PAUSES_S:
            try:
                return self._post(body)
            except (OSError, http.client.HTTPException, Unreachable):
                time.sleep(pause)
        return self._post(body)

    def _body(self, event: Event) -> dict[str, Any]:
        text = sentence_of(event, self._about, self._last)
        if self._settings.shape != "json":
            return {"content" if self._settings.shape == "discord" else "text": text[:_LONGEST]}
        about = {"run": self._about.folder, "run_name": self._about.name, "steps": self._about.steps, "text": text}
        return {"version": 1, **about, **json.loads(to_line(event))}

    def _post(self, body: bytes) -> None:
        """Makes one attempt within `_TIMEOUT_S`."""
        # In a thread, because a socket's timeout limits neither a slow resolver nor an answer that arrives byte by
        # byte.
        tried = _Try(self, body)
        tried.join(_TIMEOUT_S)
        if tried.is_alive():
            tried.give_up()
            raise Unreachable(f"{self._host} did not answer within {_TIMEOUT_S:.0f} s. Look at the address, or wait.")
        if tried.error is not None:
            raise tried.error
        if 300 <= tried.status < 400:
            raise Unreachable(
                f"{self._host} answered {tried.status}: it sends elsewhere. Give the address it sends to."
            )
        if tried.status >= 400:
            raise Unreachable(f"{self._host} answered {tried.status}. Look at the address and its key.")

    def status_of(self, body: bytes, connections: list[http.client.HTTPConnection]) -> int:
        """Posts `body`; returns the status. Adds its connection to `connections`, for `_Try.give_up`."""
        connections.append(connection := self._connection())
        try:
            headers = {"Content-Type": "application/json", "User-Agent": "ComfyUI-WanTrainer", "Connection": "close"}
            connection.request("POST", self._target, body, headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        """Returns a connection to one checked address of the host."""
        # connects to the checked address, because resolving the name again could give a private one
        address = self._address()
        if not self._secure:
            return http.client.HTTPConnection(address, self._port, timeout=2 * _TIMEOUT_S)
        return _Pinned(self._host, self._port, address)

    def _address(self) -> str:
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in found]
        if not self._settings.allow_private:
            addresses = [address for address in addresses if _is_public(address)]
        if not addresses:
            raise Unreachable(
                f"{self._host} is an address of your own network. Set webhook.allow_private to true if you mean it."
            )
        return addresses[0]


class _Try(threading.Thread):
    """One request in a daemon thread."""

    def __init__(self, webhook: Webhook, body: bytes) -> None:
        super().__init__(daemon=True, name="wan-webhook-try")
        self._webhook, self._body = webhook, body
        self._connections: list[http.client.HTTPConnection] = []
        self.status, self.error = 0, None
        self.error: Exception | None
        self.start()

    def run(self) -> None:
        try:
            self.status = self._webhook.status_of(self._body, self._connections)
        except Exception as error:
            self.error = error

    def give_up(self) -> None:
        """Shut down the connection, which ends the thread's read."""
        for connection in self._connections:
            if (sock := connection.sock) is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


class _Pinned(http.client.HTTPSConnection):
    """HTTPS to `address` with the certificate of `host`."""

    def __init__(self, host: str, port: int, address: str) -> None:
        self._checked, self._tls = address, ssl.create_default_context()
        super().__init__(host, port, timeout=2 * _TIMEOUT_S, context=self._tls)

    def connect(self) -> None:
        plain = socket.create_connection((self._checked, self.port), self.timeout)
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            with contextlib.suppress(OSError):
                plain.close()
            raise


def _is_public(address: str) -> bool:
    """Returns whether an address, and every IPv4 address embedded in it, are public."""
    found = ipaddress.ip_address(address.partition("%")[0])
    hidden: list[ipaddress.IPv4Address] = []
    if isinstance(found, ipaddress.IPv6Address):
        if found in _TRANSLATED_HERE:
            return False
        inside = [found.ipv4_mapped, found.sixtofour, *(found.teredo or ())]
        inside += [ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)] if found in _TRANSLATED else []
        hidden = [one for one in inside if one is not None]
    return all(one.is_global and not one.is_multicast for one in (found, *hidden))


def sentence_of(event: Event, about: About, last: StepDone | None) -> str:
    """Returns an event as a sentence; `last`: the newest step."""
    loss = f", loss {last.loss:.4f}" if last is not None else ""
    if isinstance(event, CheckpointSaved):
        said = f"step {event.step} of {about.steps} is saved{loss}."
    elif isinstance(event, Evaluated):
        said = f"evaluation loss {loss_text(event.eval_loss)} at step {event.step}."
    elif isinstance(event, SampleReady):
        said = f"a preview of step {event.step} is ready."
    elif isinstance(event, Suggested):
        said = event.why
    elif isinstance(event, Marked):
        said = event.text
    elif isinstance(event, Finished):
        reason = str(event.result.get("reason") or "")
        said = f"{event.state} at step {event.step} of {about.steps}{loss}{': ' + reason if reason else ''}."
    elif isinstance(event, Failed):
        said = f"failed: {event.message}"
    else:
        said = event.name
    return f"{about.name}: {said}"
