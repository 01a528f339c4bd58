"""What kind of media file some bytes are, by their first ones. For members of tables, which often have no name."""

from __future__ import annotations

__all__ = ["suffix_of_bytes"]

_AT_START = {
    b"\x89PNG\r\n\x1a\n": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
    b"BM": ".bmp",
    b"\x1aE\xdf\xa3": ".mkv",
}
_RIFF = {b"WEBP": ".webp", b"AVI ": ".avi"}


def suffix_of_bytes(head: bytes) -> str | None:
    """The suffix of a format that is read, or None. 16 bytes are enough; WebM counts as Matroska, which it is."""
    if head[4:8] == b"ftyp":
        return ".mp4"
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12])
    return next((suffix for magic, suffix in _AT_START.items() if head.startswith(magic)), None)
