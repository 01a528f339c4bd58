"""Clips through PyAV: what a file holds, and its frames at another rate and size.

Everything goes by presentation time, never by frame number: variable rates come out right. Frames
are turned as the file says, stretched to square pixels, scaled to cover the wanted size and cropped
around the centre.
"""

from __future__ import annotations

import collections
import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .looks import LOOK_SIZE, look_of
from .messages import ClipInfo
from .sources import MAX_FRAMES, open_clip, refuse

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

__all__ = ["probe_clip", "read_clip"]

_TRUNCATED_S = 0.25
"""A file that ends this much before its header says has lost its end."""
_COARSE_TICK_S = 0.002
"""Containers with finer ticks (Matroska: 1 ms) round times to them, so one tick is forgiven;
coarser ones are exact.
"""


def probe_clip(path: Path) -> ClipInfo:
    """Reads all packets, decodes only until the first frame: milliseconds for a usual clip."""
    with open_clip(path) as (container, stream):
        tick = float(stream.time_base or 0)
        stamps, first, media_end_s = _scan_packets(path, container, stream)
        if first is None:
            raise refuse(path, "holds no frame that can be decoded")
        times = sorted(stamp * tick for stamp, _ in stamps)
        last_s = max(duration for _, duration in stamps[-3:]) * tick
        duration_s = times[-1] - times[0] + _last_gap(times, last_s, stream)
        _check_complete(path, container, max(media_end_s, times[0] + duration_s))
        width, height, rotation = _geometry(first)
        return ClipInfo(
            kind="clip",
            width=width,
            height=height,
            num_frames=len(times),
            fps=len(times) / duration_s,
            duration_s=duration_s,
            variable_rate=_is_variable(times, tick),
            rotation=rotation,
            codec=stream.codec_context.name,
            look=look_of(_small_grey(first)),
        )


def read_clip(
    path: Path, *, fps: float, num_frames: int, width: int, height: int, start_s: float = 0.0
) -> tuple[NDArray[np.uint8], list[float]]:
    """(F, H, W, 3) RGB, and the time of the source frame behind each of them, from the file's first
    frame on.

    Output frame k shows what a player shows at `start_s + k / fps`.
    """
    out = np.empty((num_frames, height, width, 3), np.uint8)
    used: list[float] = []
    with open_clip(path) as (container, stream):
        for index, (time_s, frame) in enumerate(
            _shown_at(path, container, stream, fps=fps, count=num_frames, start_s=start_s)
        ):
            same = bool(used) and used[-1] == time_s
            out[index] = out[index - 1] if same else _fit(frame, width, height)
            used.append(time_s)
    if len(used) < num_frames:
        raise refuse(path, f"ends after {len(used)} of {num_frames} frames at {fps:g} fps")
    return out, used


def _scan_packets(
    path: Path, container: InputContainer, stream: VideoStream
) -> tuple[list[tuple[int, int]], VideoFrame | None, float]:
    """(time, duration) of every video packet in ticks, the first frame, and when the last stream
    ends in seconds.
    """
    stamps: list[tuple[int, int]] = []
    first: VideoFrame | None = None
    media_end_s = 0.0
    for packet in container.demux():
        if packet.is_corrupt:
            raise refuse(path, "is cut off or damaged")
        if packet.pts is not None and packet.time_base:
            end = packet.pts + (packet.duration or 0)
            media_end_s = max(media_end_s, end * float(packet.time_base))
        if packet.stream.index != stream.index:
            continue
        if first is None:
            frames: list[Any] = list(packet.decode())
            first = frames[0] if frames else None
        if packet.size == 0 or packet.is_discard:
            continue
        stamp = packet.pts if packet.pts is not None else packet.dts
        if stamp is None:
            raise refuse(path, "carries no times for its frames")
        stamps.append((stamp, packet.duration or 0))
        if len(stamps) > MAX_FRAMES:
            raise refuse(path, f"has more than {MAX_FRAMES} frames", "Cut it into clips")
    if not stamps:
        raise refuse(path, "holds no frames")
    return stamps, first, media_end_s


def _last_gap(times: list[float], packet_s: float, stream: VideoStream) -> float:
    """How long the last frame is shown, in seconds."""
    if packet_s > 0:
        return packet_s
    if len(times) > 1:
        return (times[-1] - times[0]) / (len(times) - 1)
    return 1 / float(stream.average_rate or 25)


def _is_variable(times: list[float], tick: float) -> bool:
    gaps = [b - a for a, b in itertools.pairwise(times)]
    return bool(gaps) and max(gaps) - min(gaps) > max(0.1 * statistics.median(gaps), 2.1 * tick)


def _check_complete(path: Path, container: InputContainer, end_s: float) -> None:
    stated_s = (container.duration or 0) / 1_000_000
    if end_s < stated_s - _TRUNCATED_S:
        raise refuse(
            path,
            f"is cut off: it ends at {end_s:.2f} s of {stated_s:.2f} s",
            "Copy it again, or write what is left with ffmpeg",
        )


def _shown_at(
    path: Path,
    container: InputContainer,
    stream: VideoStream,
    *,
    fps: float,
    count: int,
    start_s: float,
) -> Iterator[tuple[float, VideoFrame]]:
    """For k = 0 .. count - 1 the frame on screen at `start_s + k / fps`, with its own time; fewer
    if the file ends.
    """
    tick = float(stream.time_base or 0)
    slack = tick if tick <= _COARSE_TICK_S else 1e-6
    origin: float | None = None
    current: tuple[float, VideoFrame] | None = None
    gap = 1 / fps
    done = 0
    for number, (stamp, frame) in enumerate(_decode(container, stream)):
        if frame.is_corrupt:
            raise refuse(path, f"is damaged at frame {number}")
        if stamp is None or number > MAX_FRAMES:
            raise refuse(path, f"carries no usable time at frame {number}")
        origin = stamp * tick if origin is None else origin
        time_s = stamp * tick - origin
        while current is not None and time_s > start_s + done / fps + slack:
            yield current
            done += 1
            if done == count:
                return
        if current is not None:
            gap = max(gap, time_s - current[0])
        current = (time_s, frame)
    while current is not None and done < count and start_s + done / fps < current[0] + gap:
        yield current
        done += 1


def _decode(container: InputContainer, stream: VideoStream) -> Iterator[tuple[int | None, VideoFrame]]:
    """Frames in the order they are shown, each with its time in ticks.

    AVI stores decoding times only, and frames with B-frames come back with each other's. They are
    shown in order and evenly, so the n-th frame shown has the n-th time.
    """
    if container.format.name != "avi":
        for frame in container.decode(stream):
            yield frame.pts, frame
        return
    stamps: collections.deque[int] = collections.deque()
    for packet in container.demux(stream):
        if packet.size and packet.dts is not None:
            stamps.append(packet.dts)
        for frame in packet.decode():
            yield (stamps.popleft() if stamps else None), frame


def _geometry(frame: VideoFrame) -> tuple[int, int, int]:
    """Width and height as shown, and the turn in degrees counter-clockwise (0, 90, 180, 270)."""
    ratio = float(getattr(frame, "sample_aspect_ratio", None) or 1)
    width = max(1, round(frame.width * ratio)) if 0.1 < ratio < 10 else frame.width
    rotation = round(frame.rotation / 90) * 90 % 360
    if rotation % 180:
        return frame.height, width, rotation
    return width, frame.height, rotation


def _fit(frame: VideoFrame, width: int, height: int) -> NDArray[np.uint8]:
    """(H, W, 3) RGB: turned, scaled to cover, cropped around the centre."""
    from av.video.reformatter import Interpolation

    shown_width, shown_height, rotation = _geometry(frame)
    scale = max(width / shown_width, height / shown_height)
    covered = (
        max(width, round(shown_width * scale)),
        max(height, round(shown_height * scale)),
    )
    before_turn = covered[::-1] if rotation % 180 else covered
    rgb = frame.reformat(
        width=before_turn[0],
        height=before_turn[1],
        format="rgb24",
        src_colorspace=_colorspace(frame),
        interpolation=Interpolation.AREA if scale < 1 else Interpolation.LANCZOS,
    ).to_ndarray()
    turned = np.rot90(np.asarray(rgb, np.uint8), rotation // 90)
    top, left = (covered[1] - height) // 2, (covered[0] - width) // 2
    return turned[top : top + height, left : left + width]


def _small_grey(frame: VideoFrame) -> NDArray[np.uint8]:
    """(32, 32) grey levels of the whole picture, turned."""
    from av.video.reformatter import Interpolation

    size = {"width": LOOK_SIZE, "height": LOOK_SIZE}
    grey = frame.reformat(**size, format="gray", interpolation=Interpolation.AREA).to_ndarray()
    return np.rot90(np.asarray(grey, np.uint8), _geometry(frame)[2] // 90)


def _colorspace(frame: VideoFrame) -> int | None:
    """What players assume when the file does not say: BT.709 from 720 lines on (the converter would
    take BT.601).
    """
    from av.video.reformatter import Colorspace

    unspecified = 2
    if frame.colorspace == unspecified and frame.height >= 720:
        return int(Colorspace.ITU709)
    return None
