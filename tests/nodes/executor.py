"""ComfyUI's own way with a queued graph, in this process: checked, executed, logged, and answered as it would be.

The server is left out, and so is its thread; what it would have to encode is encoded here, and counted.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any


class _AnyType(str):
    """A type that is no other's mismatch."""

    __slots__ = ()

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__
    __eq__ = str.__eq__


ANY = _AnyType("*")


class Outcome:
    """What the queue did with one graph."""

    def __init__(self, said: list[str], refused: Any, messages: list[tuple[str, dict[str, Any]]], printed: str) -> None:
        self.said, self.refused, self.printed = said, refused, printed
        """sentences of nodes; what POST /prompt answers with 400; the log"""
        self.failed = [data for kind, data in messages if kind == "execution_error"]
        self.done = any(kind == "execution_success" for kind, _ in messages)


class Executor:
    """`run` one node after the other; values of wires are put into `wires`."""

    def __init__(self, pack_nodes: dict[str, Any], register: Callable[[dict[str, Any], str, Any], None]) -> None:
        """`register(mapping, key, value)` sets an entry until the test ends."""
        import execution

        import nodes

        self.wires: dict[str, Any] = {}
        wires = self.wires

        class Given:
            RETURN_TYPES = (ANY,)
            FUNCTION = "give"
            CATEGORY = "test"

            @classmethod
            def INPUT_TYPES(cls) -> dict[str, Any]:
                return {"required": {"what": ("STRING", {})}}

            def give(self, what: str) -> tuple[Any]:
                return (wires[what],)

        class Taken:
            RETURN_TYPES = ()
            FUNCTION = "take"
            CATEGORY = "test"
            OUTPUT_NODE = True

            @classmethod
            def INPUT_TYPES(cls) -> dict[str, Any]:
                return {"optional": {"what": (ANY, {})}}

            def take(self, what: Any = None) -> tuple[()]:
                return ()

        for name, node in {**pack_nodes, "Given": Given, "Taken": Taken}.items():
            register(nodes.NODE_CLASS_MAPPINGS, name, node)
        self._execution = execution
        self._thread = ThreadPoolExecutor(1)  # a browser test of the same session keeps a loop in this one
        self._sent: list[tuple[str, Any]] = []
        server = SimpleNamespace(
            client_id="test",
            last_node_id=None,
            last_prompt_id="p",
            send_sync=lambda event, data, _client=None: self._sent.append((event, data)),
        )
        self.server = server
        self.queue: Any = None
        self.keep(execution.CacheType.NONE)

    def keep(self, cache: Any) -> None:
        """Begin with an empty cache of a kind of ComfyUI's."""
        sizes = {"ram": 1.0, "ram_inactive": 0.0, "lru": 100}
        self.queue = self._execution.PromptExecutor(self.server, cache_type=cache, cache_args=sizes)

    def run_graph(self, graph: dict[str, Any]) -> None:
        """Queue a whole graph of these nodes, which runs to its end."""
        assert self._thread.submit(self._run, graph, {}).result() is None
        assert self.queue.status_messages[-1][0] == "execution_success", self.queue.status_messages

    def run(self, kind: str, inputs: dict[str, Any], extra: dict[str, Any] | None = None) -> Outcome:
        """Queue one node; an input ("wire", name) is linked to that wire."""
        graph: dict[str, Any] = {}
        given: dict[str, Any] = {}
        for name, value in inputs.items():
            if isinstance(value, tuple):
                graph[f"w_{name}"] = {"class_type": "Given", "inputs": {"what": value[1]}}
                given[name] = [f"w_{name}", 0]
            else:
                given[name] = value
        graph["1"] = {"class_type": kind, "inputs": given}
        import nodes

        if not getattr(nodes.NODE_CLASS_MAPPINGS[kind], "OUTPUT_NODE", False):
            graph["end"] = {"class_type": "Taken", "inputs": {"what": ["1", 0]}}
        printed = io.BytesIO()
        # As ComfyUI's own interception of stdout and stderr: what it cannot encode is raised, not swallowed.
        stream = io.TextIOWrapper(printed, encoding="utf-8", errors="strict", write_through=True)
        handler = _Strict(stream)
        root, level = logging.getLogger(), logging.getLogger().level
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        self._sent.clear()
        try:
            answer = self._thread.submit(self._run, graph, extra or {}).result()
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
        json.dumps(self._sent, default=str).encode("ascii")
        messages = self.queue.status_messages if answer is None else []
        said = [data["exception_message"] for kind_, data in messages if kind_ == "execution_error"]
        return Outcome(said, answer, messages, printed.getvalue().decode("utf-8"))

    def _run(self, graph: dict[str, Any], extra: dict[str, Any]) -> Any:
        return asyncio.run(self._checked_and_run(json.loads(json.dumps(graph)), extra))

    async def _checked_and_run(self, graph: dict[str, Any], extra: dict[str, Any]) -> Any:
        good, error, outputs, node_errors = await self._execution.validate_prompt("p", graph, None)
        if not good:
            return {"error": error, "node_errors": node_errors}
        await self.queue.execute_async(graph, "p", {"client_id": "test", **extra}, outputs)
        return None


class _Strict(logging.StreamHandler):  # not subscriptable on Python 3.10
    """Raises what cannot be written: ComfyUI's thread ends with it."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise
