"""One config of each kind of adapter, small, and adapters with values as if trained."""

from __future__ import annotations

import torch
from torch import nn

from wan_core.lora import LoraConfig, adapter_parameters

KINDS = {
    "LoRA": LoraConfig(rank=4, alpha=3.0),
    "rsLoRA": LoraConfig(kind="rsLoRA", rank=4, alpha=3.0),
    "DoRA": LoraConfig(kind="DoRA", rank=4, alpha=3.0),
    "LoKr": LoraConfig(kind="LoKr", rank=2, alpha=3.0),
    "whole LoKr": LoraConfig(kind="LoKr", rank=64, alpha=3.0, lokr_factor=4),
    "LoHa": LoraConfig(kind="LoHa", rank=4, alpha=3.0),
    "OFT": LoraConfig(kind="OFT", rank=4),
    "PiSSA": LoraConfig(rank=4, alpha=3.0, init="PiSSA"),
    "OLoRA": LoraConfig(rank=4, alpha=3.0, init="OLoRA"),
    "norms and biases": LoraConfig(rank=4, alpha=3.0, also_train="norms and biases"),
    "DoRA, norms and biases": LoraConfig(kind="DoRA", rank=4, alpha=3.0, also_train="norms and biases"),
}


def filled(model: nn.Module, size: float = 0.15) -> nn.Module:
    """Returns the model; each value of its adapters is moved by normal noise of that deviation."""
    generator = torch.Generator().manual_seed(6)
    for parameter in adapter_parameters(model).values():
        parameter.data += size * torch.randn(parameter.shape, generator=generator)
    return model
