"""The contact sheet's routes: captions of a scan as they are now, writing them, and the clips themselves.

A scan and a clip are an id and a number that this server gave out; no path comes in, and none goes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from ...wan_core.dataset import CaptionEdits, Found, Written
from ...wan_core.metrics import whole
from ..bridge.scans import Scans
from ..bridge.threads import in_thread
from ..runs.scrub import scrubbed
from .answers import HEADERS, Doors, Handler, answering, as_json
from .clip import send_file
from .guard import Refused

_SHOWN = 48
"""as many as the contact sheet has pictures"""
_LONGEST = 1000
"""characters of a text that is looked for"""
_LIMIT = 1 << 20
"""bytes of a request: a caption has up to 64 KiB, JSON may spell a byte as six"""
_PICTURES = {
    ".gif": "image/gif",
    ".png": "image/png",
    ".apng": "image/apng",
    ".avif": "image/avif",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
}
_VIDEOS = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",  # the same container; browsers know it by this name
    ".webm": "video/webm",
    ".mkv": "video/x-matroska",
    ".avi": "video/x-msvideo",
}
_UNKNOWN = (
    "The server does not know this scan any more: it was started again, or has made many scans since. Run the node "
    "again."
)


@dataclass(frozen=True)
class ScanRoutes:
    """Answers about the files of scans."""

    doors: Doors
    scans: Scans

    def table(self) -> list[tuple[str, str, Handler]]:
        """Returns (method, path, handler) of every route."""
        scan = "/wan_trainer/scans/{scan}"
        changes: dict[str, Callable[[CaptionEdits, Mapping[str, Any]], dict[str, Any]]] = {
            "caption": _write,
            "replace": _replace,
            "undo": _undo,
        }
        return [
            ("GET", f"{scan}/captions", self.doors.to_read(self.captions)),
            ("GET", f"{scan}/clips/{{clip}}", self.doors.to_read(self.clip)),
            *(("POST", f"{scan}/{name}", answering(self._changing(change))) for name, change in changes.items()),
        ]

    async def captions(self, request: web.Request) -> web.StreamResponse:
        """The captions that hold ?text= and how many do, or that of one ?clip=."""
        edits, text, clip = self._find(request), request.query.get("text", ""), request.query.get("clip")
        if clip is not None:
            one = await in_thread(edits.caption, _number(clip))
            return as_json({"version": 1, "caption": _shown(one)})
        _check(text)
        found = await in_thread(edits.find, text, _SHOWN)
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


def _write(edits: CaptionEdits, body: Mapping[str, Any]) -> dict[str, Any]:
    clip, before, text = whole(body.get("clip")), body.get("before"), body.get("text")
    if clip is None or not isinstance(before, str) or not isinstance(text, str):
        raise Refused(400, 'Writing a caption needs {"clip": <number>, "before": <text>, "text": <text>}.')
    done = edits.write(clip, before, text)
    return {**_said(done), "caption": _shown(edits.caption(clip))}


def _replace(edits: CaptionEdits, body: Mapping[str, Any]) -> dict[str, Any]:
    find, by = body.get("find"), body.get("by")
    captions, places = whole(body.get("captions")), whole(body.get("places"))
    if not isinstance(find, str) or not find or not isinstance(by, str) or captions is None or places is None:
        raise Refused(400, 'Replacing needs {"find": <text>, "by": <text>, "captions": <number>, "places": <number>}.')
    _check(find)
    _check(by)
    return _said(edits.replace(find, by, (captions, places)))


def _undo(edits: CaptionEdits, body: Mapping[str, Any]) -> dict[str, Any]:
    change = whole(body.get("change"))
    if change is None:
        raise Refused(400, 'Undoing needs {"change": <number of a change>}.')
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
    }


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise Refused(400, "A clip is named by its number in the scan.")
    return int(text)


def _check(text: str) -> None:
    if len(text) > _LONGEST:
        raise Refused(400, f"A text to find or to write for it has up to {_LONGEST} characters.")
