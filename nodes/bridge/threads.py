"""Work in a thread that always ends in an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(what: Callable[..., T], *given: object) -> T:
    """Returns what `what` returns, from a thread.

    What no future can hand on (StopIteration, for which the caller would wait for ever), or what would end the server
    (SystemExit), comes as RuntimeError.
    """

    def call() -> T:
        try:
            return what(*given)
        except (StopIteration, SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(f"{type(error).__name__} came out of {getattr(what, '__name__', 'a call')}") from error

    return await asyncio.to_thread(call)
