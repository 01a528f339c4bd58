"""The routes of the cache: the bytes of its entries, and deleting entries that no run needs.

Entries of unfinished runs stay, and those of sets written within the last hour: a queue may be about to train on
them. A deleted entry is encoded again when a run needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from ...wan_core.cache import LatentCache, room_of, trim, young_sets
from ...wan_core.job import cache_names_in_use
from ..bridge.threads import in_thread
from .answers import Doors, Handler, answering, as_json
from .guard import Refused


@dataclass(frozen=True)
class CacheRoutes:
    """Answers about the cache of the runs below one folder."""

    doors: Doors
    cache: Callable[[], LatentCache]
    runs: Callable[[], Path]

    def table(self) -> list[tuple[str, str, Handler]]:
        """Returns (method, path, handler) of every route."""
        return [
            ("GET", "/wan_trainer/cache", self.doors.to_read(self.room)),
            ("POST", "/wan_trainer/cache/trim", answering(self.trim)),
        ]

    async def room(self, _request: web.Request) -> web.StreamResponse:
        return as_json(await in_thread(self._room))

    async def trim(self, request: web.Request) -> web.StreamResponse:
        if (await self.doors.change(request)).get("confirm") is not True:
            raise Refused(400, 'Deleting cached clips needs {"confirm": true}.')
        return as_json(await in_thread(self._trim))

    def _room(self) -> dict[str, Any]:
        room = room_of(self.cache(), keep=self._kept())
        return {"version": 1, "bytes": room.entry_bytes, "spare": room.spare_bytes}

    def _trim(self) -> dict[str, Any]:
        report = trim(self.cache(), 0, keep=self._kept())
        return {"version": 1, "bytes": report.entry_bytes, "freed": report.freed_bytes}

    def _kept(self) -> set[str]:
        return young_sets(self.cache()) | set(cache_names_in_use(self.runs()))
