"""The guard of the routes: it decides which requests are answered, and which may change something (rule S10).

Pure: headers in, a refusal or nothing out.

A web page of a stranger can make a browser send requests to this server. It can neither read an answer nor send JSON or
a header of its own without asking first, and ComfyUI does not allow it; what remains is a page that reaches us under a
name of its own (DNS rebinding), which the Host check refuses, to read as to change.
"""

from __future__ import annotations

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
    """A refused request: `status` is the HTTP status, the sentence goes to the client; neither names a path here.

    A sentence that is translated is a template with `values`, as that of a WanTrainerError.
    """

    def __init__(self, status: int, sentence: str, **values: object) -> None:
        self.status, self.sentence = status, filled(sentence, **values) if values else sentence
        super().__init__(self.sentence)


class Headers(Protocol):
    """The part of aiohttp's case-insensitive multi-dictionary that is used here."""

    def getall(self, key: str, default: list[str]) -> list[str]: ...


def check_change(headers: Headers, known_hosts: Collection[str] = ()) -> None:
    """Refused(403 or 415) unless the request comes from this server's own page, or from a program that means it."""
    check_host(headers, known_hosts)
    _check_origin(headers, _one(headers, "Host"))
    if _one(headers, HEADER) != "1":
        raise Refused(403, f'Send the header "{HEADER}: 1" with a request that changes something.')
    kind = _one(headers, "Content-Type").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, 'Send JSON, with the header "Content-Type: application/json".')


def read_body(body: bytes) -> dict[str, Any]:
    """The JSON object of a request; Refused(400) for anything else."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise Refused(400, "The body must be a JSON object, {} when there is nothing to say.")
    return data


def check_local(remote: str | None, headers: Mapping[str, str]) -> None:
    """Refused(403) unless the request comes from this very computer, and not through a proxy on it."""
    if not _is_this_computer(remote or "") or any(name in headers for name in _PROXY_HEADERS):
        raise Refused(403, "A folder opens on the server's own screen, so only its own browser may ask for it.")


def _is_this_computer(remote: str) -> bool:
    try:
        address = ipaddress.ip_address(remote)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback


def _one(headers: Headers, name: str) -> str:
    """Returns the value of a header; two of a kind are a trick, and count as none."""
    values = headers.getall(name, [])
    return values[0] if len(values) == 1 else ""


def check_host(headers: Headers, known_hosts: Collection[str] = ()) -> None:
    """Refused(403) unless the request names this server: an address, localhost, or a name it knows itself by.

    Sec-Fetch-Site is as good: no script can set it, and browsers send it to localhost and over TLS alone, where a name
    of somebody else has no certificate for this server. So behind a TLS proxy every name is right.
    """
    if _one(headers, "Sec-Fetch-Site").lower() in ("same-origin", "none"):
        return
    name, _ = _place(_one(headers, "Host"), 0)
    name = name.removesuffix(".")  # of a name written to its root
    # Names below localhost are this computer's by definition: no server of names is asked (RFC 6761).
    if name == "localhost" or name.endswith(".localhost") or name in {known.lower() for known in known_hosts}:
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise Refused(403, _unknown(name)) from None


def _unknown(name: str) -> str:
    if not _HOST_NAME.fullmatch(name):
        return "This server does not know itself by the name it was called. Open ComfyUI by its address."
    return filled(
        "This server does not know itself as {name}. Open ComfyUI by its address, or write {json} into "
        "wan_trainer/hosts.json of its user folder (beside the names that stand there).",
        name=name,
        json=json.dumps([name]),
    )


def _check_origin(headers: Headers, host: str) -> None:
    origins = headers.getall("Origin", [])
    for origin in origins:
        scheme = origin.partition("://")[0].lower()
        port = _PORTS.get(scheme)
        same = port is not None and _place(origin.partition("://")[2], port) == _place(host, port)
        if not same or len(origins) > 1:
            raise Refused(403, "The request comes from a page of another site.")
    if any(site.lower() not in ("same-origin", "none") for site in headers.getall("Sec-Fetch-Site", [])):
        raise Refused(403, "The request comes from a page of another site.")


def _place(netloc: str, default_port: int) -> tuple[str, int]:
    """Returns (name, port) of `host[:port]`; ('', -1) for what is none."""
    try:
        parts = urlsplit(f"//{netloc}")
        whole = not (parts.path or parts.query or parts.fragment or parts.username is not None)
        return ((parts.hostname or "").lower(), parts.port or default_port) if whole else ("", -1)
    except ValueError:
        return ("", -1)
