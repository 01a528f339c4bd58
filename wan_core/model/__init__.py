"""The Wan transformer, its sizes and dtypes, latent spaces, and the protocols for encoders."""

from .block import Constants, VaceBlock, WanBlock
from .conditioning import Conditioning, sent
from .kernels import ATTENTIONS, check_attention, check_attention_name, sdpa_choice
from .latents import WAN21_LATENTS, WAN22_LATENTS, ImageEncoder, LatentCodec, LatentSpace, TextEncoder
from .shape import Numerics, WanShape
from .transformer import Carrier, WanTransformer

__all__ = [
    "ATTENTIONS",
    "WAN21_LATENTS",
    "WAN22_LATENTS",
    "Carrier",
    "Conditioning",
    "Constants",
    "ImageEncoder",
    "LatentCodec",
    "LatentSpace",
    "Numerics",
    "TextEncoder",
    "VaceBlock",
    "WanBlock",
    "WanShape",
    "WanTransformer",
    "check_attention",
    "check_attention_name",
    "sdpa_choice",
    "sent",
]
