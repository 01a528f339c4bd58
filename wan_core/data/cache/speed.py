"""How fast this machine encoded last, so that the next report can say how long it will take."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any, cast

from ...files import FileError, atomic_write_json, read_json

__all__ = ["EncodingSpeed"]

_LEAST_MEGAPIXELS = 1.0
"""less says more about loading the VAE than about encoding"""


class EncodingSpeed:
    """A JSON file of latent space -> seconds per megapixel. It only informs: damaged or unwritable, it is forgotten."""

    def __init__(self, cache_root: Path) -> None:
        self._path = cache_root / "speed.json"

    def seconds_per_megapixel(self, space: str) -> float | None:
        """Of the last encoding into that latent space, decoding included; None before the first."""
        value = self._read().get(space)
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            return None
        return float(value)

    def remember(self, space: str, seconds: float, megapixels: float) -> None:
        """Keep what an encoding of `megapixels` of frames took."""
        if megapixels < _LEAST_MEGAPIXELS or seconds <= 0:
            return
        with contextlib.suppress(OSError, FileError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_json(self._path, {**self._read(), space: seconds / megapixels})

    def _read(self) -> dict[str, Any]:
        try:
            data: Any = read_json(self._path) if self._path.is_file() else {}
        except (FileError, OSError, ValueError):
            return {}
        return cast("dict[str, Any]", data) if isinstance(data, dict) else {}
