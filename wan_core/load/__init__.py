"""The model plan, the content of its file, and the model that is built from both."""

from __future__ import annotations

from .build import (
    attention_is_plain,
    attention_kernels,
    check_plan_devices,
    import_libraries,
    materialize,
)
from .model_plan import ModelPlan, WanFile, bytes_beside, inspect_model, inspect_pair, resolved, resolved_elsewhere
from .storage import (
    BaseWords,
    PackedForms,
    base_words,
    offloaded_bytes,
    pack_without_values,
    packed_dtypes,
    packed_forms,
    quantized_anew,
    stays_stored,
    unpacked_kinds,
)
