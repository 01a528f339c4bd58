"""The Wan transformer, the table of its variants, checkpoint headers and key maps, and the protocols for encoders."""

from .block import Constants, VaceBlock, WanBlock
from .conditioning import Conditioning
from .header import CheckpointHeader, TensorInfo, read_header
from .kernels import ATTENTIONS, check_attention, check_attention_name
from .keys import canonical_names, to_original
from .latents import WAN21_LATENTS, WAN22_LATENTS, LatentCodec, LatentSpace, TextEncoder
from .numerics import Numerics
from .shape import WanShape
from .transformer import Carrier, WanTransformer
from .variant import WanVariant, detect_variant

__all__ = [
    "ATTENTIONS",
    "WAN21_LATENTS",
    "WAN22_LATENTS",
    "Carrier",
    "CheckpointHeader",
    "Conditioning",
    "Constants",
    "LatentCodec",
    "LatentSpace",
    "Numerics",
    "TensorInfo",
    "TextEncoder",
    "VaceBlock",
    "WanBlock",
    "WanShape",
    "WanTransformer",
    "WanVariant",
    "canonical_names",
    "check_attention",
    "check_attention_name",
    "detect_variant",
    "read_header",
    "to_original",
]
