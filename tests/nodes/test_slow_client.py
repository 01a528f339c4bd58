"""A client that connects and never reads: its messages pile up in ComfyUI, and the run trains on all the same.

Why no step can wait for it: steps are made in the worker process, which knows no client; the node follows the worker
and hands messages to ComfyUI's queue without waiting; and it sends by the clock, not by the step.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import statistics
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from comfy_server import ComfyServer
from graphs import run_of
from steering import PATIENCE_S, endless, live_run, press, records, until

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(3)]

FLOOD = 200
"""messages of 64 KiB: more than a socket's buffers hold"""
MESSAGES_PER_S = 16
"""at most: status, progress bar and its state, each four times a second"""


@contextlib.contextmanager
def deaf_client(comfy: ComfyServer) -> Iterator[None]:
    """A websocket that is opened and never read."""
    address = urlsplit(comfy.url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((address.hostname, address.port))
        lines = (
            "GET /ws?clientId=deaf HTTP/1.1",
            f"Host: {address.netloc}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
        )
        client.sendall("\r\n".join([*lines, "", ""]).encode())
        yield


def waiting(comfy: ComfyServer) -> int:
    """Messages that ComfyUI has not sent yet."""
    return comfy.get("/tiny/waiting")["waiting"]


def steps(comfy: ComfyServer, run: str) -> list[dict[str, Any]]:
    found, line = [], 0
    while True:
        page = comfy.get(f"/wan_trainer/runs/{run}/metrics?since={line}")
        found += [record for record in page["records"] if record["event"] == "step"]
        line = page["next"]
        if not page.get("more"):
            return found


@pytest.mark.parametrize("seconds", [1, pytest.param(60, marks=pytest.mark.soak)])
def test_a_client_that_never_reads_delays_no_step(comfy: ComfyServer, seconds: int) -> None:
    name = f"deaf_{seconds}"
    prompt = comfy.queue(endless(name))
    until(comfy, prompt, lambda: live_run(comfy, name, 3))
    before = steps(comfy, name)
    with deaf_client(comfy):
        comfy.post("/tiny/flood", {"messages": FLOOD})
        until(comfy, prompt, lambda: 0 < waiting(comfy) < FLOOD)  # its buffers are full
        stuck, first, began = waiting(comfy), len(steps(comfy, name)), time.monotonic()
        until(comfy, prompt, lambda: time.monotonic() - began >= seconds and len(steps(comfy, name)) >= first + 10)
        elapsed, done, piled = time.monotonic() - began, steps(comfy, name), waiting(comfy)
        assert piled >= stuck > 0, "messages went out: the client was not deaf"
        assert piled - stuck <= MESSAGES_PER_S * (elapsed + 1), "messages come by the clock, not by the step"

        press(comfy, name, "save")  # buttons and answers go another way than messages
        (saved,) = until(comfy, prompt, lambda: records(comfy, name, "saved"))
        assert saved["step"] >= len(done)
        press(comfy, name, "stop")
        ended = run_of(comfy, comfy.wait(prompt, timeout=PATIENCE_S))
        assert waiting(comfy) >= stuck, "the run ended while the client still read nothing"
    assert (ended["status"], ended["stopped_by"]) == ("stopped", "stop_and_keep")
    assert [step["step"] for step in steps(comfy, name)] == list(range(1, ended["step"] + 1))
    during = [step["seconds"] for step in done[first:]]
    medians = [statistics.median(s["seconds"] for s in before), statistics.median(during)]
    print(f"{len(during)} steps in {elapsed:.0f} s; median before {medians[0]:.3f} s, during {medians[1]:.3f} s")  # noqa: T201
    until_sent = time.monotonic() + 60
    while waiting(comfy) and time.monotonic() < until_sent:
        time.sleep(0.1)
    assert waiting(comfy) == 0, "once it is gone, everybody else gets what waited"
