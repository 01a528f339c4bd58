"""The LoRA file other programs read: key layout, dtype, metadata."""

from .lora_file import LoraFile, lora_metadata

__all__ = ["LoraFile", "lora_metadata"]
