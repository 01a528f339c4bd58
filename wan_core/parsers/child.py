"""The parser process: answers requests about one text or one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import children
from ..children import Answer
from ..errors import DatasetError, DependencyError, WanTrainerError
from ..words import first_line
from .documents import parsed_here
from .tables import OpenTable

_MEMORY_BYTES = 4 << 30


def serve() -> int:
    """Entry of `launch.py parse`."""
    return children.serve(lambda: Parser().answer, _MEMORY_BYTES)


class Parser:
    """Answers requests; holds the open table."""

    def __init__(self) -> None:
        self._table: OpenTable | None = None

    def answer(self, header: dict[str, Any], payload: bytearray) -> Answer:
        """Returns the answer, or {"error", "message"}."""
        name = header["name"]
        try:
            return self._answer(header, payload)
        except WanTrainerError as error:
            said = error
        except MemoryError:
            said = DatasetError(
                f"{name} needs more than {_MEMORY_BYTES >> 30} GiB of memory to be read. Split it, or write less."
            )
        except Exception as error:  # for a damaged file, libraries can raise anything
            said = DatasetError(f"{name} cannot be read ({first_line(error)[:160]}). Write it again.")
        kind = "dependency" if isinstance(said, DependencyError) else "refused"
        return {"error": kind, "message": str(said)}, b""

    def _answer(self, header: dict[str, Any], payload: bytearray) -> Answer:
        if header["do"] == "open":
            if self._table is not None:
                self._table.close()
            self._table = OpenTable(Path(header["path"]))
            return {"columns": self._table.columns}, b""
        if header["do"] == "rows":
            assert self._table is not None, "open it first"
            return self._table.next_rows(header["columns"])
        text = payload.decode("utf-8", "surrogatepass")
        return {"data": parsed_here(header["do"], header["name"], text)}, b""
