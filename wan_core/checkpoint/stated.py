"""Metadata of a file: the stated quantization of each layer (ComfyUI's JSON, in metadata or tensors), and the stated
model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..errors import CheckpointError
from .header import CheckpointHeader
from .integers import SCALED_TOGETHER
from .weights import StoredWeight, WeightReader

CODES = "asym_w4a8_int8"
METADATA, FORMAT_SUFFIX = "_quantization_metadata", ".comfy_quant"
_MOST_FORMAT_BYTES = 4096
"""largest `comfy_quant` tensor in bytes; the tensor is one line of JSON"""
_ALWAYS_ROTATED = ("convrot_w4a4", CODES)
_USUAL_GROUP = 256


@dataclass(frozen=True)
class StatedFormat:
    """The stated storage of one layer."""

    name: str
    """float8_e4m3fn, nvfp4, int8_tensorwise ..."""
    rotated: int | None
    """values per rotation group; None without rotation"""
    together: int
    """codes per scale; 0 for other formats"""


def stated_formats(header: CheckpointHeader, names: Mapping[str, str]) -> dict[str, StatedFormat]:
    """Returns Wan layer name -> format that the file states for it. Raises CheckpointError for invalid JSON.

    `names`: Wan tensor name -> name in the file.
    """
    try:
        stated: dict[str, Any] = json.loads(header.metadata.get(METADATA, "{}")).get("layers", {})
        original = {key: name for name, key in names.items()}
        weights = ((f"{layer}.weight", said) for layer, said in stated.items())
        # Metadata uses either the name in the file or the original one. A weight of the file that is not in `original`
        # belongs to a second model, such as a text encoder.
        stated = {
            original.get(weight, weight).removesuffix(".weight"): said
            for weight, said in weights
            if weight in original or weight not in header.tensors
        }
        with WeightReader() as reader:
            for name, key in names.items():
                if name.endswith(FORMAT_SUFFIX):
                    if prod(header.tensors[key].shape) > _MOST_FORMAT_BYTES:
                        raise ValueError("longer than any format")
                    stated_json = reader.raw(StoredWeight(header.file_of(key), key, "U8", header.tensors[key].shape))
                    stated[name.removesuffix(FORMAT_SUFFIX)] = json.loads(bytes(stated_json.flatten().tolist()))
        return {layer: _format(said) for layer, said in stated.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{header.path.name} has unreadable metadata on its quantization. Download it again."
        ) from error


_DISTILLED = re.compile(
    r"lightx2v|lightning|fastwan|self[-_ ]?forcing|turbo|distill|causvid|accvid|stepdistill|\b[1-8][-_ ]?steps?\b", re.I
)


def distilled_mark(header: CheckpointHeader) -> str:
    """Returns the part of a file's name or metadata that shows a model distilled to a few steps; "" without one."""
    titles = (header.metadata.get(f"modelspec.{key}", "") for key in ("title", "description", "merged_from"))
    found = filter(None, (_DISTILLED.search(text.replace("_", "-")) for text in (header.path.stem, *titles)))
    return next((one.group().lower() for one in found), "")


def stated_model(metadata: Mapping[str, str]) -> str:
    """Returns ComfyUI's model name from `config` in the metadata, such as "animate2" or "causal_ar"; "" without one."""
    try:
        said: Any = json.loads(metadata.get("config", "{}")).get("transformer", {})
        kind, causal = said.get("model_type", ""), said.get("causal_ar", False)
    except (ValueError, AttributeError, RecursionError):  # This is the `config` of another program.
        return ""
    return "causal_ar" if causal else str(kind)[:40]


def merged_words(texts: Sequence[str]) -> str:
    """Returns the merged quantization metadata of a model's parts; a damaged text is returned unchanged, and refused
    later."""
    layers: dict[str, Any] = {}
    for text in texts:
        try:
            layers |= json.loads(text)["layers"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return text
    return json.dumps({"layers": layers})


def _format(said: dict[str, Any]) -> StatedFormat:
    """Parses one layer's JSON; some writers nest the rotation in `params`."""
    name, inside = str(said["format"]), said.get("params")
    words = {**inside, **said} if isinstance(inside, dict) else said
    turned = name in _ALWAYS_ROTATED or bool(words.get("convrot", False))
    group = int(words.get("convrot_groupsize", _USUAL_GROUP)) if turned else None
    return StatedFormat(name, group, int(words.get("group_size", SCALED_TOGETHER)) if name == CODES else 0)
