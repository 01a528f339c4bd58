"""Data that comes as tensors: made elsewhere, or drawn at random. Neither clips nor encoders are needed."""

from __future__ import annotations

from .pixels import PixelClip, match_captions, scan_pixels
from .synthetic import SyntheticConfig, synthetic_set

__all__ = ["PixelClip", "SyntheticConfig", "match_captions", "scan_pixels", "synthetic_set"]
