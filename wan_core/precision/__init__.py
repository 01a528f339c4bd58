"""Storage and compute dtypes of each part of a model, and quantization of the frozen base."""

from __future__ import annotations

from .first_run import fused_on_cards
from .linear import QuantizedLinear, multiply_in, product_without_bias, row_squares, values_of
from .matmul import check_matmul, matmul_bytes, rounded_once
from .policy import PRESETS, SWITCHES, PrecisionPolicy, dtype_name, float32_products, switch_values, torch_dtype
from .quantize import (
    QuantizeConfig,
    QuantizedBy,
    check_trainable_untouched,
    quantize_block,
    quantized_by,
)
