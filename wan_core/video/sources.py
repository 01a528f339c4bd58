"""The media files that may be opened, and how far: formats, codecs and limits, checked before anything
is decoded.

Only regular files, as file objects: a path never reaches FFmpeg, so `http:`, `concat:` or a named
pipe cannot (S3).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from ..errors import DatasetError
from ..files import FileError, open_regular

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

STILL_SUFFIXES = frozenset({".png", ".apng", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".avif"})
"""Some of these move: what a file holds says whether it is a clip."""

MAX_PIXELS = 8192 * 4352
"""per frame; a little more than 8K"""
MAX_FRAMES = 200_000
"""per file; nearly an hour at 60 fps"""
MAX_BYTES = 16 << 30
"""per file"""

_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,mpeg,mpegts,asf,flv"
_CODECS = frozenset(
    [
        "h264",
        "hevc",
        "vp8",
        "vp9",
        "av1",
        "libdav1d",
        "gif",
        "prores",
        "ffv1",
        "mjpeg",
        "png",
        "mpeg4",
        "mpeg1video",
        "mpeg2video",
        "h263",
        "flv",
        "wmv1",
        "wmv2",
        "msmpeg4",
        "qtrle",
        "dnxhd",
        "rawvideo",
    ]
)
_SEES_THROUGH = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""decoders that also read transparency"""
_ATTACHED_PICTURE = 0x400
"""FFmpeg's mark of a picture that belongs to music"""
_RE_ENCODE = "Write it again, for example: ffmpeg -i IN -c:v libx264 -pix_fmt yuv420p OUT.mp4"


class UnreadableError(DatasetError):
    """A file cannot be read; that is all that is wrong."""

    lasting = True
    """the same bytes will be refused again"""


class TooSlowError(UnreadableError):
    """Reading a file took too long, which a busy disk may explain."""

    lasting = False


def shown(path: Path | str) -> str:
    """The file name for a message: short, without control characters (S15)."""
    name = os.path.basename(str(path))
    return (name if name.isprintable() else "".join(c if c.isprintable() else "?" for c in name))[:120]


def refuse(path: Path | str, why: str, fix: str = _RE_ENCODE) -> UnreadableError:
    """An error of one sentence about one file."""
    return UnreadableError(f"{shown(path)} {why}. {fix.rstrip('.')}.")


@contextlib.contextmanager
def open_media(path: Path) -> Generator[BinaryIO]:
    """The file object of a media file; DatasetError unless a regular file of sensible size."""
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
    """Container and first video stream of a clip; decoding and reading errors inside become
    DatasetErrors.
    """
    import av
    import av.error

    with open_media(path) as file:
        try:
            with av.open(file, "r", options=_open_options(), **_open_leniently()) as container:
                yield container, _video_stream(path, container)
        except av.error.ArgumentError as error:  # FFmpeg's answer for a format that is not on the list
            known = "mp4, mov, mkv, webm, avi, gif, mpg, ts, wmv, flv and 3gp are"
            raise refuse(path, f"is of a container format that is not read ({known})") from error
        except av.error.FFmpegError as error:
            reason = error.strerror or type(error).__name__
            raise refuse(path, f"cannot be read as a video ({reason})") from error


def decoder_of(stream: VideoStream) -> VideoCodecContext:
    """Returns the decoder of a stream.

    VP8 and VP9 keep transparency in a second picture, which FFmpeg's own decoders drop.
    """
    context = stream.codec_context
    tags = {name.lower(): value for name, value in stream.metadata.items()}
    if context.name not in _SEES_THROUGH or tags.get("alpha_mode") != "1":
        return context
    from av.codec.context import CodecContext

    decoder = cast("VideoCodecContext", CodecContext.create(_SEES_THROUGH[context.name], "r"))
    decoder.thread_count = context.thread_count
    return decoder


def _open_leniently() -> dict[str, Any]:
    """Titles and comments in unknown encodings are no reason to refuse a clip. PyAV 19 thinks so itself."""
    import av

    return {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}


def _open_options() -> dict[str, str]:
    return {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}


def _video_stream(path: Path, container: InputContainer) -> VideoStream:
    best = container.streams.best("video")  # not the first one: that may be a cover picture
    if best is None:
        raise refuse(path, "holds no video", "Remove it from the folder")
    stream = cast("VideoStream", best)
    if stream.disposition & _ATTACHED_PICTURE:
        raise refuse(path, "holds no video, only a cover picture", "Remove it from the folder")
    context = stream.codec_context  # None where FFmpeg knows no decoder, whatever the type says
    codec = getattr(context, "name", "an unknown codec")
    if codec not in _CODECS:
        raise refuse(path, f"is encoded with {codec}, which is not supported")
    pixels = stream.width * stream.height
    if pixels <= 0:
        raise refuse(path, "states no frame size that makes sense")
    if pixels > MAX_PIXELS:
        raise refuse(path, f"has frames of {stream.width}x{stream.height} pixels", "Scale it down")
    context.thread_type = "AUTO"
    context.thread_count = min(4, os.cpu_count() or 1)
    return stream
