"""The Wan transformer, its sizes and dtypes, latent spaces, and the protocols for encoders."""

from __future__ import annotations

from .block import Constants
from .compiled import check_compile
from .conditioning import Conditioning, sent
from .keeping import POLICIES, Policy
from .kernels import ATTENTIONS, check_attention, check_attention_name, sdpa_choice
from .latents import WAN21_LATENTS, WAN22_LATENTS, LatentSpace
from .names import ACTIVATIONS
from .shape import BLOCK_LISTS, Numerics, WanShape, block_of
from .transformer import WanTransformer, model_without_values

__all__ = [
    "ACTIVATIONS",
    "ATTENTIONS",
    "BLOCK_LISTS",
    "POLICIES",
    "WAN21_LATENTS",
    "WAN22_LATENTS",
    "Conditioning",
    "Constants",
    "LatentSpace",
    "Numerics",
    "Policy",
    "WanShape",
    "WanTransformer",
    "block_of",
    "check_attention",
    "check_attention_name",
    "check_compile",
    "model_without_values",
    "sdpa_choice",
    "sent",
]
