"""A route for tests of memory plans: the server takes its cards for as large as it is told."""

from __future__ import annotations

import os
import sys
from typing import Any

LIMITS = {"gib": "WAN_TRAINER_CARD_GIB", "host_gib": "WAN_TRAINER_HOST_GIB"}


def add_card_route() -> None:
    """POST /tiny/card {"gib": "16"}, with {"host_gib": "64"} for the computer too, "" for no limit; nothing without a
    running server."""
    server: Any = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    if server is None:
        return
    from aiohttp import web

    async def card(request: web.Request) -> web.Response:
        said = await request.json()
        for name, variable in LIMITS.items():
            os.environ[variable] = str(said.get(name, ""))
        return web.json_response({})

    server.routes.post("/tiny/card")(card)
