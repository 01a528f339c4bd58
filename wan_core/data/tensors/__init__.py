"""Data that comes as tensors: made elsewhere, or drawn at random. Neither clips nor encoders are needed."""

from __future__ import annotations

from .synthetic import SyntheticConfig, synthetic_set

__all__ = ["SyntheticConfig", "synthetic_set"]
