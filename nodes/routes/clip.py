"""Sending a clip: from an open regular file, whole or the part a player asks for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from aiohttp import web

from ...wan_core.files import FileError, open_inside
from ..bridge.threads import in_thread
from ..runs.samples import Sample
from .guard import Refused

_BLOCK_BYTES = 1 << 18
_NO_SAMPLE = "There is no such sample."


def _part_of(wanted: slice, size: int) -> range | None:
    """The bytes a parsed Range header names in a file of `size`; None for the whole file, Refused(416) for none.

    As aiohttp parses it: (None, None), (first, end), (first, None) or (-last bytes, None).
    """
    if wanted.start is None and wanted.stop is None:
        return None
    first = wanted.start or 0
    part = range(max(0, size + first) if first < 0 else first, min(size, wanted.stop or size))
    if not part:
        raise Refused(416, f"The clip has {size} bytes.")
    return part


async def send_clip(
    request: web.Request, directory: Path, sample: Sample | None, headers: dict[str, str]
) -> web.StreamResponse:
    """Stream a sample of the run in `directory`, or the part that a player seeks; Refused(404) without one."""
    if sample is None:
        raise Refused(404, _NO_SAMPLE)
    try:
        source = await in_thread(open_inside, directory.joinpath(*sample.parts), directory.parent)
    except (OSError, FileError):
        raise Refused(404, _NO_SAMPLE) from None
    return await send_file(request, source, sample.media_type, headers)


async def send_file(
    request: web.Request, source: BinaryIO, media_type: str, headers: dict[str, str]
) -> web.StreamResponse:
    """Stream an open file, and close it."""
    with source:
        size = os.fstat(source.fileno()).st_size
        try:
            part = _part_of(request.http_range, size)
        except ValueError:
            part = None  # not a range we know: the whole clip is the answer
        wanted = range(size) if part is None else part
        response = web.StreamResponse(
            status=200 if part is None else 206, headers={**headers, "Accept-Ranges": "bytes"}
        )
        response.content_type, response.content_length = media_type, len(wanted)
        if part is not None:
            response.headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
        await response.prepare(request)
        if request.method != "HEAD":
            await _copy(source, wanted, response)
        await response.write_eof()
    return response


async def _copy(source: BinaryIO, part: range, response: web.StreamResponse) -> None:
    source.seek(part.start)
    left = len(part)
    while left and (block := await in_thread(source.read, min(left, _BLOCK_BYTES))):
        left -= len(block)
        await response.write(block)
