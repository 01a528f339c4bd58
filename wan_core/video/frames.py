"""Decodes the frames of a clip in display order, with their times, from the beginning or a later second on."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .sources import MAX_FRAMES, decoder_of, refuse

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_SEEK_FROM_S = 2.0
"""before this start, frames are decoded from the beginning instead of seeking"""
_UNSEEKABLE = ("avi", "gif", "mpeg", "mpegts", "asf", "flv")
"""formats that are read from the start: AVI has decoding times only, a GIF frame depends on all earlier frames, and the
others have no reliable index"""


class TimedFrame(NamedTuple):
    """A frame in display order."""

    time_s: float
    """seconds from the first frame"""

    duration_s: float
    """stated duration in seconds; 0 if the file has none"""
    frame: VideoFrame


Stamped = tuple["int | None", "VideoFrame"]


def timed_frames(
    path: Path, container: InputContainer, stream: VideoStream, start_s: float = 0.0
) -> Iterator[TimedFrame]:
    """Yields frames in order of time, from `start_s` or earlier on. Raises DatasetError for a damaged frame."""
    tick = float(stream.time_base or 0)
    decoder = decoder_of(stream)
    frames = _decode(container, stream, decoder)
    if (first := next(frames, None)) is None:
        return
    origin = first[0]
    shown = itertools.chain([first], frames)
    if origin is not None and start_s > _SEEK_FROM_S and container.format.name not in _UNSEEKABLE:
        shown = _from_key_frame(container, stream, decoder, origin, origin + int(start_s / tick))
    for number, (stamp, frame) in enumerate(shown):
        if frame.is_corrupt:
            raise refuse(path, f"is damaged at frame {number}")
        if stamp is None or origin is None or number > MAX_FRAMES:
            raise refuse(path, f"has no usable time at frame {number}")
        yield TimedFrame((stamp - origin) * tick, (frame.duration or 0) * tick, frame)


def _from_key_frame(
    container: InputContainer, stream: VideoStream, decoder: VideoCodecContext, origin: int, wanted: int
) -> Iterator[Stamped]:
    """Yields frames from the last key frame at or before the tick `wanted`; from the beginning if seeking fails."""
    container.seek(wanted, stream=stream)
    decoder.flush_buffers()
    # Frames before the key frame depend on frames that are not decoded.
    frames = itertools.dropwhile(lambda stamped: not stamped[1].key_frame, _decode(container, stream, decoder))
    first = next(frames, None)
    if first is None or first[0] is None or first[0] > wanted:
        container.seek(origin, stream=stream)
        decoder.flush_buffers()
        return _decode(container, stream, decoder)
    return itertools.chain([first], frames)


def _decode(container: InputContainer, stream: VideoStream, decoder: VideoCodecContext) -> Iterator[Stamped]:
    """Yields frames in display order, each with its time in ticks."""
    # AVI has decoding times only, which the decoder assigns to the wrong B-frames. Frames are returned in display
    # order, so the n-th frame gets the n-th time.
    by_order = container.format.name == "avi"
    stamps: collections.deque[int] = collections.deque()
    for packet in container.demux(stream):
        if by_order and packet.size and packet.dts is not None:
            stamps.append(packet.dts)
        for frame in decoder.decode(packet):
            yield ((stamps.popleft() if stamps else None) if by_order else frame.pts), frame
