"""LoRAs of every kind, trained on a base in every container, and what they change in the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.containers import (
    SHAPE,
    Weights,
    block_linears,
    cast,
    quantized,
    write_gguf,
    write_int8,
    write_metadata_fp8,
    write_mxfp8,
    write_nvfp4,
    write_plain_fp8,
    write_scaled_fp8,
)
from wan_core.lora import LoraConfig, adapters_of, exported, inject_lora
from wan_core.model import WanTransformer

Given = tuple[Tensor, Tensor, Tensor]
"""latent, timestep and text"""

KINDS = {
    "LoRA": LoraConfig(rank=8),
    "DoRA": LoraConfig(rank=8, kind="DoRA"),
    "LoKr": LoraConfig(rank=8, kind="LoKr"),
    "LoHa": LoraConfig(rank=4, kind="LoHa"),
    "OFT": LoraConfig(rank=8, kind="OFT"),
    "LoRA, norms and biases": LoraConfig(rank=8, also_train="norms and biases"),
}
KEPT = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}
CHANGE = 0.01
"""of the answer"""


def bases() -> dict[str, Callable[[Path, Weights], Weights]]:
    """Each writes a file, and returns the float32 values of its packed weights."""

    def fp8(write: Callable[[Path, Weights], object]) -> Callable[[Path, Weights], Weights]:
        def done(path: Path, whole: Weights) -> Weights:
            write(path, whole)
            stored, scales = quantized(whole, torch.float8_e4m3fn, lambda w: w.amax())
            return {key: stored[key].float() * scales[key] for key in block_linears(whole)}

        return done

    def plain(path: Path, whole: Weights) -> Weights:
        write_plain_fp8(path, whole)
        return {key: whole[key].to(torch.float8_e4m3fn).float() for key in block_linears(whole)}

    def unpacked(dtype: torch.dtype) -> Callable[[Path, Weights], Weights]:
        def done(path: Path, whole: Weights) -> Weights:
            save_file(cast(whole, dtype), path)
            return {key: value.to(dtype).float() for key, value in whole.items()}

        return done

    return {
        "bf16": unpacked(torch.bfloat16),
        "fp16": unpacked(torch.float16),
        "fp32": unpacked(torch.float32),
        "fp8": plain,
        "fp8 scaled": fp8(write_scaled_fp8),
        "fp8 with metadata": fp8(write_metadata_fp8),
        "int8 in all": lambda path, whole: write_int8(path, whole, rows=False),
        "int8 per row": write_int8,
        "int8 turned": lambda path, whole: write_int8(path, whole, group=64),
        "mxfp8": write_mxfp8,
        "nvfp4": write_nvfp4,
        "GGUF Q8_0": lambda path, whole: write_gguf(path, whole, "Q8_0"),
        "GGUF Q4_0": lambda path, whole: write_gguf(path, whole, "Q4_0"),
    }


def given_inputs() -> Given:
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(1, 16, 2, 8, 8, generator=generator)
    return noise, torch.tensor([1000.0]), torch.randn(1, 16, 4096, generator=generator)


def held_by(file: Path, whole: Weights, base: str) -> Weights:
    """Writes a base; returns its weights as whoever reads them has them, float32."""
    packed = bases()[base](file, whole)
    return {**{key: value.to(torch.bfloat16).float() for key, value in whole.items()}, **packed}


def held_by_comfyui(model: Any, held: Weights) -> Weights:
    """The weights of a core MODEL as it computes with them, float32: a version may load `held` coarser than it is."""
    found, inside = {}, model.model.diffusion_model
    for name, value in held.items():
        owner, _, leaf = name.rpartition(".")
        module = inside.get_submodule(owner)
        wide: int | None = getattr(module, "in_features", None)
        if wide is None:
            found[name] = getattr(module, leaf).float().reshape(value.shape)
            continue
        bias = module.forward(torch.zeros(1, wide))[0]
        found[name] = bias if leaf == "bias" else (module.forward(torch.eye(wide)) - bias).T.contiguous()
    return found


def engine(held: Weights) -> WanTransformer:
    """The engine's own model, in float32."""
    model = WanTransformer(SHAPE)
    model.load_state_dict(held)
    return model


def apart(one: Tensor, other: Tensor) -> float:
    """Returns the size of the difference, as a share of the other."""
    return float((one - other).norm() / other.norm())


def trained(held: Weights, config: LoraConfig, given: Given) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns what a LoRA changes in the engine, and its file: as large as `CHANGE` says, float32."""
    model = engine(held)
    with torch.no_grad():
        before = model(*given)
        inject_lora(model, config, seed=1)
        parameters = [adapter.parameter(part) for adapter in adapters_of(model) for part in adapter.trained]
        start = [one.clone() for one in parameters]
        noise = torch.Generator().manual_seed(7)
        moves = [torch.randn(one.shape, generator=noise) for one in start]
        size, change = 1e-4, before
        for _ in range(6):
            for one, begin, move in zip(parameters, start, moves, strict=True):
                one.copy_(begin + size * move)
            change = model(*given) - before
            size *= CHANGE * float(before.norm() / change.norm()) or 1.0
    return change, {f"diffusion_model.{name}": value for name, value in exported(model).items()}
