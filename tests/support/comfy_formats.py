"""The tiny model in each format of integers and mxfp8 that ComfyUI reads, and how it is loaded here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from tests.support import containers
from tests.support.containers import WHOLE, roots, write_codes, write_int8, write_mxfp8
from wan_core.load import ModelPlan, WanFile, inspect_model
from wan_core.model import WanTransformer
from wan_core.precision import QuantizedLinear

ONE = "blocks.0.ffn.0"
Written = Callable[[Path], dict[str, Tensor]]


def once(write: Callable[..., dict[str, Tensor]], **how: Any) -> Written:
    """A function that writes a file, which is made once for all tests of a process."""

    @functools.cache
    def made() -> tuple[bytes, dict[str, Tensor]]:
        with TemporaryDirectory() as folder:
            values = write(Path(folder) / "wan.safetensors", WHOLE, **how)
            return (Path(folder) / "wan.safetensors").read_bytes(), values

    def written(path: Path) -> dict[str, Tensor]:
        path.write_bytes(made()[0])
        return made()[1]

    return written


FORMATS: dict[str, Written] = {
    "int8, a scale in all": once(write_int8, rows=False),
    "int8, a scale per row": once(write_int8),
    "int8 convrot 64": once(write_int8, group=64),
    "int8 convrot 256": once(write_int8, group=256),
    "convrot_w4a4": once(write_int8, group=256, bits=4),
    "convrot codes of levels": once(write_codes),
    "convrot codes": once(write_codes, levels=False),
    "convrot codes of 6 bits": once(write_codes, bits=6),
    "mxfp8": once(write_mxfp8),
    "mxfp8, scales as bytes": once(write_mxfp8, as_bytes=True),
}


def plan(base_precision: str = "as in file") -> ModelPlan:
    return ModelPlan(base_file="diffusion_models:wan.safetensors", base_precision=base_precision)


def load(folder: Path, base_precision: str = "as in file") -> WanTransformer:
    return containers.load(folder / "wan.safetensors", base_precision)


def found_in(folder: Path) -> WanFile:
    return inspect_model(plan(), roots(folder))


def kept(model: WanTransformer) -> dict[str, QuantizedLinear]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, QuantizedLinear)}
