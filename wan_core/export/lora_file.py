"""The LoRA file: `diffusion_model.<path>.lora_A/.lora_B.weight` and `.alpha`, as ComfyUI and other programs read it.

diffusers and DiffSynth read it too, musubi-tuner after its convert_lora.py. Alpha is always written, because readers
assume a scale of 1 without one. The run's graph can be in the metadata, where ComfyUI finds it
when the file is dropped on the canvas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint import WanVariant, read_header, to_file
from ..checkpoint.header import framed_header, header_end
from ..errors import CheckpointError, ExportError, WanTrainerError
from ..files import read_json
from ..load import BaseWords
from ..lora import PEFT, FrozenLora, LoraConfig
from ..precision import torch_dtype
from .secrets import without_secrets

_TRIGGER = "modelspec.trigger_phrase"
_LONGEST_PHRASE = 500
_PREFIX = "diffusion_model."
_STORED = {"bf16": ("BF16", 2), "fp16": ("F16", 2), "fp32": ("F32", 4)}
"""dtype -> safetensors name, bytes per value"""
_FLOAT32 = (".alpha", ".dora_scale")
_STATED = (
    *("learning_rate", "optimizer", "lr_scheduler", "gradient_accumulation_steps", "gradient_checkpointing"),
    *("max_grad_norm", "timestep_sampling", "discrete_flow_shift", "seed"),
)
"""settings that are in the metadata under their names"""


@dataclass(frozen=True)
class LoraFile:
    parts: Mapping[str, Tensor]
    """by `<module>.<part>`, as returned by `exported` of lora"""
    dtype: str
    """bf16, fp16 or fp32"""
    metadata: dict[str, str]

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors by their names in the file; alphas and DoRA lengths stay float32.

        ExportError for a non-finite value: such a file is never published.
        """
        dtype = torch_dtype(self.dtype)
        found: dict[str, Tensor] = {}
        for name, value in self.parts.items():
            stored = value if name.endswith(_FLOAT32) else value.to(dtype)
            if not torch.isfinite(stored).all():
                raise ExportError(
                    f"The LoRA weight {name} is not finite as {self.dtype}; the file was not written. "
                    "Resume from an earlier saved step with a lower learning rate."
                )
            found[f"{_PREFIX}{to_file(name)}"] = stored.contiguous()
        return found

    def to_bytes(self) -> bytes:
        from safetensors.torch import save

        return ordered(save(self.tensors(), self.metadata))


def file_bytes(parts: Mapping[str, tuple[int, ...]], dtype: str, metadata: Mapping[str, str]) -> int:
    """Returns the size of a LoRA file with parts of these shapes, by `<module>.<part>`."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    place = 0
    kinds = {name: (_STORED["fp32"] if name.endswith(_FLOAT32) else _STORED[dtype]) for name in parts}
    for name in sorted(parts, key=lambda name: (-kinds[name][1], name)):  # safetensors writes wide dtypes first
        stored, size = kinds[name][0], math.prod(parts[name]) * kinds[name][1]
        header[f"{_PREFIX}{to_file(name)}"] = {
            "dtype": stored,
            "shape": parts[name],
            "data_offsets": [place, place + size],
        }
        place += size
    return len(_framed(header)) + place


def _framed(header: Mapping[str, object]) -> bytes:
    return framed_header(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8"))


def ordered(data: bytes) -> bytes:
    """Returns the file with sorted metadata: safetensors' order is random, and equal jobs must give equal bytes."""
    end = header_end(data)
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    return _framed(header) + data[end:]


def lora_metadata(
    *,
    run_name: str,
    job_id: str,
    step: int,
    lora: LoraConfig,
    settings: dict[str, object],
    variant: WanVariant,
    data_fingerprint: str,
    base_digest: str,
    base: BaseWords,
    trigger_words: Sequence[str],
    pack_version: str,
    frozen: Sequence[FrozenLora] = (),
) -> dict[str, str]:
    """Returns metadata under the names that other tools read (`ss_*`, `modelspec.*`).

    Without paths, captions and secrets.
    """
    triggers = ", ".join(without_secrets(word) for word in trigger_words)
    low, high = (round(1000 * sigma) for sigma in variant.sigma_range())
    return {
        "format": "pt",
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": f"wan{variant.name[:3]}/lora",
        "modelspec.implementation": "wan-trainer",
        "modelspec.title": run_name,
        "modelspec.timestep_range": f"{low},{high}",
        "ss_base_model_version": "wan",
        "ss_network_module": f"peft.{lora.name.lower()}",
        "ss_network_dim": str(lora.rank),
        "ss_network_alpha": str(lora.effective_alpha),
        "ss_network_args": json.dumps(
            {"targets": [without_secrets(target) for target in lora.targets], "dropout": lora.dropout}
        ),
        "ss_output_name": run_name,
        "ss_steps": str(step),
        "ss_max_train_steps": str(settings.get("steps")),
        **{f"ss_{name}": str(settings.get(name)) for name in _STATED},
        "ss_mixed_precision": "no" if base.precision == "fp32" else base.precision,
        "ss_fp8_base": str("fp8" in base.quantization.lower()),
        "wan_trainer.job_id": job_id,
        "wan_trainer.variant": variant.name,
        "wan_trainer.data_fingerprint": data_fingerprint,
        "wan_trainer.base_digest": base_digest,
        "wan_trainer.base_precision": base.precision,
        "wan_trainer.base_quantization": base.quantization,
        "wan_trainer.base_stored": base.stored,
        "wan_trainer.version": pack_version,
        **({_TRIGGER: triggers} if triggers else {}),
        **({"wan_trainer.tuner_file": lora.peft_file} if lora.kind == PEFT else {}),
        **({"wan_trainer.trained_over": json.dumps([[one.name, one.strength] for one in frozen])} if frozen else {}),
    }


def trigger_phrase(lora: Path) -> str:
    """Returns the trigger words of a LoRA file as one text; "" for none, and for a missing file."""
    try:
        return read_header(lora).metadata.get(_TRIGGER, "")[:_LONGEST_PHRASE]
    except (CheckpointError, OSError):
        return ""


_LIMIT_BYTES = 2 << 20
"""ComfyUI's page reads the first 4 MiB of a file, tensor names included"""


def workflow_metadata(directory: Path) -> dict[str, str]:
    """Returns workflow.json of a run as metadata: `workflow` for the canvas form, `prompt` for the API form.

    Empty for a run without one, for invalid JSON, and for a graph larger than ComfyUI's page reads.
    """
    try:
        graph = read_json(directory / "workflow.json", limit_bytes=_LIMIT_BYTES)
    except WanTrainerError:
        return {}
    if not isinstance(graph, dict) or not graph:
        return {}
    text = json.dumps(graph, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate cannot be encoded in a header, so it is written as JSON escapes it.
    return {"workflow" if "nodes" in graph else "prompt": text.encode("utf-8", "backslashreplace").decode("utf-8")}
