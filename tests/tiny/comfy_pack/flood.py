"""Routes for tests of clients that do not read: messages for everybody, and how many wait to be sent."""

from __future__ import annotations

import sys
from typing import Any

MESSAGE_CHARACTERS = 1 << 16


def add_routes() -> None:
    """POST /tiny/flood {"messages": n}, GET /tiny/waiting; nothing without a running server."""
    server: Any = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    if server is None:
        return
    from aiohttp import web

    async def flood(request: web.Request) -> web.Response:
        for _ in range(int((await request.json())["messages"])):
            server.send_sync("tiny.flood", {"text": "x" * MESSAGE_CHARACTERS})
        return web.json_response({})

    async def waiting(_request: web.Request) -> web.Response:
        return web.json_response({"waiting": server.messages.qsize()})

    server.routes.post("/tiny/flood")(flood)
    server.routes.get("/tiny/waiting")(waiting)
