"""The recorder of websocket messages, which tests of the nodes read what ran from."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from comfy_server import Recorder


@contextmanager
def talking_server(messages: int) -> Iterator[tuple[str, threading.Event]]:
    """A server that sends so many messages to whoever connects; its address, and an event once all were sent."""
    sent, address = threading.Event(), []
    loop, listening = asyncio.new_event_loop(), threading.Event()
    over = asyncio.Event()

    async def talk(request: web.Request) -> web.WebSocketResponse:
        socket_ = web.WebSocketResponse()
        await socket_.prepare(request)
        await socket_.receive()  # what the recorder says of itself
        for number in range(messages):
            await socket_.send_json({"type": "executing", "data": {"node": number}})
        sent.set()
        async for _ in socket_:
            pass
        return socket_

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/ws", talk)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        listening.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert listening.wait(10)
    try:
        yield address[0], sent
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()


def test_a_recorder_that_is_late_still_has_all_that_was_sent_before_its_end() -> None:
    """On a busy machine its thread may not have run since the server spoke."""
    with talking_server(20) as (url, sent):
        recorder = Recorder(url, "late")
        recorder.open()
        loop, _ = recorder._closing
        loop.call_soon_threadsafe(time.sleep, 0.3)
        assert sent.wait(10)
        recorder.close()
    assert [data["node"] for data in recorder.of("executing")] == list(range(20))
