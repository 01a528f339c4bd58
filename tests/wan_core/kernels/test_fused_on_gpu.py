"""On a GPU: every fused function, compiled by triton, against float64 and against its plain form, at widths of 14B."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.fused import all_of, used_on
from tests.support.stored import KINDS, stored
from wan_core.abilities import abilities_of
from wan_core.checkpoint import dequantise
from wan_core.checkpoint.dequantise import FUSED as DEQUANTISE
from wan_core.checkpoint.dequantise import NVFP4, fused_kind, scale_values
from wan_core.checkpoint.ggml import BLOCKS, block_parts
from wan_core.kernels.fusing import Fused
from wan_core.kernels.modulate import modulated_with, normed_with
from wan_core.kernels.rope import Span, rope_of, rotate
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.lora.low_rank import LoraAdapter
from wan_core.model import Numerics, WanShape, WanTransformer
from wan_core.model.attention import WanRMSNorm
from wan_core.precision import first_run
from wan_core.precision.linear import QuantizedLinear

CARD = torch.device("cuda", 0)
WIDE, LONG, HEADS, TOKENS = 5120, 13824, 40, 240
SHAPE = WanShape(dim=WIDE, ffn_dim=LONG, num_heads=HEADS, num_layers=1, text_dim=64)
MIXED = Numerics(compute=torch.bfloat16)
ROUNDED_ONCE = 2.5e-3
"""relative L2 distance of values that were rounded to bfloat16 once, at most"""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton"),
    pytest.mark.filterwarnings("ignore"),  # of the compiler, about the card
]


@pytest.fixture(autouse=True)
def _same_values() -> None:
    torch.manual_seed(0)


def drawn(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*size).to(CARD, dtype)


def far(found: Tensor, exact: Tensor) -> float:
    """Returns the relative L2 distance."""
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def both_ways(run: Callable[..., Tensor | tuple[Tensor, ...]], inputs: Iterable[Tensor]) -> list[Tensor]:
    """Returns results and the gradients of all inputs, for given gradients of the results."""
    leaves = [one.detach().clone().requires_grad_() for one in inputs]
    outputs = run(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(1)
    # Of bfloat16, so that the exact pass has the same ones.
    given = [torch.randn(one.shape, generator=generator).bfloat16().to(CARD, one.dtype) for one in outputs]
    return [*(one.detach() for one in outputs), *torch.autograd.grad(outputs, leaves, given)]


def assert_as_exact(
    run: Callable[..., Any],
    exact: Callable[..., Any],
    inputs: list[Tensor],
    functions: list[tuple[Fused, str]],
    *,
    most: float = ROUNDED_ONCE,
) -> None:
    """Asserts that `run`, fused, is as near to float64 as it is plain, both ways."""
    plain, wanted = both_ways(run, inputs), both_ways(exact, [one.double() for one in inputs])
    with used_on(CARD, functions):
        fused = both_ways(run, inputs)
    assert [one.dtype for one in fused] == [one.dtype for one in plain]
    for one, other, right in zip(fused, plain, wanted, strict=True):
        assert far(one, right) <= min(most, 1.05 * far(other, right) + 1e-6)


def made(numerics: Numerics) -> WanTransformer:
    """Returns a layer of 14B with adapters that act, of values that bfloat16 holds."""
    torch.manual_seed(0)
    with torch.device("meta"):
        found = WanTransformer(SHAPE, numerics)
    found.to_empty(device=CARD)
    for name, p in found.named_parameters():
        torch.nn.init.normal_(p, std=0.02)
        if "norm" not in name and "modulation" not in name:
            p.data = p.data.bfloat16().to(numerics.compute)
    inject_lora(found.requires_grad_(False), LoraConfig(rank=32), seed=1)
    for value in adapter_parameters(found).values():
        torch.nn.init.normal_(value, std=0.02)
    found.checkpoint_blocks = True
    found.blocks[0].chunk_tokens = TOKENS // 2
    return found


@pytest.fixture(scope="module")
def model() -> WanTransformer:
    return made(MIXED)


def step(found: WanTransformer) -> list[Tensor]:
    """Returns the prediction of a few tokens, one of three frames clean, and the gradients of the adapters in a row."""
    generator = torch.Generator().manual_seed(3)
    latent = torch.randn(1, 16, 3, 20, 16, generator=generator).to(CARD)
    time = torch.tensor([[0.0, 500.0, 500.0]], device=CARD)
    output = found(latent, time, torch.randn(1, 512, 64, generator=generator).to(CARD))
    output.square().mean().backward()
    gradients = [p.grad.flatten() for p in adapter_parameters(found).values() if p.grad is not None]
    found.zero_grad()
    return [output.detach(), torch.cat(gradients)]


def test_the_first_run_uses_every_function_and_a_step_stays_as_exact(model: WanTransformer) -> None:
    plain = step(model)
    try:
        (said,) = first_run.fused_on_cards(model, runs=True)
        assert re.match(r"\d+ fused functions were compiled and tried on cuda:0 in \d+ s", said)
        fused = step(model)
    finally:
        for function, _ in all_of(model):
            function.set_aside()
    exact = step(made(Numerics()))
    for one, other, right in zip(fused, plain, exact, strict=True):
        assert far(one, right) <= 1.1 * far(other, right) < 0.03


NORMS = [(function, "") for function in (first_run.blocks.NORM, first_run.blocks.NORM_BACK)]
SUMS = [(function, "") for function in (first_run.blocks.SUM_NORM, first_run.blocks.SUM_NORM_BACK)]


@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("runs", [1, 3])
def test_a_modulated_norm_is_as_exact(runs: int, residual: torch.dtype) -> None:
    shift, scale = drawn(1, runs, WIDE), drawn(1, runs, WIDE)

    def norm(x: Tensor, update: Tensor) -> tuple[Tensor, ...]:
        return modulated_with(x, update, shift, scale, 1e-6, torch.float32, torch.bfloat16)

    def exact(x: Tensor, update: Tensor) -> tuple[Tensor, ...]:
        both = x + update
        normed = functional.layer_norm(both, (WIDE,), eps=1e-6).unflatten(1, (runs, -1))
        return both, (normed * (1 + scale.double()[:, :, None]) + shift.double()[:, :, None]).flatten(1, 2)

    inputs = [drawn(1, TOKENS, WIDE, dtype=residual), drawn(1, TOKENS, WIDE, dtype=torch.bfloat16)]
    # A residual in bfloat16 is normalized as it was rounded, which the exact pass does not do.
    most = ROUNDED_ONCE if residual == torch.float32 else 2 * ROUNDED_ONCE
    assert_as_exact(norm, exact, inputs, NORMS + SUMS, most=most)
    assert_as_exact(
        lambda x: modulated_with(x, None, shift, scale, 1e-6, torch.float32, torch.bfloat16)[1],
        lambda x: exact(x, torch.zeros_like(x))[1],
        inputs[:1],
        NORMS + SUMS,
    )


def test_a_plain_norm_is_as_exact() -> None:
    norm = nn.LayerNorm(WIDE, 1e-6, device=CARD, dtype=torch.bfloat16).requires_grad_(False)
    norm.weight.data, norm.bias.data = drawn(2, WIDE, dtype=torch.bfloat16).unbind()

    def exact(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 1, functional.layer_norm(x, (WIDE,), norm.weight.double(), norm.bias.double(), 1e-6)

    def plain(x: Tensor) -> tuple[Tensor, Tensor]:
        x, normed = normed_with(x, norm, torch.float32, torch.bfloat16)
        return x * 1, normed

    assert_as_exact(plain, exact, [drawn(1, TOKENS, WIDE)], NORMS + SUMS)


def test_a_rotation_is_as_exact(model: WanTransformer) -> None:
    attention = model.blocks[0].self_attn
    norm = WanRMSNorm(WIDE, 1e-6).requires_grad_(False)
    norm.weight = nn.Parameter(drawn(WIDE, dtype=torch.bfloat16), requires_grad=False)
    grid, head = (3, 10, 8), WIDE // HEADS
    cos, sin = rope_of((Span(grid),), head, dtype=torch.float64, device=CARD)

    def placed(x: Tensor) -> Tensor:
        return attention._placed(x, norm, cos.float(), sin.float()).flatten(2)

    def exact(x: Tensor) -> Tensor:
        x = functional.rms_norm(x, (WIDE,), norm.weight.double(), 1e-6)
        return rotate(x.unflatten(-1, (HEADS, -1)), cos, sin).flatten(2)

    chosen = [(function, "") for function in (first_run.blocks.RMS_ROTATE, first_run.blocks.RMS_ROTATE_BACK)]
    assert_as_exact(placed, exact, [drawn(1, TOKENS, WIDE, dtype=torch.bfloat16)], chosen)


@pytest.mark.parametrize("scheme", ["", "float8_e4m3fn"])
def test_a_lora_in_one_node_is_as_exact_as_separate_nodes(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = nn.Linear(WIDE, LONG, device=CARD, dtype=torch.bfloat16).requires_grad_(False)
    if scheme:
        bias, weight = base.bias, base.weight.to(getattr(torch, scheme))
        base = QuantizedLinear(weight, torch.full((LONG, 1), 0.5, device=CARD), bias=True)
        base.bias = bias
    holder = nn.ModuleDict({"blocks": nn.ModuleList([nn.ModuleDict({"ffn": nn.ModuleList([base])})])})
    inject_lora(holder, LoraConfig(rank=32, alpha=16.0, targets=(r"blocks\.0\.ffn\.0",)), seed=0)
    pair = [*adapter_parameters(holder).values()]
    for value in pair:
        value.data = drawn(*value.shape) * 0.05
    linear, bases = holder.get_submodule("blocks.0.ffn.0"), dequantise_linear(base)
    x = drawn(1, TOKENS, WIDE, dtype=torch.bfloat16)

    def run(function: Callable[[Tensor], Tensor], x: Tensor, trained: list[Tensor]) -> list[Tensor]:
        x = x.detach().requires_grad_()
        output = function(x)
        given = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
        return [output.detach(), *torch.autograd.grad(output, [x, *trained], given.to(CARD, output.dtype))]

    exact_pair = [value.detach().double().requires_grad_() for value in pair]

    def exact(x: Tensor) -> Tensor:
        down, up = exact_pair
        return x @ bases.t() + base.bias.double() + 0.5 * (x @ down.t()) @ up.t()

    wanted, one = run(exact, x.double(), exact_pair), run(linear, x, pair)
    monkeypatch.setattr(LoraAdapter, "in_one_pass", lambda *_, **__: None)
    separate = run(linear, x, pair)
    for found, plain, right in zip(one, separate, wanted, strict=True):
        assert far(found, right) <= min(0.01, 1.05 * far(plain, right) + 1e-6)


def dequantise_linear(linear: nn.Linear) -> Tensor:
    if not isinstance(linear, QuantizedLinear):
        return linear.weight.double()
    assert linear.scale is not None
    return linear.weight.double() * linear.scale.double()


PRODUCTS = {torch.int8: "int8_products", torch.float8_e4m3fn: "fp8_products"}


@pytest.mark.parametrize("dtype", PRODUCTS)
def test_products_in_8_bits_are_as_exact(dtype: torch.dtype) -> None:
    card = abilities_of(CARD)
    if not getattr(card, PRODUCTS[dtype]):
        pytest.skip(f"needs a card with {PRODUCTS[dtype]}; this is {card.what}")
    weight = drawn(LONG, WIDE)
    scale = weight.abs().amax(1, keepdim=True) / (127 if dtype == torch.int8 else torch.finfo(dtype).max)
    narrow = weight / scale
    linear = QuantizedLinear((narrow.round() if dtype == torch.int8 else narrow).to(dtype), scale, bias=True)
    linear.bias = nn.Parameter(drawn(LONG, dtype=torch.bfloat16), requires_grad=False)
    linear.multiply_in(dtype)
    assert linear.matmul == dtype
    values = dequantise_linear(linear)
    functions = [
        (first_run.ROUND, str(dtype)),
        (first_run.FINISH, str(torch.int32 if dtype == torch.int8 else torch.float32)),
    ]
    # A row of normal values rounded to 127 steps each way, or to three bits of mantissa.
    most = 0.012 if dtype == torch.int8 else 0.035
    x = drawn(1, TOKENS, WIDE, dtype=torch.bfloat16)
    assert_as_exact(linear, lambda x: x @ values.t() + linear.bias.double(), [x], functions, most=most)


@pytest.fixture
def fresh_compiler() -> None:
    """Forgets the graphs of other kinds: torch keeps eight of one function."""
    torch.compiler.reset()


def in_float64(weight: Tensor, scale: Tensor | None, whole: Tensor | None, layout: str) -> Tensor:
    """Returns stored * scale (+ offset) in float64, (out, in)."""
    if layout in BLOCKS:
        values, scale, offset = block_parts(weight, layout)
    else:
        assert scale is not None
        values, offset, scale = weight, None, scale_values(scale, layout).double()
        if layout == NVFP4:
            codes = torch.stack([weight >> 4, weight & 15], -1).flatten(1).long()
            half = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=weight.device, dtype=torch.float64)
            values = torch.cat([half, -half])[codes]
        if whole is not None:
            scale = scale * whole.double()
        scale = scale.view(len(weight), -1, 1)
        values = values.double().view(len(weight), scale.shape[1], -1)
    found = values.double() * scale.double()
    return (found if offset is None else found + offset.double()).view(len(weight), -1)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_in_one_pass_is_exact_to_one_rounding(kind: str) -> None:
    for rows, width in ((96, WIDE), (40, LONG)):
        weight, scale, whole, layout = stored(kind, rows, width)
        weight, scale, whole = (None if one is None else one.to(CARD) for one in (weight, scale, whole))
        assert weight is not None
        packed = weight, scale, torch.bfloat16, whole
        plain = dequantise(*packed, layout=layout)
        with used_on(CARD, [(DEQUANTISE, fused_kind(weight, layout))]):
            found = dequantise(*packed, layout=layout)
        exact = in_float64(weight, scale, whole, layout)
        assert found.dtype == torch.bfloat16
        assert found.shape == plain.shape == exact.shape == (rows, width)
        assert found.isfinite().equal(plain.isfinite())
        found, plain, exact = (one.double().nan_to_num(0, 0, 0) for one in (found, plain, exact))
        # Half a unit of bfloat16; where a part of a sum cancels, that of float32 before it.
        assert ((found - exact).abs() <= 2**-8 * exact.abs() + 2**-22 * exact.abs().max()).all()
        # A fused multiply-add rounds once where the plain form rounds twice: one unit, rarely.
        assert ((found - plain).abs() <= 2**-7 * exact.abs() + 2**-22 * exact.abs().max()).all()
        assert float((found != plain).double().mean()) < 1e-3
