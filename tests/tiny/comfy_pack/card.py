"""A route for tests of memory plans: the server takes its cards for as large as it is told."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["add_card_route"]

LIMIT = "WAN_TRAINER_CARD_GIB"


def add_card_route() -> None:
    """POST /tiny/card {"gib": "16"}, "" for no limit; nothing without a running server."""
    server: Any = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    if server is None:
        return
    from aiohttp import web

    async def card(request: web.Request) -> web.Response:
        os.environ[LIMIT] = str((await request.json())["gib"])
        return web.json_response({})

    server.routes.post("/tiny/card")(card)
