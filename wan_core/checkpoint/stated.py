"""Reads what a file says of itself: how each layer is quantized (ComfyUI's JSON, in metadata or in a tensor beside a
weight), and what model it is."""

from __future__ import annotations

import json
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
"""of one `comfy_quant` tensor: a line of JSON"""
_ALWAYS_ROTATED = ("convrot_w4a4", CODES)
_USUAL_GROUP = 256


@dataclass(frozen=True)
class StatedFormat:
    """The way one layer is stored, by its own words."""

    name: str
    """float8_e4m3fn, nvfp4, int8_tensorwise ..."""
    rotated: int | None
    """values of a row that were rotated together, as said; None where they were not"""
    together: int
    """codes that share a scale, where they are codes"""


def stated_formats(header: CheckpointHeader, names: Mapping[str, str]) -> dict[str, StatedFormat]:
    """Returns what is said of each layer, by its original Wan name. `names`: original name of a tensor -> its own.

    CheckpointError where it cannot be read.
    """
    try:
        stated: dict[str, Any] = json.loads(header.metadata.get(METADATA, "{}")).get("layers", {})
        original = {key: name for name, key in names.items()}
        stated = {_original(k, original): said for k, said in stated.items() if not _of_another(k, header, original)}
        with WeightReader() as reader:
            for name, key in names.items():
                if name.endswith(FORMAT_SUFFIX):
                    if prod(header.tensors[key].shape) > _MOST_FORMAT_BYTES:
                        raise ValueError("longer than any format")
                    told = reader.raw(StoredWeight(header.file_of(key), key, "U8", header.tensors[key].shape))
                    stated[name.removesuffix(FORMAT_SUFFIX)] = json.loads(bytes(told.flatten().tolist()))
        return {layer: _format(said) for layer, said in stated.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{header.path.name} says in no readable way how it is quantized. Download it again."
        ) from error


def stated_model(metadata: Mapping[str, str]) -> str:
    """Returns what ComfyUI's `config` in the metadata says a model is, such as "animate2"; "" where it says nothing.

    "causal_ar" is the one that is said by a switch of that name.
    """
    try:
        said: Any = json.loads(metadata.get("config", "{}")).get("transformer", {})
        kind, causal = said.get("model_type", ""), said.get("causal_ar", False)
    except (ValueError, AttributeError, RecursionError):  # some program's own words, which mean nothing here
        return ""
    return "causal_ar" if causal else str(kind)[:40]


def merged_words(texts: Sequence[str]) -> str:
    """Returns the words of the parts of a model as those of one file; of a damaged one its own, which are refused."""
    layers: dict[str, Any] = {}
    for text in texts:
        try:
            layers |= json.loads(text)["layers"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return text
    return json.dumps({"layers": layers})


def _of_another(layer: str, header: CheckpointHeader, original: Mapping[str, str]) -> bool:
    """Returns whether a layer is one of another model in the file, such as its text encoder."""
    weight = f"{layer}.weight"
    return weight in header.tensors and weight not in original


def _original(layer: str, original: Mapping[str, str]) -> str:
    """Returns the original name of a layer that metadata call as the file does, or by its original name already."""
    weight = f"{layer}.weight"
    return original.get(weight, weight).removesuffix(".weight")


def _format(said: dict[str, Any]) -> StatedFormat:
    """Reads one layer's words; some writers put those of a rotation one level deeper, in `params`."""
    name, inside = str(said["format"]), said.get("params")
    words = {**inside, **said} if isinstance(inside, dict) else said
    turned = name in _ALWAYS_ROTATED or bool(words.get("convrot", False))
    group = int(words.get("convrot_groupsize", _USUAL_GROUP)) if turned else None
    return StatedFormat(name, group, int(words.get("group_size", SCALED_TOGETHER)) if name == CODES else 0)
