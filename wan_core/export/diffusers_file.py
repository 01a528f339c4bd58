"""The LoRA file of a diffusers pipeline: `transformer.` and diffusers' module names.

diffusers' loader assumes a scale of 1, so alpha / rank is multiplied into B. It reads `transformer.` for either model
of a Wan 2.2 pair (diffusers 0.42, `load_into_transformer_2`), so each expert gets its own file. Metadata is copied.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint import TensorFile, to_diffusers
from ..errors import ExportError
from ..lora import read_lora
from .lora_file import ordered


def diffusers_bytes(file: Path) -> bytes:
    """Returns a LoRA file of ours in diffusers' layout; ExportError for a kind that diffusers cannot read."""
    from safetensors.torch import save

    source, found = read_lora(file), dict[str, Tensor]()
    with TensorFile(file, source.header) as tensors:
        for module, parts in source.modules.items():
            if parts.keys() - {"alpha"} != {"down", "up"}:
                raise ExportError(
                    f"{module} of this run is {source.unlike_a_pair(module) or source.kind(module)}, and diffusers "
                    "reads plain LoRAs alone. Export it without --diffusers, for ComfyUI."
                )
            down, up = (tensors.read(parts[part]) for part in ("down", "up"))
            scale = source.scale(module)
            name = f"transformer.{to_diffusers(module)}"
            # A power of two scales exactly in any float dtype; other scales need float32.
            exact = math.frexp(scale)[0] == 0.5
            found[f"{name}.lora_A.weight"] = down if exact else down.float()
            found[f"{name}.lora_B.weight"] = up * scale if exact else up.float() * torch.tensor(scale)
    said = source.header.metadata
    if "ss_network_dim" in said:
        said = {**said, "ss_network_alpha": said["ss_network_dim"]}  # the scale is in the matrices now
    return ordered(save(found, {**said, "format": "pt"}))
