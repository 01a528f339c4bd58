"""The Wan transformer, its sizes and dtypes, latent spaces, and the protocols for encoders."""

from __future__ import annotations

from .block import Constants
from .compiled import PlainMode, check_compile, untraced
from .conditioning import CONDITION_KINDS, Conditioning, ConditionKind, condition_kind, condition_named, sent
from .fusing import later_remarks
from .keeping import POLICIES, Policy
from .kernels import (
    ATTENTIONS,
    LONG_TOKENS,
    PREVIEW_ATTENTIONS,
    check_attention,
    check_attention_name,
    check_preview_attention,
    long_attention,
    sdpa_choice,
)
from .latents import LATENT_SPACES, WAN21_LATENTS, WAN22_LATENTS, LatentSpace
from .names import ACTIVATIONS
from .routing import Passage, Route, draw_passages, placed_routes, read_routes, tokens_by_layer
from .scopes import scope
from .shape import Numerics, WanShape, block_of
from .stages import CHUNK_TOKENS
from .texts import TEXT_LENGTH, TEXT_STEP, lengthened
from .transformer import WanTransformer, model_without_values, models_of, shared_out

__all__ = [
    "ACTIVATIONS",
    "ATTENTIONS",
    "CHUNK_TOKENS",
    "CONDITION_KINDS",
    "LATENT_SPACES",
    "LONG_TOKENS",
    "POLICIES",
    "PREVIEW_ATTENTIONS",
    "TEXT_LENGTH",
    "TEXT_STEP",
    "WAN21_LATENTS",
    "WAN22_LATENTS",
    "ConditionKind",
    "Conditioning",
    "Constants",
    "LatentSpace",
    "Numerics",
    "Passage",
    "PlainMode",
    "Policy",
    "Route",
    "WanShape",
    "WanTransformer",
    "block_of",
    "check_attention",
    "check_attention_name",
    "check_compile",
    "check_preview_attention",
    "condition_kind",
    "condition_named",
    "draw_passages",
    "later_remarks",
    "lengthened",
    "long_attention",
    "model_without_values",
    "models_of",
    "placed_routes",
    "read_routes",
    "scope",
    "sdpa_choice",
    "sent",
    "shared_out",
    "tokens_by_layer",
    "untraced",
]
