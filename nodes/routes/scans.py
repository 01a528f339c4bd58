"""Routes of datasets: captions, choices and clips of a scan, and the size and trimming of the cache.

The server gives each scan an id and each clip a number; requests and responses contain no path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from ...wan_core.cache import LatentCache, room_of, trim, young_sets
from ...wan_core.choices import Choice
from ...wan_core.dataset import CaptionEdits, Found, Written
from ...wan_core.job import cache_names_in_use
from ...wan_core.metrics import whole
from ..bridge.scanning import Scans, measured_findings
from ..runs.scrub import scrubbed
from .answers import HEADERS, Doors, Handler, answering, as_json, in_thread
from .clip import send_file
from .guard import Refused

_SHOWN = 48
"""most captions in a response, one contact sheet"""
_LONGEST = 1000
"""characters of a search text"""
_LIMIT = 1 << 20
"""most bytes of a request: a caption has up to 64 KiB, and JSON can take six bytes for one"""
_GROUPS = ("", "captionless", "short", "still", "alike", "excluded", "marked")
_PICTURES = {f".{kind}": f"image/{kind}" for kind in ("gif", "png", "apng", "avif", "jpeg", "webp", "bmp")}
_PICTURES[".jpg"] = "image/jpeg"
_VIDEOS = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",  # the same container; browsers do not play video/quicktime
    ".webm": "video/webm",
    ".mkv": "video/x-matroska",
    ".avi": "video/x-msvideo",
}
_UNKNOWN = "The server no longer has this scan: it was restarted, or has made many scans since. Run the node again."


@dataclass(frozen=True)
class CacheRoutes:
    """The routes of the cache.

    Trimming keeps the entries of unfinished runs and of sets of the last hour, which a queued training may need. A
    deleted entry is encoded again when a run needs it.
    """

    doors: Doors
    cache: Callable[[], LatentCache]
    runs: Callable[[], Path]

    def table(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/wan_trainer/cache", self.doors.to_read(self.room)),
            ("POST", "/wan_trainer/cache/trim", answering(self.trim)),
        ]

    async def room(self, _request: web.Request) -> web.StreamResponse:
        """Returns the bytes of the cache, and the bytes that `trim` would delete."""
        size, spare = await in_thread(lambda: room_of(self.cache(), keep=self._kept()))
        return as_json({"version": 1, "bytes": size, "spare": spare})

    async def trim(self, request: web.Request) -> web.StreamResponse:
        """Deletes the entries that no run needs."""
        if (await self.doors.change(request)).get("confirm") is not True:
            raise Refused(400, 'Deleting cached clips needs {"confirm": true}.')
        report = await in_thread(lambda: trim(self.cache(), 0, keep=self._kept()))
        return as_json({"version": 1, "bytes": report.entry_bytes, "freed": report.freed_bytes})

    def _kept(self) -> set[str]:
        return young_sets(self.cache()) | set(cache_names_in_use(self.runs()))


@dataclass(frozen=True)
class ScanRoutes:
    """The routes of captions and clips of scans."""

    doors: Doors
    scans: Scans

    def table(self) -> list[tuple[str, str, Handler]]:
        scan = "/wan_trainer/scans/{scan}"
        changes: dict[str, Callable[[CaptionEdits, Mapping[str, Any]], dict[str, Any]]] = {
            "caption": _write,
            "replace": _replace,
            "undo": _undo,
            "choice": _choose,
        }
        return [
            ("GET", f"{scan}/captions", self.doors.to_read(self.captions)),
            ("GET", f"{scan}/clips/{{clip}}", self.doors.to_read(self.clip)),
            ("GET", f"{scan}/clips/{{clip}}/frame", self.doors.to_read(self.frame)),
            *(("POST", f"{scan}/{name}", answering(self._changing(change))) for name, change in changes.items()),
            ("POST", f"{scan}/measure", answering(self.measure)),
        ]

    async def captions(self, request: web.Request) -> web.StreamResponse:
        """Returns the captions that contain `?text=` and their number, of `?group=`, or the caption of `?clip=`."""
        edits, text, clip = self._find(request), request.query.get("text", ""), request.query.get("clip")
        group = request.query.get("group", "")
        if clip is not None:
            one = await in_thread(edits.caption, _number(clip))
            return as_json({"version": 1, "caption": _shown(one)})
        _check(text)
        if group not in _GROUPS:
            raise Refused(400, f"A group is one of {', '.join(filter(None, _GROUPS))}.")
        found = await in_thread(edits.find, text, _SHOWN, group)
        return as_json(
            {
                "version": 1,
                "total": len(edits),
                "count": found.count,
                "can_change": found.can_change,
                "places": found.places,
                "captions": [_shown(one) for one in found.first],
            }
        )

    async def clip(self, request: web.Request) -> web.StreamResponse:
        number = _number(request.match_info["clip"])
        ending, source = await in_thread(self._find(request).open_media, number)
        kind = {**_PICTURES, **_VIDEOS}.get(ending, "application/octet-stream")
        return await send_file(request, source, kind, HEADERS)

    async def frame(self, request: web.Request) -> web.StreamResponse:
        """Returns the first frame of a clip."""
        number = _number(request.match_info["clip"])
        source = await in_thread(self._find(request).open_thumbnail, number)
        return await send_file(request, source, "image/jpeg", HEADERS)

    async def measure(self, request: web.Request) -> web.StreamResponse:
        """Measures clips for some seconds and returns the findings. Guarded as a change, because of its cost."""
        await self.doors.change(request)
        dataset = self.scans.dataset(request.match_info["scan"])
        if dataset is None:
            raise Refused(404, _UNKNOWN)
        return as_json({"version": 1, "findings": await in_thread(measured_findings, dataset)})

    def _changing(self, change: Callable[[CaptionEdits, Mapping[str, Any]], dict[str, Any]]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await self.doors.change(request, _LIMIT)
            return as_json(await in_thread(change, self._find(request), body))

        return handle

    def _find(self, request: web.Request) -> CaptionEdits:
        edits = self.scans.get(request.match_info["scan"])
        if edits is None:
            raise Refused(404, _UNKNOWN)
        return edits


_TYPES = {int: "<number>", str: "<text>", dict: "<choice>"}


def _given(body: Mapping[str, Any], **wanted: type) -> list[Any]:
    """Returns the values of a request, in order. Raises Refused(400) for a missing one, or one of another type."""
    found = [whole(body.get(name)) if kind is int else body.get(name) for name, kind in wanted.items()]
    if not all(isinstance(value, kind) for value, kind in zip(found, wanted.values(), strict=True)):
        listed = ", ".join(f'"{name}": {_TYPES[kind]}' for name, kind in wanted.items())
        raise Refused(400, f"This request needs {{{listed}}}.")
    return found


def _write(edits: CaptionEdits, body: Mapping[str, Any]) -> dict[str, Any]:
    clip, before, text = _given(body, clip=int, before=str, text=str)
    return {**_said(edits.write(clip, before, text)), "caption": _shown(edits.caption(clip))}


def _choose(edits: CaptionEdits, body: Mapping[str, Any]) -> dict[str, Any]:
    clip, *choices = _given(body, clip=int, before=dict, choice=dict)
    before, choice = (Choice.from_dict(one, "the choice of the request") for one in choices)
    return {**_said(edits.choose(clip, before, choice)), "caption": _shown(edits.caption(clip))}


def _replace(edits: CaptionEdits, body: Mapping[str, Any]) -> dict[str, Any]:
    find, by, captions, places = _given(body, find=str, by=str, captions=int, places=int)
    if not find:
        raise Refused(400, "A text to find is not empty.")
    _check(find)
    _check(by)
    return _said(edits.replace(find, by, (captions, places)))


def _undo(edits: CaptionEdits, body: Mapping[str, Any]) -> dict[str, Any]:
    (change,) = _given(body, change=int)
    return _said(edits.undo(change))


def _said(done: Written) -> dict[str, Any]:
    refused = [scrubbed(sentence) for sentence in done.refused[:5]]
    return {"version": 1, "change": done.change, "clips": done.clips, "kept": len(done.refused), "refused": refused}


def _shown(one: Found) -> dict[str, Any]:
    return {
        "clip": one.clip,
        "name": one.name,
        "picture": one.ending in _PICTURES,
        "caption": one.caption,
        "refusal": scrubbed(one.refusal),
        "unreadable": scrubbed(one.unreadable),
        "choice": one.choice.to_dict(),
        "choice_refusal": scrubbed(one.choice_refusal),
        "duration_s": one.duration_s,
        **({"bucket": asdict(one.bucket)} if one.bucket is not None else {}),
    }


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise Refused(400, "A clip is named by its number in the scan.")
    return int(text)


def _check(text: str) -> None:
    if len(text) > _LONGEST:
        raise Refused(400, f"A text to find or to write for it has up to {_LONGEST} characters.")
