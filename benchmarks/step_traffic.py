"""Counts what a GPU has to do in one training step: kernels, bytes and arithmetic, on meta tensors, without a GPU.

    python benchmarks/step_traffic.py                                   # the table, with this checkout's own code
    python benchmarks/step_traffic.py --only "fp8 by row" --by-operation
    python benchmarks/step_traffic.py --size 832x480x1 --only "balanced, bf16"

A step of two and of three layers runs under the dispatch mode of `wan_core/placement/counting.py`, which says what a
kernel is; 40 layers are a straight line through both. A fused function is the one kernel that torch's compiler makes of
it (benchmarks/fused_kernels.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch
from torch import nn

from tests.support.fused import all_of, used_on
from wan_core.checkpoint.ggml import BLOCKS
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import POLICIES, Policy, WanShape, WanTransformer, block_of
from wan_core.placement import StepShape
from wan_core.placement.counting import Traffic, combined
from wan_core.placement.traffic import counted_step
from wan_core.precision import PrecisionPolicy, QuantizedLinear, multiply_in

SHAPE = WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
"""14B text to video"""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    policy: PrecisionPolicy = PrecisionPolicy()
    quantize: Callable[[nn.Linear], QuantizedLinear] | None = None
    matmul: torch.dtype | None = None
    chunk_tokens: int | None = None
    keep: str = ""
    fused: bool = False


def in_fp8(linear: nn.Linear) -> QuantizedLinear:
    """A float8 weight with a scale for each row."""
    weight = torch.empty(linear.weight.shape, dtype=torch.float8_e4m3fn, device="meta")
    return QuantizedLinear(weight, torch.empty(len(weight), device="meta"), bias=True)


def in_int8(linear: nn.Linear) -> QuantizedLinear:
    """An int8 weight with a scale for each row."""
    weight = torch.empty(linear.weight.shape, dtype=torch.int8, device="meta")
    return QuantizedLinear(weight, torch.empty(len(weight), device="meta"), bias=True)


def in_blocks(kind: str) -> Callable[[nn.Linear], QuantizedLinear]:
    """The blocks of a GGUF file."""

    def made(linear: nn.Linear) -> QuantizedLinear:
        rows, columns = linear.weight.shape
        layout = BLOCKS[kind]
        size = columns // layout.values * layout.size_bytes
        return QuantizedLinear(torch.empty(rows, size, dtype=torch.uint8, device="meta"), None, bias=True, layout=kind)

    return made


ALL_BF16 = PrecisionPolicy(norm="bf16", modulation="bf16", residual="bf16")
CASES = {
    "balanced, bf16": Case(),
    "fp8 by row": Case(quantize=in_fp8),
    "bf16, unchunked": Case(chunk_tokens=0),
    "fp8, unchunked": Case(quantize=in_fp8, chunk_tokens=0),
    "int8 by row": Case(quantize=in_int8),
    "GGUF Q4_K": Case(quantize=in_blocks("Q4_K")),
    "matmul fp8": Case(quantize=in_fp8, matmul=torch.float8_e4m3fn),
    "matmul int8": Case(quantize=in_int8, matmul=torch.int8),
    "norms, modulation, residual in bf16": Case(policy=ALL_BF16),
    "balanced, attention kept": Case(keep="attn_output"),
    "fused, bf16": Case(fused=True),
    "fused, fp8 by row": Case(quantize=in_fp8, fused=True),
    "fused, bf16, unchunked": Case(chunk_tokens=0, fused=True),
    "fused, fp8, unchunked": Case(quantize=in_fp8, chunk_tokens=0, fused=True),
    "fused, GGUF Q4_K": Case(quantize=in_blocks("Q4_K"), fused=True),
    "fused, matmul fp8": Case(quantize=in_fp8, matmul=torch.float8_e4m3fn, fused=True),
    "fused, matmul int8": Case(quantize=in_int8, matmul=torch.int8, fused=True),
}


def counted(case: Case, step: StepShape, rank: int, layers: int) -> Traffic:
    """Returns the traffic of one step, forward and backward, of a model of `layers`; the optimizer is left out."""
    numerics = case.policy.numerics(torch.bfloat16)
    with torch.device("meta"):
        model = WanTransformer(replace(SHAPE, num_layers=layers), numerics).to(numerics.compute)
    model.requires_grad_(False)
    if case.quantize is not None:
        for name, module in list(model.named_modules()):
            if type(module) is nn.Linear and block_of(f"{name}.weight") is not None:
                parent, _, leaf = name.rpartition(".")
                linear = case.quantize(module)
                linear.bias = nn.Parameter(module.bias.detach(), requires_grad=False)
                setattr(model.get_submodule(parent), leaf, linear)
    own = numerics.adapter if numerics.adapter != numerics.compute else None
    inject_lora(model, LoraConfig(rank=rank), seed=0, dtype=own)
    multiply_in(model, case.matmul)
    if case.chunk_tokens is not None:
        model.run_in_chunks(case.chunk_tokens)
    model.checkpoint_blocks = True
    model.checkpoint_policy = POLICIES[case.keep] if case.keep else Policy()
    with used_on(torch.device("meta"), all_of(model) if case.fused else ()):
        return counted_step(model, step).total


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="832x480x49", help="width x height x frames")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--only", nargs="*", choices=[*CASES], default=[*CASES])
    parser.add_argument("--by-operation", action="store_true", help="also the operators that move most")
    parser.add_argument("--json", type=Path, help="write the figures there")
    asked = parser.parse_args(arguments)
    width, height, frames = map(int, asked.size.split("x"))
    step = StepShape(
        batch_size=1, latent_frames=(frames - 1) // 4 + 1, latent_height=height // 8, latent_width=width // 8
    )
    print(f"14B, {asked.size} ({step.tokens} tokens), rank {asked.rank}, checkpointing of every block\n")
    print("| | FLOP (products + attention) | bytes beside products and attention | all bytes | kernels |")
    print("| --- | --- | --- | --- | --- |")
    found: dict[str, Any] = {}
    for name in asked.only:
        two, three = (counted(CASES[name], step, asked.rank, layers) for layers in (2, 3))
        all_of_it = combined(((3 - SHAPE.num_layers, two), (SHAPE.num_layers - 2, three)))
        products, attention = (all_of_it.flop[part] / 1e12 for part in ("products", "attention"))
        beside, moved = all_of_it.bytes_beside / 1e12, sum(all_of_it.moved.values()) / 1e12
        kernels = sum(all_of_it.kernels.values())
        print(f"| {name} | {products:.0f} + {attention:.0f} T | {beside:.2f} TB | {moved:.2f} TB | {kernels:,} |")
        found[name] = {
            "products": products,
            "attention": attention,
            "beside": beside,
            "moved": moved,
            "kernels": kernels,
        }
        if asked.by_operation:
            for operation, amount in all_of_it.moved.most_common(24):
                print(f"    {operation:32} {amount / 1e12:6.3f} TB {all_of_it.kernels[operation]:>8,} kernels")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
