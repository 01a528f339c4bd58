"""Choosing targets, injecting adapters with PEFT, and the adapter weights as plain tensors."""

from .config import DEFAULT_TARGETS, LoraConfig
from .inject import adapter_parameters, check_peft, inject_lora, lora_layers, set_adapter_dtype, set_strength
from .weights import LoraWeights, read_lora

__all__ = [
    "DEFAULT_TARGETS",
    "LoraConfig",
    "LoraWeights",
    "adapter_parameters",
    "check_peft",
    "inject_lora",
    "lora_layers",
    "read_lora",
    "set_adapter_dtype",
    "set_strength",
]
