"""Converts the colours of frames to RGB, and refuses HDR and unknown colours."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .sources import refuse

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.reformatter import VideoReformatter

_EXACT = 0x40000 | 0x2000
"""swscale's ACCURATE_RND | FULL_CHR_H_INT; PyAV 17 has no names for them"""
_UNSPECIFIED = 2
_HDR = {16: "PQ (SMPTE 2084: HDR10, Dolby Vision)", 18: "HLG (ARIB STD-B67)"}
"""transfer characteristics (ITU-T H.273) of HDR"""
_CONSTANT_LUMINANCE = {10: "BT.2020 constant luminance", 13: "constant luminance", 14: "ICtCp"}
"""matrix coefficients without a linear conversion to RGB"""
_UNKNOWN = {
    8: "YCgCo",
    11: "SMPTE ST 2085",
    12: "a matrix derived from its primaries",
    15: "IPT-C2",
    16: "YCgCo-Re",
    17: "YCgCo-Ro",
}
"""matrix coefficients unknown to swscale"""
_RESERVED = 3
_FULL_RANGE = 2
_TONE_MAP = (
    "Map it to normal brightness with an ffmpeg that has zscale: ffmpeg -i IN -vf zscale=t=linear:npl=100,"
    "format=gbrpf32le,zscale=p=bt709,tonemap=hable:desat=0,zscale=t=bt709:m=bt709:r=tv,format=yuv420p -c:v libx264 "
    "OUT.mp4"
)
_PLAIN_MATRIX = (
    "Write it with an ordinary one, with an ffmpeg that has zscale: ffmpeg -i IN -vf zscale=m=bt709,format=yuv420p "
    "-c:v libx264 OUT.mp4"
)


def refuse_colours(path: Path, frame: VideoFrame) -> None:
    """Raises DatasetError for HDR, whose pictures would look grey and flat, and for unsupported colour spaces."""
    transfer, matrix = int(getattr(frame, "color_trc", _UNSPECIFIED)), int(frame.colorspace)
    if transfer in _HDR:
        raise refuse(path, f"is HDR, with the brightness curve {_HDR[transfer]}", _TONE_MAP)
    if matrix in _CONSTANT_LUMINANCE:
        raise refuse(path, f"has colours as {_CONSTANT_LUMINANCE[matrix]}, which is not supported", _TONE_MAP)
    if matrix in _UNKNOWN:
        raise refuse(path, f"has colours as {_UNKNOWN[matrix]}, which is not supported", _PLAIN_MATRIX)


def bits_of(frame: VideoFrame) -> int:
    """Returns the bits per colour value: 8, 10, 12 or 16."""
    return max((component.bits for component in frame.format.components), default=8)


def to_rgb(frame: VideoFrame, size: tuple[int, int], *, shrinks: bool) -> NDArray[np.uint8]:
    """Returns (H, W, 3) RGB scaled to `size` (width, height), rounded once, exact to one level."""
    from av.video.reformatter import Interpolation

    # The conversion does not use these tags, but PyAV 17.1 refuses frames with reserved values of them.
    frame.color_trc = frame.color_primaries = _UNSPECIFIED
    scaled = (
        _scaler()
        .reformat(
            frame,
            width=size[0],
            height=size[1],
            format="rgb48le" if _counts_to_one(frame) else "rgb24",
            src_colorspace=source_matrix(frame),
            # Without _EXACT, swscale truncates: at even widths colours are one to three levels too low.
            interpolation=int(Interpolation.AREA if shrinks else Interpolation.LANCZOS) | _EXACT,
            threads=1,
        )
        .to_ndarray()
    )
    if not _counts_to_one(frame):
        return np.asarray(scaled, np.uint8)
    bits = bits_of(frame)
    most = ((1 << bits) - 1) << (16 - bits)
    return np.minimum(np.rint(np.asarray(scaled, np.float32) * (255 / most)), 255).astype(np.uint8)


@lru_cache(maxsize=1)
def _scaler() -> VideoReformatter:
    """Returns the shared scaler. Creating one per frame would take longer than scaling, and start a thread per core."""
    from av.video.reformatter import VideoReformatter

    return VideoReformatter()


def _counts_to_one(frame: VideoFrame) -> bool:
    """Returns whether white is the largest value, such as 1023 in 10 bits. swscale assumes 1020, which makes pictures
    too bright."""
    deep = bits_of(frame) > 8
    return deep and (frame.format.is_rgb or is_full_range(frame) or len(frame.format.components) < 3)


def is_full_range(frame: VideoFrame) -> bool:
    """Returns whether black is 0 and white the largest value, not 16 and 235."""
    return int(frame.color_range) == _FULL_RANGE or frame.format.name.startswith("yuvj")


def opaque(frame: VideoFrame) -> VideoFrame:
    """Returns a transparent frame on white, and other frames unchanged."""
    layout = frame.format
    if not (layout.has_palette or any(component.is_alpha for component in layout.components)):
        return frame
    from av.video.frame import VideoFrame
    from av.video.reformatter import Interpolation

    frame.color_trc = frame.color_primaries = _UNSPECIFIED
    plain = int(Interpolation.LANCZOS) | _EXACT
    rgba = (
        _scaler()
        .reformat(frame, format="rgba", src_colorspace=source_matrix(frame), interpolation=plain, threads=1)
        .to_ndarray()
    )
    if rgba[..., 3].min() == 255:
        return frame
    colour, cover = rgba[..., :3].astype(np.uint16), rgba[..., 3:].astype(np.uint16)
    on_white = (colour * cover + 255 * (255 - cover) + 127) // 255
    return VideoFrame.from_ndarray(on_white.astype(np.uint8), format="rgb24")


def source_matrix(frame: VideoFrame) -> int | None:
    """Returns the matrix if the file states none: as in players, BT.709 from 720 lines on; None for swscale's
    BT.601."""
    from av.video.reformatter import Colorspace

    if frame.format.is_rgb or frame.colorspace not in (_UNSPECIFIED, _RESERVED):
        return None
    if frame.height >= 720:
        return int(Colorspace.ITU709)
    return int(Colorspace.ITU601) if frame.colorspace == _RESERVED else None
