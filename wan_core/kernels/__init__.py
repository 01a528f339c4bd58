"""The arithmetic inside a layer: attention backends, norms, rotation and linears, plain and fused into one kernel.

These are functions of tensors; `model` calls them.
"""

from __future__ import annotations

from .backends import (
    ATTENTIONS,
    LONG_TOKENS,
    PREVIEW_ATTENTIONS,
    Attention,
    attention_kernel,
    check_attention,
    check_attention_name,
    check_preview_attention,
    long_attention,
    preview_kernel,
    sdpa_choice,
)
from .backward_only import no_values, unread, unread_product
from .fused import fused_rms_rotate, rotation_fuses
from .fusing import Fused, Trial, later_remarks, static_width, try_on
from .held import HeldValues, made_together, values_held
from .modulate import (
    cast_linear,
    gated_add,
    layer_norm,
    modulated_with,
    normed_with,
    rms_norm,
    shift_and_scale,
    sums_within,
)
from .recompute import applied, made_once, remade, storage_number, without_autocast
from .ring import RingSeat, check_ring
from .rope import Span, rope_of, rotate
from .walks import having, modules_changed, parameters_below

__all__ = [
    "ATTENTIONS",
    "LONG_TOKENS",
    "PREVIEW_ATTENTIONS",
    "Attention",
    "Fused",
    "HeldValues",
    "RingSeat",
    "Span",
    "Trial",
    "applied",
    "attention_kernel",
    "cast_linear",
    "check_attention",
    "check_attention_name",
    "check_preview_attention",
    "check_ring",
    "fused_rms_rotate",
    "gated_add",
    "having",
    "later_remarks",
    "layer_norm",
    "long_attention",
    "made_once",
    "made_together",
    "modulated_with",
    "modules_changed",
    "no_values",
    "normed_with",
    "parameters_below",
    "preview_kernel",
    "remade",
    "rms_norm",
    "rope_of",
    "rotate",
    "rotation_fuses",
    "sdpa_choice",
    "shift_and_scale",
    "static_width",
    "storage_number",
    "sums_within",
    "try_on",
    "unread",
    "unread_product",
    "values_held",
    "without_autocast",
]
