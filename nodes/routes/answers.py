"""Checks before a handler, refusals as JSON after it, the headers of every response, and work in threads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import web

from ...wan_core.errors import WanTrainerError
from ...wan_core.job import disk_sentence
from ...wan_core.words import logger, with_sentences
from ..runs.scrub import scrubbed
from .guard import BODY_LIMIT, Refused, check_change, check_host, read_body

_log = logger(__name__)
_BUG = "This request failed because of a bug"

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}


async def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Returns the result of `call` in a thread.

    Raises RuntimeError instead of StopIteration, which would leave the future incomplete, and instead of SystemExit,
    which would end the server.
    """

    def caught() -> T:
        try:
            return call(*arguments)
        except (StopIteration, SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(f"{type(error).__name__} came out of {getattr(call, '__name__', 'a call')}") from error

    return await asyncio.to_thread(caught)


@dataclass(frozen=True)
class Doors:
    """The checks of a request before its handler."""

    known_hosts: Callable[[], Collection[str]]
    """names of this server that are no IP address"""

    def to_read(self, handler: Handler) -> Handler:
        """Wraps `handler` with a check of the Host header."""

        async def read(request: web.Request) -> web.StreamResponse:
            try:
                check_host(request.headers)
            except Refused:  # The file with names of this server is read only now.
                check_host(request.headers, await in_thread(self.known_hosts))
            return await handler(request)

        return answering(read)

    async def change(self, request: web.Request, limit: int = BODY_LIMIT) -> dict[str, Any]:
        """Returns the body of a request that may change something. Raises Refused for any other request."""
        check_change(request.headers, await in_thread(self.known_hosts))
        body = bytearray()
        async for block in request.content.iter_chunked(limit):
            body += block
            if len(body) > limit:
                raise Refused(413, f"The body is longer than {limit} bytes.")
        return read_body(bytes(body))


def answering(handler: Handler) -> Handler:
    """Returns `handler` with its refusals as JSON responses."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refused as refusal:
            return as_json({"error": refusal.sentence}, refusal.status)
        except WanTrainerError as error:
            return as_json({"error": scrubbed(str(error))}, 409)
        except (ConnectionError, web.HTTPException):
            raise  # the client closed the connection, or a response of aiohttp
        except OSError as error:
            return as_json({"error": scrubbed(await in_thread(disk_sentence, error))}, 409)
        except Exception as error:  # a bug of this pack; the page says so
            _log.exception("%s %s was not answered", request.method, request.path)
            return as_json({"error": f"{_BUG} ({type(error).__name__}). See the server's log."}, 500)

    return answer


def as_json(data: dict[str, Any], status: int = 200) -> web.Response:
    return as_json_text(to_text(with_sentences(data)), status)


def as_json_text(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="application/json", headers=HEADERS)


def to_text(data: Any) -> str:
    """Returns standard JSON: NaN and infinity become null."""
    try:
        return json.dumps(data, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(data), parse_constant=lambda _: None))
