"""Counts what a GPU has to do in one training step: kernels, bytes and arithmetic, on meta tensors, without a GPU.

    python benchmarks/step_traffic.py                                   # the table, with this checkout's own code
    python benchmarks/step_traffic.py --only "fp8 by row" --by-operation
    python benchmarks/step_traffic.py --size 832x480x1 --only "balanced, bf16"

A step of two and of three layers runs under a dispatch mode; 40 layers are a straight line through both. An operator
that makes or changes a tensor is a kernel; its bytes are those of its inputs and outputs, as if no cache existed. Views
and empty tensors are none. Attention and RMS norm are one kernel each, as on a card; so is each fused function, which
is what torch's compiler makes of it (benchmarks/fused_kernels.py). A meta tensor computes nothing, so
a count says what must be moved and started, and nothing about how well a kernel does it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from wan_core.checkpoint.ggml import BLOCKS
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import WanShape, WanTransformer, block_of
from wan_core.model import attention as attention_module
from wan_core.model import block as block_module
from wan_core.model.fusing import used_on
from wan_core.model.keeping import POLICIES, Policy
from wan_core.model.modulate import sums_within
from wan_core.placement.short_model import MetaBatch, StepShape
from wan_core.precision import PrecisionPolicy, QuantizedLinear, multiply_in
from wan_core.precision.first_run import all_of

SHAPE = WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
"""14B text to video"""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "convolution", "convolution_backward")
ATTENTION = ("_scaled_dot_product_attention", "_scaled_dot_product_attention_backward")
OVERWRITES = ("copy_", "zero_", "fill_", "new_zeros", "zeros_like", "ones_like")
"""they do not read what they change"""
NOTHING = ("empty", "empty_strided", "empty_like", "new_empty", "detach", "alias", "lift_fresh", "_reshape_alias")

torch.library.define("traffic::_scaled_dot_product_attention", "(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor)")
torch.library.define(
    "traffic::_scaled_dot_product_attention_backward",
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse) -> (Tensor, Tensor, Tensor)",
)
torch.library.define("traffic::rms_norm", "(Tensor x, Tensor weight) -> (Tensor, Tensor)")
torch.library.define("traffic::rms_norm_backward", "(Tensor grad, Tensor x, Tensor weight, Tensor inverse) -> Tensor")


@torch.library.impl("traffic::_scaled_dot_product_attention", "meta")
def _attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


@torch.library.impl("traffic::_scaled_dot_product_attention_backward", "meta")
def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@torch.library.impl("traffic::rms_norm", "meta")
def _rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)


@torch.library.impl("traffic::rms_norm_backward", "meta")
def _rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor, inverse: Tensor) -> Tensor:
    return torch.empty_like(x)


class Attention(torch.autograd.Function):
    """(B, N, heads, d) as a flash kernel takes and keeps it."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = torch.ops.traffic._scaled_dot_product_attention(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.traffic._scaled_dot_product_attention_backward(grad, *ctx.saved_tensors)


class RMSNorm(torch.autograd.Function):
    """One kernel there, one back, in whatever dtype it is given; it keeps its input and a number a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        out, inverse = torch.ops.traffic.rms_norm(x, weight)
        ctx.save_for_backward(x, weight, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return torch.ops.traffic.rms_norm_backward(grad, *ctx.saved_tensors), None


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """The engine's norm as it runs on a card: one kernel, between casts to `dtype` and back where they are needed."""
    if sums_within(x, weight, dtype):
        return RMSNorm.apply(x, weight)
    return RMSNorm.apply(x.to(dtype), weight.to(dtype)).to(x.dtype)


@dataclass
class Traffic:
    """What one step asks of a card."""

    kernels: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    """bytes read and written, by operator"""
    arithmetic: Counter[str] = field(default_factory=Counter)
    """FLOP of products and of attention"""

    def line(self, other: Traffic, count: int) -> Traffic:
        """Returns this with `count` times what `other` has more."""

        def along(own: Counter[str], longer: Counter[str]) -> Counter[str]:
            return Counter({name: own[name] + count * (longer[name] - own[name]) for name in own | longer})

        pairs = ((own, longer) for own, longer in zip(vars(self).values(), vars(other).values(), strict=True))
        return Traffic(*(along(own, longer) for own, longer in pairs))

    def bytes_beside(self) -> int:
        """Returns the bytes of all that is neither a product nor attention."""
        return sum(amount for name, amount in self.moved.items() if name not in (*PRODUCTS, *ATTENTION))


class Counting(TorchDispatchMode):
    """Adds to `traffic` what each operator does."""

    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        outputs = list(_tensors(result))
        out_names = {argument.name for argument in func._schema.arguments if argument.is_out}
        read = (
            args[1:] if name in OVERWRITES else args,
            {k: v for k, v in (kwargs or {}).items() if k not in out_names},
        )
        inputs = list(_tensors(read))
        if name not in NOTHING and not self._is_view(func, inputs, outputs):
            traffic = self.traffic
            traffic.kernels[name] += 1
            traffic.moved[name] += sum(map(_span, inputs)) + sum(map(_span, outputs))
            if name in PRODUCTS:
                traffic.arithmetic["products"] += _product_flop(name, inputs, outputs)
            elif name in ATTENTION:
                traffic.arithmetic["attention"] += _attention_flop(name, inputs)
        return result

    @staticmethod
    def _is_view(func: Any, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
        if func._schema.is_mutable or not outputs:
            return not outputs
        own = {_storage(value) for value in inputs}
        return all(_storage(value) in own for value in outputs)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _span(tensor: Tensor) -> int:
    """The bytes of a tensor that differ: an expanded dimension is read from one place."""
    values = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        values *= size if stride or not size else 1
    return values * tensor.element_size()


def _product_flop(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    if name.startswith("convolution"):
        weight = next(value for value in inputs if value.ndim == 5)
        rows = max(value.shape[2:].numel() * value.shape[0] for value in (*inputs, *outputs) if value.ndim == 5)
        return 2 * rows * weight.numel() // weight.shape[2:].numel()
    left = inputs[-2] if name in ("addmm", "baddbmm") else inputs[0]
    return 2 * outputs[0].numel() * left.shape[-1]


def _attention_flop(name: str, inputs: list[Tensor]) -> int:
    q, k = inputs[:2] if name == ATTENTION[0] else inputs[1:3]
    forward = 4 * q.shape[:-1].numel() * k.shape[1] * q.shape[-1]
    return forward if name == ATTENTION[0] else forward * 5 // 2


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
    for module in model.modules():
        if isinstance(module, attention_module.WanAttention):
            module.kernel = Attention.apply
        if case.chunk_tokens is not None and hasattr(module, "chunk_tokens"):
            module.chunk_tokens = case.chunk_tokens
    model.checkpoint_blocks = True
    model.checkpoint_policy = POLICIES[case.keep] if case.keep else Policy()
    fused = used_on(torch.device("meta"), all_of(model) if case.fused else ())
    with Counting() as counting, as_on_a_card(), fused:
        batch = MetaBatch.of(replace(SHAPE, num_layers=layers), step)
        counting.traffic = Traffic()
        nn.functional.mse_loss(batch.through(model), batch.noise - batch.latent).backward()
    return counting.traffic


@contextmanager
def as_on_a_card() -> Iterator[None]:
    """Inside, the norm is the one kernel that it is on a card."""
    kept = [(module, module.rms_norm) for module in (block_module, attention_module) if hasattr(module, "rms_norm")]
    for module, _ in kept:
        module.rms_norm = rms_norm
    try:
        yield
    finally:
        for module, own in kept:
            module.rms_norm = own


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
        all_of_it = two.line(three, SHAPE.num_layers - 2)
        products, attention = (all_of_it.arithmetic[part] / 1e12 for part in ("products", "attention"))
        beside, moved = all_of_it.bytes_beside() / 1e12, sum(all_of_it.moved.values()) / 1e12
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
