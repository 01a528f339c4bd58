"""Sends a clip from an open regular file, complete or the range that a player requests."""

from __future__ import annotations

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


def _part_of(wanted: slice, size: int) -> range | None:
    """Returns the bytes of a Range header in a file of `size` bytes; None: the complete file.

    `wanted`: as aiohttp parses it: (None, None), (first, end), (first, None) or (-last bytes, None). Raises
    Refused(416) for an empty range.
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
        try:
            part = _part_of(request.http_range, size)
        except ValueError:
            part = None  # RFC 9110 lets a server ignore an unknown range unit
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
