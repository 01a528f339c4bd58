"""Opens media files within limits of format, codec and size, checked before decoding.

FFmpeg gets file objects of regular files instead of paths, so it cannot open `http:`, `concat:` or named pipes (S3).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from ..errors import DatasetError, DependencyError
from ..files import FileError, open_regular
from ..packages import pip_line, version_of

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

STILL_SUFFIXES = frozenset({".png", ".apng", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".avif"})
"""suffixes of stills; the content of a file shows whether it is an animation"""
MAX_PIXELS = 8192 * 4352
"""pixels of a frame; slightly above 8K"""
MAX_FRAMES = 200_000
"""largest number of frames of a file: nearly an hour at 60 fps"""
MAX_BYTES = 16 << 30
"""bytes of a file"""

_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,mpeg,mpegts,asf,flv"
_CODECS = frozenset({
    "h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "gif", "prores", "ffv1", "mjpeg", "png", "mpeg4", "mpeg1video",
    "mpeg2video", "h263", "flv", "wmv1", "wmv2", "msmpeg4", "qtrle", "dnxhd", "rawvideo",
})  # fmt: skip
_WITH_ALPHA = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""codec -> decoder that reads transparency"""
_ATTACHED_PICTURE = 0x400
"""flag of a cover picture in FFmpeg"""
_RE_ENCODE = "Write it again, for example: ffmpeg -i IN -c:v libx264 -pix_fmt yuv420p OUT.mp4"


class UnreadableError(DatasetError):
    """A file cannot be read, because of its content."""

    lasting = True
    """whether the refusal is permanent for the same bytes"""


class TooSlowError(UnreadableError):
    """Reading took too long, perhaps because the disk was busy."""

    lasting = False


def shown(path: Path | str) -> str:
    """Returns the file name for a message: short and printable (S15)."""
    name = os.path.basename(str(path))
    return (name if name.isprintable() else "".join(c if c.isprintable() else "?" for c in name))[:120]


def refuse(path: Path | str, why: str, fix: str = _RE_ENCODE) -> UnreadableError:
    """Returns a refusal of one file."""
    return UnreadableError(f"{shown(path)} {why}. {fix.rstrip('.')}.")


_OLDEST_PYAV, _NAMED = (17, 1), "17.1"
"""Older versions lack frame durations or HDR tags, or have colour errors of up to 4 levels (measured on 14.2 to
19.0)."""


def require_pyav() -> None:
    """DependencyError with the pip line unless a supported PyAV is installed."""
    version = version_of("av")
    if not version:
        raise DependencyError("Reading clips needs the package av (PyAV). Run: {command}", command=_line())
    if problem := outdated(version):
        raise DependencyError(problem)


def outdated(version: str) -> str:
    """Returns the refusal of a PyAV version; empty if it is supported."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if found >= _OLDEST_PYAV:
        return ""
    return f"PyAV {version[:20]} does not read clips exactly; {_NAMED} or newer does. Run: {_line()}"


def _line() -> str:
    return pip_line(f"av>={_NAMED}")


@contextlib.contextmanager
def open_media(path: Path) -> Generator[BinaryIO]:
    """Opens a media file; DatasetError unless it is a regular file of acceptable size."""
    try:
        file = open_regular(path)
    except FileError as error:
        raise DatasetError(str(error)) from error
    with file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise refuse(path, "is empty", "Copy it again")
        if size > MAX_BYTES:
            raise refuse(path, f"has {size / 2**30:.1f} GiB; the limit is 16", "Cut it into clips")
        yield file


@contextlib.contextmanager
def open_clip(path: Path) -> Generator[tuple[InputContainer, VideoStream]]:
    """Yields container and first video stream; decoding errors inside become DatasetErrors."""
    import av
    import av.error

    options = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}
    # PyAV before version 19 refuses titles in unknown encodings.
    lenient: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}
    with open_media(path) as file:
        try:
            with av.open(file, "r", options=options, **lenient) as container:
                yield container, _video_stream(path, container)
        except av.error.ArgumentError as error:  # FFmpeg raises this error for formats outside of the whitelist
            known = "mp4, mov, mkv, webm, avi, gif, mpg, ts, wmv, flv and 3gp are"
            raise refuse(path, f"is of a container format that is not read ({known})") from error
        except av.error.FFmpegError as error:
            reason = error.strerror or type(error).__name__
            raise refuse(path, f"cannot be read as a video ({reason})") from error


def decoder_of(stream: VideoStream) -> VideoCodecContext:
    """Returns the decoder of a stream."""
    context = stream.codec_context
    tags = {name.lower(): value for name, value in stream.metadata.items()}
    if context.name not in _WITH_ALPHA or tags.get("alpha_mode") != "1":
        return context
    from av.codec.context import CodecContext

    # VP8 and VP9 store transparency in a second picture, which FFmpeg's own decoders drop.

    decoder = cast("VideoCodecContext", CodecContext.create(_WITH_ALPHA[context.name], "r"))
    decoder.thread_count = context.thread_count
    return decoder


def _video_stream(path: Path, container: InputContainer) -> VideoStream:
    best = container.streams.best("video")  # the first stream may be a cover picture
    if best is None:
        raise refuse(path, "holds no video", "Remove it from the folder")
    stream = cast("VideoStream", best)
    if stream.disposition & _ATTACHED_PICTURE:
        raise refuse(path, "holds no video, only a cover picture", "Remove it from the folder")
    context = stream.codec_context  # None without a decoder, contrary to PyAV's types
    codec = getattr(context, "name", "an unknown codec")
    if codec not in _CODECS:
        raise refuse(path, f"is encoded with {codec}, which is not supported")
    pixels = stream.width * stream.height
    if pixels <= 0:
        raise refuse(path, "states an impossible frame size")
    if pixels > MAX_PIXELS:
        raise refuse(path, f"has frames of {stream.width}x{stream.height} pixels", "Scale it down")
    context.thread_type = "AUTO"
    context.thread_count = min(4, os.cpu_count() or 1)
    return stream
