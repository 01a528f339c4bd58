"""The parent side of the parser process: requests, timeouts, stop requests and refusals."""

from __future__ import annotations

import functools
import json
import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from ..children import Answer, Child
from ..errors import DatasetError, DependencyError, WanTrainerError, stop_if
from .documents import parsed_here

_START_S = 120.0
TEXT_S = 10.0
TABLE_S = 60.0
"""seconds for an answer of a few rows"""
SHORT_BYTES = 8 << 10
"""longest text that is parsed without a child process; it takes some hundredths of a second"""
_POLL_S = 0.1
T = TypeVar("T", bound="_ParserChild")
Stop = Callable[[], bool]
Row = list[Any] | str
"""the requested cells, or why the row cannot be used"""


def parsed(kind: str, name: str, text: str) -> Any:
    """Returns the JSON data of settings of `kind` "toml", "yaml" or "json"; `name` begins the text of a refusal.

    Raises DatasetError, DependencyError.
    """
    if kind == "json":
        return parsed_here(kind, name, text)  # Python's json parser is fast and does not crash
    said = _parsed(kind, name, text)
    if isinstance(said, WanTrainerError):
        raise type(said)(str(said))
    return json.loads(said)


@functools.lru_cache(maxsize=8)
def _parsed(kind: str, name: str, text: str) -> str | WanTrainerError:
    """Returns JSON text or a refusal; cached, because plan, fingerprint and run parse the same texts."""
    payload = text.encode("utf-8", "surrogatepass")
    try:
        if len(payload) <= SHORT_BYTES:
            return json.dumps(parsed_here(kind, name, text))
        with _ParserChild(name, None, "Choose the settings file itself.") as child:
            header, _ = child.ask({"do": kind}, payload, TEXT_S, "data")
        return json.dumps(header["data"])
    except _EndedError:  # not cached, because another program may have killed the child
        raise
    except DatasetError as error:
        return error


def _with_bytes(cell: Any, payload: bytearray) -> Any:
    if isinstance(cell, dict) and "bytes" in cell:
        place = cast("dict[str, Any]", cell)["bytes"]
        if isinstance(place, list):
            start, end = cast("list[int]", place)
            return {**cell, "bytes": bytes(memoryview(payload)[start:end])}
    return cast("Any", cell)


class _EndedError(DatasetError):
    """The child process ended, or sent an invalid answer."""


class _ParserChild:
    """A child process, started by the first request, that parses one file or text at a time; `name` is the current
    one."""

    def __init__(self, name: str, should_stop: Stop | None, remedy: str) -> None:
        self.name, self._should_stop, self._remedy = name, should_stop, remedy
        self._child: Child | None = None

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def ask(self, header: dict[str, Any], payload: bytes, seconds: float, wanted: str) -> Answer:
        """Returns an answer with the key `wanted`."""
        if self._child is None:
            self._child = Child("parse")
            if self._wait(self._child, _START_S) is None:
                words = self._child.last_words()
                self.__exit__()
                raise DependencyError(f"{self.name} cannot be read: Python does not start for it{words}.")
        self._child.ask({**header, "name": self.name}, payload)
        answer = self._wait(self._child, seconds)
        if answer is not None and (error := answer[0].get("error")):
            raise (DependencyError if error == "dependency" else DatasetError)(str(answer[0].get("message")))
        if answer is None or wanted not in answer[0]:
            raise _EndedError(f"{self.name} is damaged: it ends the process that reads it. {self._remedy}")
        return answer

    def _wait(self, child: Child, seconds: float) -> Answer | None:
        end = time.monotonic() + seconds
        while True:
            try:
                return child.answers.get(timeout=_POLL_S)
            except queue.Empty:
                stop_if(self._should_stop, f"reading {self.name}")
                if time.monotonic() > end:
                    why = f"{self.name} takes more than {seconds:.0f} s to be read. {self._remedy}"
                    raise DatasetError(why) from None


class Tables(_ParserChild):
    """Reads parquet, arrow and long JSON lists, one after the other, in one child process.

    A context manager; not thread-safe. DatasetError for a damaged file, or one beyond the limits; DependencyError
    without pyarrow; Stopped.
    """

    def __init__(self, should_stop: Stop | None = None) -> None:
        super().__init__("", should_stop, "Write it again.")

    def open(self, path: Path) -> tuple[str, ...]:
        """Open a file, closing the previous one; returns its column names."""
        self.name = path.name
        header, _ = self.ask({"do": "open", "path": os.path.abspath(path)}, b"", TABLE_S, "columns")
        return tuple(header["columns"])

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yields the cells of these columns, row by row."""
        while True:
            header, payload = self.ask({"do": "rows", "columns": list(columns)}, b"", TABLE_S, "rows")
            for row in cast("list[Row]", header["rows"]):
                yield row if isinstance(row, str) else [_with_bytes(cell, payload) for cell in row]
            if header["end"]:
                return
