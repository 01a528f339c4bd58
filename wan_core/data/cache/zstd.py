"""zstd for payloads of one dtype: bytes of equal significance side by side, then compressed.

The exponents of latents repeat, their mantissas are noise: so sorted, a bfloat16 latent takes 0.69 of its size, 0.78
when compressed as it lies (level 1; higher levels gain nothing).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ...errors import DependencyError
from ...packages import pip_line

__all__ = ["compress", "decompress"]

_LEVEL = 1


def compress(data: bytes | memoryview, itemsize: int) -> bytes:
    """`data`, values of `itemsize` bytes, as one zstd frame that states its size."""
    planes = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(-1, itemsize).T).tobytes()
    zstd = _zstd()
    if _BUILT_IN:
        return zstd.compress(planes, _LEVEL)
    return zstd.ZstdCompressor(level=_LEVEL).compress(planes)


def decompress(frame: bytes | memoryview, size: int, itemsize: int) -> bytearray:
    """The `size` bytes that `compress` was given; ValueError when the frame is another or damaged.

    The frame's own statement is compared first, so that no damaged one asks for more memory than an entry may take.
    """
    zstd, data = _zstd(), bytes(frame)
    try:
        if _BUILT_IN:
            stated = zstd.get_frame_info(data).decompressed_size
            planes = zstd.decompress(data) if stated == size else b""
        else:
            stated = zstd.get_frame_parameters(data).content_size
            planes = zstd.ZstdDecompressor().decompress(data) if stated == size else b""
    except zstd.ZstdError as error:
        raise ValueError("its compressed part is damaged") from error
    if len(planes) != size or size % itemsize:
        raise ValueError("its compressed part has another size")
    return bytearray(np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(itemsize, -1).T).data.cast("B"))


_BUILT_IN = sys.version_info >= (3, 14)


def _zstd() -> Any:
    try:
        if _BUILT_IN:
            from compression import zstd  # pyright: ignore

            return zstd
        import zstandard

        return zstandard
    except ImportError as error:
        raise DependencyError(
            f"Compressed cache entries need the package zstandard. Run: {pip_line('zstandard')}, or set the "
            "compression of the cache to none."
        ) from error
