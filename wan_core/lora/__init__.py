"""LoRA targets, adapters in a model, their weights as plain tensors, and LoRA files of every trainer."""

from __future__ import annotations

from .acting import Acting, acting_parts
from .config import KINDS, PAIRS, PEFT, STARTS_IN_THE_WEIGHT, TARGET_PRESETS, LoraConfig
from .describe import describe_lora, is_lora
from .frozen import act_on, check_frozen
from .frozen_config import FrozenLora
from .inject import (
    LoraWeights,
    adapted_modules,
    adapter_parameters,
    adapter_tensors,
    adapters_of,
    check_targets,
    count_values,
    exported,
    inject_lora,
    limit_norms,
    parts_in_file,
    set_adapter_dtype,
    set_strength,
    without_adapters,
)
from .reading import read_frozen, read_start
from .source import LoraSource, holds_both_experts, read_lora
from .start import check_start, start_from
from .tuner_memory import tuner_bytes
from .tuners import check_tuner
