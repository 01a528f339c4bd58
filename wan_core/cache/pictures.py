"""Start images of previews: lossless PNG files in the cache folder, named by content."""

from __future__ import annotations

import hashlib
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import CacheError
from ..files import FileError, atomic_write_bytes, open_regular, shown_folder

_NAME = re.compile(r"^[0-9a-f]{64}$")


def write_picture(cache_root: Path, pixels: Tensor) -> str:
    """Write a picture (H, W, 3) in [0, 1], rounded to 8 bits, unless the file exists; returns the file name."""
    from PIL import Image

    bytes_ = (pixels.detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8).contiguous().numpy()
    name = _name_of(bytes_)
    try:
        read_picture(cache_root, name)
    except CacheError:
        buffer = BytesIO()
        Image.fromarray(bytes_).save(buffer, "PNG")
        try:
            atomic_write_bytes(picture_path(cache_root, name), buffer.getvalue(), cache_root)
        except OSError as error:
            raise CacheError(
                f"The cache folder {shown_folder(cache_root)} cannot be written: {error.strerror}. Free disk space."
            ) from error
    return name


def read_picture(cache_root: Path, name: str) -> Tensor:
    """Returns (H, W, 3) float32 in [0, 1]; CacheError if missing or damaged."""
    from PIL import Image

    try:
        with open_regular(picture_path(cache_root, name)) as file:
            data = BytesIO(file.read())
        with Image.open(data, formats=("PNG",)) as picture:
            bytes_ = np.array(picture.convert("RGB"), np.uint8)
    except (FileError, OSError, ValueError, SyntaxError) as error:  # PIL raises SyntaxError for a damaged chunk.
        raise CacheError("A start picture of the previews is missing. Queue Wan Preview Settings again.") from error
    if _name_of(bytes_) != name:
        raise CacheError("A start picture of the previews was changed. Queue Wan Preview Settings again.")
    return torch.from_numpy(bytes_).float() / 255  # pyright: ignore[reportUnknownMemberType]


def picture_path(cache_root: Path, name: str) -> Path:
    """Returns the file of a picture."""
    if not _NAME.match(name):
        raise CacheError(f"{name[:100]!r} is not the name of a picture. Queue Wan Preview Settings again.")
    return cache_root / "pictures" / name[:2] / f"{name}.png"


def _name_of(pixels: NDArray[np.uint8]) -> str:
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
