"""The tiny model in each format of integers and mxfp8 that ComfyUI reads, and how it is loaded here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from tests.support import containers
from tests.support.containers import WHOLE, roots, write_codes, write_int8, write_mxfp8
from wan_core.load import ModelPlan, WanFile, inspect_model
from wan_core.model import WanTransformer
from wan_core.precision import QuantizedLinear

ONE = "blocks.0.ffn.0"
FORMATS: dict[str, Callable[[Path], dict[str, Tensor]]] = {
    "int8, a scale in all": lambda path: write_int8(path, WHOLE, rows=False),
    "int8, a scale per row": lambda path: write_int8(path, WHOLE),
    "int8 convrot 64": lambda path: write_int8(path, WHOLE, group=64),
    "int8 convrot 256": lambda path: write_int8(path, WHOLE, group=256),
    "convrot_w4a4": lambda path: write_int8(path, WHOLE, group=256, bits=4),
    "convrot codes of levels": lambda path: write_codes(path, WHOLE),
    "convrot codes": lambda path: write_codes(path, WHOLE, levels=False),
    "convrot codes of 6 bits": lambda path: write_codes(path, WHOLE, bits=6),
    "mxfp8": lambda path: write_mxfp8(path, WHOLE),
    "mxfp8, scales as bytes": lambda path: write_mxfp8(path, WHOLE, as_bytes=True),
}


def plan(base_precision: str = "as in file") -> ModelPlan:
    return ModelPlan(base_file="diffusion_models:wan.safetensors", base_precision=base_precision)


def load(folder: Path, base_precision: str = "as in file") -> WanTransformer:
    return containers.load(folder / "wan.safetensors", base_precision)


def found_in(folder: Path) -> WanFile:
    return inspect_model(plan(), roots(folder))


def kept(model: WanTransformer) -> dict[str, QuantizedLinear]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, QuantizedLinear)}
