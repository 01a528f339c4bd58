"""How a frame's numbers become colours: which matrix, and which brightness curves are refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .sources import refuse

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.reformatter import Interpolation

__all__ = ["bits_of", "refuse_hdr", "scaling", "source_matrix"]

_UNSPECIFIED = 2
_HDR = {16: "PQ (SMPTE 2084: HDR10, Dolby Vision)", 18: "HLG (ARIB STD-B67)"}
"""transfer characteristics (ITU-T H.273) that mean light in the scene or in nits, not the values screens expect"""
_CONSTANT_LUMINANCE = {10: "BT.2020 constant luminance", 14: "ICtCp"}
"""matrix coefficients no linear conversion to RGB exists for"""
_TONE_MAP = (
    "Map it to normal brightness with an ffmpeg that has zscale: ffmpeg -i IN -vf zscale=t=linear:npl=100,"
    "format=gbrpf32le,zscale=p=bt709,tonemap=hable:desat=0,zscale=t=bt709:m=bt709:r=tv,format=yuv420p -c:v libx264 "
    "OUT.mp4"
)


def refuse_hdr(path: Path, frame: VideoFrame) -> None:
    """DatasetError for high dynamic range: read as it is, it trains as grey, flat pictures."""
    transfer, matrix = int(getattr(frame, "color_trc", _UNSPECIFIED)), int(frame.colorspace)
    if transfer in _HDR:
        raise refuse(path, f"is HDR, with the brightness curve {_HDR[transfer]}", _TONE_MAP)
    if matrix in _CONSTANT_LUMINANCE:
        raise refuse(path, f"has colours as {_CONSTANT_LUMINANCE[matrix]}, which is not supported", _TONE_MAP)


def bits_of(frame: VideoFrame) -> int:
    """Of one colour value: 8, 10, 12 or 16."""
    return max((component.bits for component in frame.format.components), default=8)


def scaling(frame: VideoFrame, shrinks: bool) -> Interpolation:
    """How swscale scales and converts. Deep colour gets its exact arithmetic: with the fast one, which 8-bit clips have
    always had here, 10-bit white comes out as 253.
    """
    from av.video.reformatter import Interpolation

    plain = Interpolation.AREA if shrinks else Interpolation.LANCZOS
    if bits_of(frame) <= 8 or not hasattr(Interpolation, "ACCURATE_RND"):  # PyAV before 17 names no such flags
        return plain
    return plain | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT


def source_matrix(frame: VideoFrame) -> int | None:
    """What players assume when the file does not say: BT.709 from 720 lines on (the converter would take BT.601)."""
    from av.video.reformatter import Colorspace

    if frame.colorspace == _UNSPECIFIED and frame.height >= 720:
        return int(Colorspace.ITU709)
    return None
