"""Decides by its headers whether a request is answered, and whether it may change something (rule S10).

A page of another site can make a browser send requests here. It cannot read a response, nor send JSON or a custom
header without a CORS preflight, which ComfyUI does not grant. The Host check refuses the remaining case, a page that
reaches this server under its own name (DNS rebinding).
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from ...wan_core.words import filled

HEADER = "X-Wan-Trainer"
BODY_LIMIT = 4096
_PORTS = {"http": 80, "https": 443}
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,78}[a-z0-9])?")
_PROXY_HEADERS = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


class Refused(Exception):  # noqa: N818  not a failure of ours: an answer
    """A refused request: HTTP status and a sentence for the client, without paths of this machine.

    With `values`, the sentence is a template that is translated, as in WanTrainerError.
    """

    def __init__(self, status: int, sentence: str, **values: object) -> None:
        self.status, self.sentence = status, filled(sentence, **values) if values else sentence
        super().__init__(self.sentence)


class Headers(Protocol):
    """aiohttp's case-insensitive multi-dictionary."""

    def getall(self, key: str, default: list[str]) -> list[str]: ...


def check_change(headers: Headers, known_hosts: Collection[str] = ()) -> None:
    """Raises Refused(403 or 415) unless the request comes from this server's own page or sends our header."""
    check_host(headers, known_hosts)
    _check_origin(headers, _one(headers, "Host"))
    if _one(headers, HEADER) != "1":
        raise Refused(403, f'Send the header "{HEADER}: 1" with a request that changes something.')
    kind = _one(headers, "Content-Type").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, 'Send JSON, with the header "Content-Type: application/json".')


def read_body(body: bytes) -> dict[str, Any]:
    """Returns the JSON object of a request. Raises Refused(400) for anything else."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise Refused(400, "The body must be a JSON object, {} if it has no values.")
    return data


def check_local(remote: str | None, headers: Mapping[str, str]) -> None:
    """Raises Refused(403) unless the request comes from this computer, and not through a proxy on it."""
    here = False
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(remote or "")
        here = (getattr(address, "ipv4_mapped", None) or address).is_loopback
    if not here or any(name in headers for name in _PROXY_HEADERS):
        raise Refused(403, "A folder opens on the server's own screen, so only a browser on that computer may open it.")


def _one(headers: Headers, name: str) -> str:
    """Returns the value of a header; "" for a repeated one, which no browser sends."""
    values = headers.getall(name, [])
    return values[0] if len(values) == 1 else ""


def check_host(headers: Headers, known_hosts: Collection[str] = ()) -> None:
    """Raises Refused(403) unless Host is an address, localhost or one of `known_hosts`."""
    # No script can set Sec-Fetch-Site, and browsers send it only to localhost and over TLS, where a foreign name has no
    # certificate for this server. Every name is therefore accepted behind a TLS proxy.
    if _one(headers, "Sec-Fetch-Site").lower() in ("same-origin", "none"):
        return
    name, _ = _place(_one(headers, "Host"), 0)
    name = name.removesuffix(".")  # a fully qualified name ends in a dot
    # *.localhost always means this computer, without DNS (RFC 6761).
    if name == "localhost" or name.endswith(".localhost") or name in {known.lower() for known in known_hosts}:
        return
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return
    if not _HOST_NAME.fullmatch(name):
        raise Refused(403, "This server does not recognise the address that was used. Open ComfyUI by its address.")
    raise Refused(
        403,
        "This server does not recognise {name} as its address. Open ComfyUI by its address, or add {json} to "
        "wan_trainer/hosts.json in its user folder (and keep the names that are in it).",
        name=name,
        json=json.dumps([name]),
    )


def _check_origin(headers: Headers, host: str) -> None:
    origins = headers.getall("Origin", [])
    same = len(origins) < 2
    for scheme, _, place in (origin.partition("://") for origin in origins):
        port = _PORTS.get(scheme.lower())
        same = same and port is not None and _place(place, port) == _place(host, port)
    sites = {site.lower() for site in headers.getall("Sec-Fetch-Site", [])}
    if not same or not sites <= {"same-origin", "none"}:
        raise Refused(403, "The request comes from a page of another site.")


def _place(netloc: str, default_port: int) -> tuple[str, int]:
    """Returns (name, port) of `host[:port]`; ('', -1) for anything else."""
    try:
        parts = urlsplit(f"//{netloc}")
        whole = not (parts.path or parts.query or parts.fragment or parts.username is not None)
        return ((parts.hostname or "").lower(), parts.port or default_port) if whole else ("", -1)
    except ValueError:
        return ("", -1)
