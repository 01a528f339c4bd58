"""Reads the facts of clips, and their frames at another rate and size.

Frames are selected by presentation time, not by number, so that clips with a variable rate keep their speed. Frames are
rotated as the file states, stretched to square pixels, scaled to cover the requested size, and cropped.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .animations import PICTURE_TICK_S, Animation, Moving, open_moving
from .clip_measures import look_of
from .colours import bits_of, refuse_colours
from .frames import TimedFrame
from .messages import CENTRED, ClipInfo, Framing
from .picture import fit, orientation_of, pixel_ratio, shown_size, small_grey
from .sources import MAX_FRAMES, decoder_of, open_clip, open_media, refuse

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_TRUNCATED_S = 0.25
"""a file counts as truncated if it ends this many seconds before its stated end"""
_GIF_END = b";"
_STREAMS = ("mpeg", "mpegts", "flv", "asf")
"""streaming containers, of which two concatenated files are a valid file"""
_COARSE_TICK_S = 0.002
"""tick in seconds up to which times are rounded (Matroska: 1 ms) and may be off by one tick; coarser times are exact"""


def probe_animation(found: Animation) -> ClipInfo:
    """Returns the facts of an animation; decodes only the first frame."""
    durations, (width, height) = found.durations_s, found.size
    times = [0.0, *itertools.accumulate(durations[:-1])]
    first = next(found.frames())
    return ClipInfo(
        kind="clip",
        width=width,
        height=height,
        num_frames=len(durations),
        fps=len(durations) / sum(durations),
        duration_s=sum(durations),
        variable_rate=_is_variable(times, PICTURE_TICK_S),
        codec=found.codec,
        look=look_of(small_grey(first.frame)),
    )


def probe_clip(path: Path) -> ClipInfo:
    """Returns the facts of a clip; reads all packets and decodes the first frame, in milliseconds for a typical
    clip."""
    with open_clip(path) as (container, stream):
        tick = float(stream.time_base or 0)
        stamps, first, media_end_s = _scan_packets(path, container, stream)
        if first is None:
            raise refuse(path, "holds no frame that can be decoded")
        refuse_colours(path, first)
        times = sorted(stamp * tick for stamp, _ in stamps)
        last_s = max(duration for _, duration in stamps[-3:]) * tick
        duration_s = times[-1] - times[0] + _last_gap(times, last_s, stream)
        if duration_s <= 0:
            raise refuse(path, "gives all its frames the same timestamp")
        _check_complete(path, container, max(media_end_s, times[0] + duration_s))
        ratio = pixel_ratio(stream)
        width, height = shown_size(first, ratio)
        orientation = orientation_of(first)
        return ClipInfo(
            kind="clip",
            width=width,
            height=height,
            num_frames=len(times),
            fps=len(times) / duration_s,
            duration_s=duration_s,
            variable_rate=_is_variable(times, tick),
            rotation=90 * orientation.quarters,
            mirrored=orientation.mirrored,
            codec=stream.codec_context.name,
            bits=bits_of(first),
            interlaced=first.interlaced_frame,
            pixel_ratio=ratio,
            look=look_of(small_grey(first)),
        )


def read_clip(
    path: Path,
    *,
    fps: float,
    num_frames: int,
    width: int,
    height: int,
    start_s: float = 0.0,
    framing: Framing = CENTRED,
    held: int = 0,
) -> tuple[NDArray[np.uint8], list[float]]:
    """Returns (F, H, W, 3) RGB, and the time of each source frame from the first one.

    Frame k is the frame that a player shows at `start_s + k / fps`. Up to `held` missing frames at the end repeat the
    last one.
    """
    out = np.empty((num_frames, height, width, 3), np.uint8)
    used: list[float] = []
    with open_moving(path) as moving:
        for index, (time_s, _, frame) in enumerate(_shown_at(moving, fps=fps, count=num_frames, start_s=start_s)):
            if not used:
                refuse_colours(path, frame)
            same = bool(used) and used[-1] == time_s
            out[index] = out[index - 1] if same else fit(frame, moving.pixel_ratio, (width, height), framing)
            used.append(time_s)
    if used and num_frames - len(used) <= held:
        out[len(used) :] = out[len(used) - 1]
        used += [used[-1]] * (num_frames - len(used))
    if len(used) < num_frames:
        raise refuse(path, f"ends after {len(used)} of {num_frames} frames at {fps:g} fps")
    return out, used


def _scan_packets(
    path: Path, container: InputContainer, stream: VideoStream
) -> tuple[list[tuple[int, int]], VideoFrame | None, float]:
    """Returns (time, duration) of the video packets in ticks, the first frame, and the end of all streams in
    seconds."""
    stamps: list[tuple[int, int]] = []
    first: VideoFrame | None = None
    media_end_s = 0.0
    started, clock = False, -math.inf
    decoder = decoder_of(stream)
    for packet in container.demux():
        if packet.is_corrupt:
            raise refuse(path, "is cut off or damaged")
        if packet.pts is not None and packet.time_base:
            end = packet.pts + (packet.duration or 0)
            media_end_s = max(media_end_s, end * float(packet.time_base))
        if packet.stream.index != stream.index:
            continue
        if not started and packet.size and not packet.is_keyframe:
            raise refuse(path, "does not begin with a key frame, so its first pictures are lost")
        started = started or bool(packet.size)
        if first is None:
            first = next(iter(decoder.decode(packet)), None)
        if packet.size == 0 or packet.is_discard:
            continue
        stamp = packet.pts if packet.pts is not None else packet.dts  # AVI files have decoding times only
        if stamp is None:
            raise refuse(path, "has no times for its frames")
        if packet.dts is not None and container.format.name in _STREAMS:
            if packet.dts < clock:
                raise refuse(path, "has times that jump back, as where two recordings were joined")
            clock = packet.dts
        stamps.append((stamp, packet.duration or 0))
        if len(stamps) > MAX_FRAMES:
            raise refuse(path, f"has more than {MAX_FRAMES} frames", "Cut it into clips")
    if not stamps:
        raise refuse(path, "holds no frames")
    return stamps, first, media_end_s


def _last_gap(times: list[float], packet_s: float, stream: VideoStream) -> float:
    """Returns the duration of the last frame in seconds."""
    if packet_s > 0:
        return packet_s
    if len(times) > 1:
        return (times[-1] - times[0]) / (len(times) - 1)
    return 1 / float(stream.average_rate or 25)


def _is_variable(times: list[float], tick: float) -> bool:
    gaps = [b - a for a, b in itertools.pairwise(times)]
    return bool(gaps) and max(gaps) - min(gaps) > max(0.1 * statistics.median(gaps), 2.1 * tick)


def _check_complete(path: Path, container: InputContainer, end_s: float) -> None:
    if container.format.name == "gif":  # an end marker without a duration
        with open_media(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 1024))
            if not file.read().rstrip(b"\0").endswith(_GIF_END):
                raise refuse(path, "is cut off: its end marker is missing", "Copy it again")
    stated_s = (container.duration or 0) / 1_000_000
    if end_s < stated_s - _TRUNCATED_S:
        raise refuse(
            path,
            f"is cut off: it ends at {end_s:.2f} s of {stated_s:.2f} s",
            "Copy it again, or write what is left with ffmpeg",
        )


def _shown_at(moving: Moving, *, fps: float, count: int, start_s: float) -> Iterator[TimedFrame]:
    """Yields the frame that is shown at `start_s + k / fps`, for k below `count`; fewer if the file ends."""
    slack = moving.tick_s if moving.tick_s <= _COARSE_TICK_S else 1e-6
    current: TimedFrame | None = None
    gap = max(1 / fps, 1 / (moving.rate or fps))
    done = 0
    for found in moving.frames(start_s):
        while current is not None and found.time_s > start_s + done / fps + slack:
            yield current
            done += 1
            if done == count:
                return
        if current is not None:
            gap = max(gap, found.time_s - current.time_s)
        gap = max(gap, found.duration_s)
        current = found
    # A file need not state the duration of its last frame, so the longest gap between frames is used.
    while current is not None and done < count and start_s + done / fps < current.time_s + gap:
        yield current
        done += 1
