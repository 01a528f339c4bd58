"""Adapter weights as plain tensors: into and out of a model, and from files other trainers wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..checkpoint import read_header
from ..errors import CheckpointError
from .inject import adapter_parameters

__all__ = ["LoraWeights", "read_lora"]

_PREFIX = "diffusion_model."
_PAIRS = {
    ".lora_A.weight": ".lora_A.weight",
    ".lora_B.weight": ".lora_B.weight",
    ".lora_down.weight": ".lora_A.weight",
    ".lora_up.weight": ".lora_B.weight",
}


@dataclass(frozen=True)
class LoraWeights:
    """`<module>.lora_A.weight` (rank, in) and `<module>.lora_B.weight` (out, rank) by original Wan module names."""

    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> LoraWeights:
        """Copies of a model's adapters on the CPU, float32."""
        return cls({name: p.detach().to("cpu", copy=True) for name, p in adapter_parameters(model).items()})

    def load_into(self, model: nn.Module, source: str) -> None:
        """Put the values into a model's adapters; CheckpointError unless names and shapes agree exactly."""
        parameters = adapter_parameters(model)
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


def read_lora(path: Path, alpha_over_rank: float) -> LoraWeights:
    """Read a LoRA with `diffusion_model.` names (lora_A/lora_B or lora_down/lora_up, optional alpha).

    Its own alpha is folded into B so that under `alpha_over_rank`, the scale of the LoRA to be trained, it acts as it
    did before. Tensors come back float32.
    """
    from safetensors import safe_open

    header = read_header(path)
    tensors: dict[str, Tensor] = {}
    alphas: dict[str, float] = {}
    with safe_open(path, "pt") as file:
        for key in header.tensors:
            name = key.removeprefix(_PREFIX)
            if name.endswith(".alpha"):
                alphas[name.removesuffix(".alpha")] = _alpha(file.get_tensor(key), key, path)
                continue
            suffix = next((s for s in _PAIRS if name.endswith(s)), None)
            if suffix is None or not key.startswith(_PREFIX):
                raise CheckpointError(
                    f'{path.name}: key "{key[:80]}" is not of the form diffusion_model.<module>.lora_A.weight. '
                    "Convert the LoRA to ComfyUI's format first."
                )
            value = file.get_tensor(key).float()
            if value.ndim != 2:
                raise CheckpointError(f"{path.name}: {key} has shape {tuple(value.shape)}; a matrix was expected.")
            if not torch.isfinite(value).all():
                raise CheckpointError(f"{path.name}: {key} is not finite. Use an earlier file of that LoRA.")
            tensors[name.removesuffix(suffix) + _PAIRS[suffix]] = value
    for name in [n for n in tensors if n.endswith(".lora_B.weight")]:
        module = name.removesuffix(".lora_B.weight")
        rank = tensors[name].shape[1]
        tensors[name] *= alphas.get(module, rank) / rank / alpha_over_rank
    return LoraWeights(tensors)


def _alpha(value: Tensor, key: str, path: Path) -> float:
    if value.numel() != 1 or not torch.isfinite(value).all():
        raise CheckpointError(f"{path.name}: {key} is not one finite number. Use an undamaged LoRA file.")
    return float(value)
