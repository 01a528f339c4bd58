"""Which dtype each part of the transformer computes in. Data only; presets and reasons live in the precision room."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Numerics"]


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Explicit dtypes of a forward pass. Nothing in the model reads ambient autocast state."""

    compute: torch.dtype = torch.float32
    """linears and attention"""
    residual: torch.dtype = torch.float32
    """the token stream between blocks; the largest single source of bf16 error"""
    norm: torch.dtype = torch.float32
    """the three norms of a block and the head's, with their scale and shift"""
    qk_norm: torch.dtype = torch.float32
    """RMS norm of queries and keys"""
    time: torch.dtype = torch.float32
    """time embedding and its projection"""
    modulation: torch.dtype = torch.float32
    """modulation tables, their sum with the time projection, and gates"""
    head: torch.dtype = torch.float32
    """the output projection"""
    rope: torch.dtype = torch.float32
    """the rotation product, and what the table is rounded to before it"""
    rope_table: torch.dtype = torch.float64
    """the angles of the rotation and their cosine and sine"""
    attention: torch.dtype | None = None
    """softmax(Q K) V of both attentions; None is the compute dtype"""
    adapter: torch.dtype | None = None
    """LoRA matmuls; None follows the layer's input. LoRA weights themselves are always float32"""
