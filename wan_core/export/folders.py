"""LoRA folders of other libraries: what diffusers' pipelines and PEFT save, from a LoRA file of ours.

Both name the modules of diffusers' `WanTransformer3DModel`. Each model of a pair has its own files: diffusers 0.42
reads `transformer.` for either (`load_into_transformer_2`), PEFT wraps one model.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint import TensorFile, to_diffusers
from ..errors import ExportError
from ..lora import read_lora
from ..lora.source import LoraSource
from .lora_file import ordered


def _for_diffusers(file: Path) -> dict[str, bytes]:
    """Returns the folder that `load_lora_weights` of diffusers' pipelines reads, bytes by file name.

    ExportError for a kind that is not a pair of matrices per linear.
    """
    source, tensors = read_lora(file), dict[str, Tensor]()
    for module, down, up in _pairs(source, "diffusers"):
        scale = source.scale(module)
        # diffusers assumes a scale of 1, so B is scaled: by a power of two exactly, else in float32.
        exact = math.frexp(scale)[0] == 0.5
        name = f"transformer.{to_diffusers(module)}"
        tensors[f"{name}.lora_A.weight"] = down if exact else down.float()
        tensors[f"{name}.lora_B.weight"] = up * scale if exact else up.float() * torch.tensor(scale)
    said = source.header.metadata
    if "ss_network_dim" in said:
        said = {**said, "ss_network_alpha": said["ss_network_dim"]}  # the scale is in the matrices now
    return {"pytorch_lora_weights.safetensors": _file(tensors, said)}


def _for_peft(file: Path) -> dict[str, bytes]:
    """Returns the folder that `PeftModel.from_pretrained` reads, bytes by file name.

    Matrices keep their values; ranks and alphas are in adapter_config.json. ExportError as `_for_diffusers`.
    """
    source, tensors, sizes = read_lora(file), dict[str, Tensor](), dict[str, tuple[int, float]]()
    for module, down, up in _pairs(source, "a PEFT folder of this export"):
        name = to_diffusers(module)
        sizes[name] = (len(down), source.scale(module) * len(down))
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
    rank, alpha = Counter(sizes.values()).most_common(1)[0][0]
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {name: own for name, (own, _) in sizes.items() if own != rank},
        "alpha_pattern": {name: own for name, (_, own) in sizes.items() if own != alpha},
        "target_modules": list(sizes),
        "inference_mode": True,
    }
    text = json.dumps(config, indent=2).encode()
    return {"adapter_config.json": text, "adapter_model.safetensors": _file(tensors, source.header.metadata)}


FOLDERS: dict[str, Callable[[Path], dict[str, bytes]]] = {"diffusers": _for_diffusers, "peft": _for_peft}
"""by the flag of `export`"""


def _pairs(source: LoraSource, reader: str) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yields module, A (r, in) and B (out, r) of each linear, in the dtype of the file."""
    with TensorFile(source.header.path, source.header) as tensors:
        for module, parts in source.modules.items():
            if parts.keys() - {"alpha"} != {"down", "up"}:
                raise ExportError(
                    f"{module} of this run is {source.unlike_a_pair(module) or source.kind(module)}, and {reader} "
                    "reads only plain LoRAs. Export it without --diffusers and --peft, for ComfyUI."
                )
            yield module, tensors.read(parts["down"]), tensors.read(parts["up"])


def _file(tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    from safetensors.torch import save

    return ordered(save(tensors, {**metadata, "format": "pt"}))
