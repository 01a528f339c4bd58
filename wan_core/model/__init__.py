"""The Wan transformer, its sizes and dtypes, latent spaces, and the protocols for encoders."""

from __future__ import annotations

from .block import Constants, WanBlock
from .checkpointing import Checkpointing
from .conditioning import Conditioning, sent
from .kernels import ATTENTIONS, check_attention, check_attention_name, sdpa_choice
from .latents import WAN21_LATENTS, WAN22_LATENTS, LatentSpace
from .shape import BLOCK_LISTS, Numerics, WanShape, block_of
from .transformer import WanTransformer

__all__ = [
    "ATTENTIONS",
    "BLOCK_LISTS",
    "WAN21_LATENTS",
    "WAN22_LATENTS",
    "Checkpointing",
    "Conditioning",
    "Constants",
    "LatentSpace",
    "Numerics",
    "WanBlock",
    "WanShape",
    "WanTransformer",
    "block_of",
    "check_attention",
    "check_attention_name",
    "sdpa_choice",
    "sent",
]
