"""Sends a clip from an open regular file, complete or the range that a player requests."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from aiohttp import web

from ...wan_core.files import FileError, open_inside
from ..runs.samples import Sample
from .answers import in_thread
from .guard import Refused

_BLOCK_BYTES = 1 << 18
_NO_SAMPLE = "There is no such sample."


async def send_clip(
    request: web.Request, directory: Path, sample: Sample | None, headers: dict[str, str]
) -> web.StreamResponse:
    """Streams a sample of the run in `directory`, or the requested range. Raises Refused(404) for no sample."""
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
    """Streams an open file, and closes it."""
    with source:
        size = os.fstat(source.fileno()).st_size
        wanted = slice(None)
        with contextlib.suppress(ValueError):  # RFC 9110 lets a server ignore an unknown range unit
            wanted = request.http_range
        part, is_part = range(size)[wanted], (wanted.start, wanted.stop) != (None, None)
        if is_part and not part:
            raise Refused(416, f"The clip has {size} bytes.")
        response = web.StreamResponse(status=206 if is_part else 200, headers={**headers, "Accept-Ranges": "bytes"})
        response.content_type, response.content_length = media_type, len(part)
        if is_part:
            response.headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
        await response.prepare(request)
        source.seek(part.start)
        left = 0 if request.method == "HEAD" else len(part)
        while left and (block := await in_thread(source.read, min(left, _BLOCK_BYTES))):
            left -= len(block)
            await response.write(block)
        await response.write_eof()
    return response
