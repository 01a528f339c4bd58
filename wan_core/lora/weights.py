"""Adapter weights as plain tensors: into and out of a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from .inject import adapter_parameters, adapters_of


@dataclass(frozen=True)
class LoraWeights:
    """`<module>.lora_A.weight` (rank, in) and `<module>.lora_B.weight` (out, rank) by original Wan module names."""

    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> LoraWeights:
        """Returns copies of a model's adapters on the CPU, float32."""
        return cls({name: p.detach().to("cpu", copy=True) for name, p in _tensors(model).items()})

    def load_into(self, model: nn.Module, source: str) -> None:
        """Put the values into a model's adapters; CheckpointError unless names and shapes agree exactly."""
        parameters = _tensors(model)
        missing, unknown = parameters.keys() - self.tensors.keys(), self.tensors.keys() - parameters.keys()
        if missing or unknown:
            raise CheckpointError(
                f"{source} does not fit this LoRA: {len(missing)} weights are missing and {len(unknown)} unknown "
                f"(for example {min(missing or unknown)}). Use the same base model and targets."
            )
        for name, parameter in parameters.items():
            value = self.tensors[name]
            if value.shape != parameter.shape:
                raise CheckpointError(
                    f"{source}: {name} has shape {tuple(value.shape)}, needed is {tuple(parameter.shape)}. "
                    "Set rank to the rank of the file."
                )
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(self.tensors[name])


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Returns what is trained, and what a run needs of the adapters besides to go on."""
    found: dict[str, Tensor] = dict(adapter_parameters(model))
    for adapter in adapters_of(model):
        found |= {f"{adapter.name}.{part}": value for part, value in adapter.constants.items()}
    return found
