"""The sizes of a Wan transformer: everything its modules need to be built, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config

__all__ = ["WanShape"]


@dataclass(frozen=True, kw_only=True)
class WanShape(Config):
    """Sizes of one transformer; a size of 0 means that the variant lacks the part."""

    dim: int
    ffn_dim: int
    num_heads: int
    num_layers: int
    in_channels: int = 16
    """of the patch embedding: the latent's and those of `Conditioning.channels`"""
    out_channels: int = 16
    text_dim: int = 4096
    freq_dim: int = 256
    eps: float = 1e-6
