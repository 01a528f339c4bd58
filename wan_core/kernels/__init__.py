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
