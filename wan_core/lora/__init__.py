"""Choosing targets, injecting adapters with PEFT, the adapter weights as plain tensors, LoRA files of every trainer."""

from .config import DEFAULT_TARGETS, LoraConfig
from .describe import describe_lora, is_lora
from .inject import (
    adapter_parameters,
    check_peft,
    check_targets,
    inject_lora,
    lora_layers,
    set_adapter_dtype,
    set_strength,
)
from .source import LoraSource, read_lora
from .start import check_start, start_from
from .weights import LoraWeights

__all__ = [
    "DEFAULT_TARGETS",
    "LoraConfig",
    "LoraSource",
    "LoraWeights",
    "adapter_parameters",
    "check_peft",
    "check_start",
    "check_targets",
    "describe_lora",
    "inject_lora",
    "is_lora",
    "lora_layers",
    "read_lora",
    "set_adapter_dtype",
    "set_strength",
    "start_from",
]
