"""Fused functions: their arithmetic against float64, a step that runs on them, and what happens to a wrong one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.blocks import MIXED, SHAPE
from tests.support.fused import all_of, used_on
from tests.support.stored import KINDS, stored
from wan_core.checkpoint import dequantise
from wan_core.checkpoint.dequantise import (
    APART,
    INTEGERS_OF,
    SEVERAL,
    dequantise_together,
    fused_inputs,
    fused_kind,
    several_inputs,
)
from wan_core.checkpoint.dequantise import FUSED as DEQUANTISE
from wan_core.checkpoint.integers import INTEGERS, rotated, unpack_integers
from wan_core.kernels import fusing
from wan_core.kernels.fused import NORM, NORM_BACK, NORM_BACK_OVER, RMS_ROTATE, RMS_ROTATE_BACK, fused_norm
from wan_core.kernels.fusing import Fused, Trial, try_on
from wan_core.kernels.rope import Span, rope_of, rotate
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import Numerics, WanTransformer
from wan_core.model.keeping import Policy
from wan_core.precision import QuantizedLinear, first_run
from wan_core.precision.matmul import input_gradient, product

CPU = torch.device("cpu")
WIDE = replace(SHAPE, dim=64, num_heads=2)
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="torch compiles for a CPU with a C++ compiler")


def model(numerics: Numerics = MIXED, kind: str = "") -> WanTransformer:
    torch.manual_seed(0)
    found = WanTransformer(WIDE, numerics)
    for name, p in found.named_parameters():
        torch.nn.init.normal_(p, std=0.2)
        if "norm" not in name and "modulation" not in name:
            p.data = p.data.to(numerics.compute)
    if kind:
        found.blocks[0].ffn[0] = quantized(found.blocks[0].ffn[0], kind)
    inject_lora(found.requires_grad_(False), LoraConfig(rank=2), seed=1)
    for number, adapter in enumerate(adapter_parameters(found).values()):
        adapter.data = torch.randn(adapter.shape, generator=torch.Generator().manual_seed(number))
    found.checkpoint_blocks = True
    for block in found.blocks:
        block.chunk_tokens = 16
    return found


def quantized(linear: nn.Module, kind: str) -> QuantizedLinear:
    assert isinstance(linear, nn.Linear)
    weight = linear.weight.detach()
    made = QuantizedLinear(weight.to(torch.float8_e4m3fn), torch.ones(len(weight), 1), bias=True)
    made.bias = linear.bias
    if kind == "products":
        made.multiply_in(torch.float8_e4m3fn)
    return made


def step(found: WanTransformer, *, clips: int = 1, runs: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    latent = torch.randn(clips, 16, 3, 8, 6, generator=generator)
    time = torch.full((clips, 3) if runs else (clips,), 500.0)
    if runs:
        time[:, 0] = 0
    output = found(latent, time, torch.randn(clips, 512, 8, generator=generator))
    output.square().mean().backward()
    gradients = [p.grad for p in adapter_parameters(found).values() if p.grad is not None]
    found.zero_grad()
    return [output.detach(), *gradients]


@contextmanager
def all_fused(found: WanTransformer, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Inside, every function is used on the CPU, as its own body and uncompiled; gives the names of those that ran."""
    ran = list[str]()

    def noted(body: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            ran.append(body.__name__)
            return body(*inputs)

        return run

    functions = all_of(found)
    for function, _ in functions:
        monkeypatch.setattr(function, "_compiled", noted(function.body))
    with used_on(CPU, functions):
        yield ran


def far(found: list[Tensor], wanted: list[Tensor]) -> float:
    """Returns the relative L2 distance of the outputs, or of all gradients together, whichever is larger."""

    def distance(one: list[Tensor], other: list[Tensor]) -> float:
        a, b = (torch.cat([value.double().flatten() for value in values]) for values in (one, other))
        return float((a - b).norm() / b.norm())

    return max(distance(*pair) for pair in ((found[:1], wanted[:1]), (found[1:], wanted[1:])) if pair[0])


EXACT = Numerics(
    compute=torch.float32, norm=torch.float32, qk_norm=torch.float32, modulation=torch.float32, rope=torch.float32
)


@pytest.mark.parametrize(("clips", "runs"), [(1, False), (2, True)])
def test_a_step_on_fused_functions_is_the_plain_step(clips: int, runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = model(EXACT)
    plain = step(found, clips=clips, runs=runs)
    with all_fused(found, monkeypatch) as ran:
        fused = step(found, clips=clips, runs=runs)
    assert {"_norm", "_norm_back", "_sum_norm", "_sum_norm_back", "_rms_rotate", "_rms_rotate_back"} <= {*ran}
    assert far(fused, plain) < 5e-6
    assert [a.equal(b) for a, b in zip(step(found, clips=clips, runs=runs), plain, strict=True)] == [True] * len(plain)


def test_in_bf16_a_fused_step_is_as_near_to_float32_as_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, found = step(model(EXACT)), model()
    plain = step(found)
    with all_fused(found, monkeypatch):
        assert far(step(found), exact) < 1.1 * far(plain, exact)


def test_a_policy_keeps_fused_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    found = model()
    with all_fused(found, monkeypatch) as ran:
        wanted, again = step(found), ran.count("_rms_rotate")
        found.checkpoint_policy = Policy(saved=frozenset({"xq_out", "xk_out"}))
        ran.clear()
        kept = step(found)
    assert (again, ran.count("_rms_rotate")) == (8, 4)  # two blocks, q and k; the second pass has them
    assert all(a.equal(b) for a, b in zip(kept, wanted, strict=True))


@pytest.mark.parametrize("kind", ["values", "products"])
def test_a_step_on_fused_weights_is_the_plain_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = model(kind=kind)
    plain = step(found)
    with all_fused(found, monkeypatch) as ran:
        fused = step(found)
    assert {"_in_one_pass"} <= {*ran} if kind == "values" else {"_rounded"} <= {*ran}
    assert far(fused, plain) < 0.06  # of 16 bits; the two 8-bit roundings may fall on either side


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_in_one_pass_has_the_bits_of_the_plain_form(kind: str) -> None:
    weight, scale, whole, layout = stored(kind)
    wanted = dequantise(weight, scale, torch.bfloat16, whole, layout=layout)
    found = DEQUANTISE.body(*fused_inputs(weight, scale, torch.bfloat16, whole, layout)).view(len(weight), -1)
    assert found.shape == (len(weight), 512) == wanted.shape
    assert found.nan_to_num(7).equal(wanted.nan_to_num(7))
    assert found.isnan().equal(wanted.isnan())


TOGETHER = [kind for kind in KINDS if stored(kind)[2] is None and stored(kind)[3] not in APART]


@pytest.mark.parametrize("many", [2, 3])
@pytest.mark.parametrize("kind", TOGETHER)
def test_weights_dequantised_together_have_the_bits_of_each(
    kind: str, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, scale, _, layout = stored(kind)
    weights = [weight.roll(at, 0) for at in range(many)]
    scales = [scale if scale is None or scale.numel() == 1 else scale.roll(at, 0) for at in range(many)]
    assert dequantise_together(weights, scales, torch.bfloat16, layout) is None, "a CPU has no such kernel"
    monkeypatch.setattr(SEVERAL, "_compiled", SEVERAL.body)
    with used_on(CPU, [(SEVERAL, fused_kind(weight, layout))]):
        found = dequantise_together(weights, scales, torch.bfloat16, layout)
    assert found is not None
    for one, own, of_own in zip(found, weights, scales, strict=True):
        assert one.nan_to_num(7).equal(dequantise(own, of_own, torch.bfloat16, layout=layout).nan_to_num(7))


@pytest.mark.parametrize("layout", ["INT4_CONVROT_256", "W4A8_CONVROT_256", "W6A8_CONVROT_256"])
def test_integers_in_one_pass_have_the_bits_of_the_plain_form(layout: str) -> None:
    known, draw = INTEGERS[layout], torch.Generator().manual_seed(8)
    packed = torch.randint(0, 126, (4, known.row_bytes(512)), dtype=torch.uint8, generator=draw)
    for levels in (None, torch.randn(16, generator=draw) * 10) if layout.startswith("W4") else (None,):
        wanted = unpack_integers(packed, layout, levels)
        assert rotated(INTEGERS_OF.body(packed, levels, layout), layout).equal(wanted)


def test_a_gradient_takes_the_place_of_what_was_normed(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(6))
    x, of_normed, of_x, scale = draw(1, 12, 64), draw(1, 12, 64), draw(1, 12, 64), draw(1, 1, 64)
    functions = (NORM, NORM_BACK, NORM_BACK_OVER)
    for function in functions:
        monkeypatch.setattr(function, "_compiled", function.body)
    found: list[Tensor] = []
    for overwrites in (False, True):
        given = x.clone().requires_grad_()
        both = fused_norm(given, scale, scale, 1e-6, torch.float32, one_more=False, update=None, overwrites=overwrites)
        torch.autograd.backward(both, (of_x, of_normed))
        assert given.grad is not None
        found.append(given.grad)
        assert given.detach().equal(given.grad if overwrites else x)
    assert found[0].equal(found[1])


def wrong(function: Fused, how: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns what a trial says of a function whose compiled form is `how`."""
    monkeypatch.setattr(function, "_compiled", how)
    inputs = torch.randn(4, 32), torch.randn(1, 32), torch.randn(1, 32), 1e-6, True, torch.bfloat16
    return try_on(CPU, [Trial(function, lambda: inputs)])


def test_a_wrong_function_is_set_aside_and_a_right_one_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def a_little_off(*inputs: Any) -> Any:
        normed, *rest = NORM.body(*inputs)
        normed[1, 5] *= 1.05
        return normed, *rest

    def raises(*_inputs: Any) -> Any:
        raise RuntimeError("no such architecture: sm_00\nmore")

    aside = "; its plain form is used, which is slower and gives the same results."
    x = torch.zeros(1)
    assert wrong(NORM, a_little_off, monkeypatch) == [
        f"The fused function norm differs from its plain form on cpu{aside}"
    ]
    assert not NORM.on(x)
    assert wrong(NORM, raises, monkeypatch) == [
        f"The fused function norm fails (no such architecture: sm_00) on cpu{aside}"
    ]
    (said,) = wrong(NORM, NORM.body, monkeypatch)
    assert said.startswith("1 fused functions were compiled and tried on cpu in ")
    assert NORM.on(x)
    NORM.set_aside(CPU)


def test_a_function_that_fails_for_one_kind_of_weight_is_used_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_for_int8(*inputs: Any) -> Tensor:
        return DEQUANTISE.body(*inputs) * (1.1 if inputs[5] == torch.int8 else 1)

    def trial(kind: str) -> Trial:
        weight, scale, whole, layout = stored(kind)
        inputs = fused_inputs(weight, scale, torch.bfloat16, whole, layout)
        return Trial(DEQUANTISE, lambda: inputs, fused_kind(weight, layout))

    monkeypatch.setattr(DEQUANTISE, "_compiled", wrong_for_int8)
    wrong, *said = try_on(CPU, [trial("Q4_K"), trial("int8"), trial("NVFP4"), trial("int8")])
    assert wrong.startswith("The fused function dequantise (torch.int8) differs from its plain form on cpu; ")
    assert len(said) == 1
    used = [kind for kind in ("Q4_K", "torch.int8", "NVFP4") if DEQUANTISE.on(torch.zeros(1), kind)]
    DEQUANTISE.set_aside(CPU)
    assert used == ["Q4_K", "NVFP4"]


@contextmanager
def compiled_for_a_cpu(trials: list[Trial]) -> Iterator[None]:
    """Inside, what these trials try is compiled, found right and used."""
    torch.compiler.reset()
    try:
        (said,) = try_on(CPU, trials)
        assert "compiled and tried on cpu" in said
        yield
    finally:
        for trial in trials:
            trial.function.set_aside()


@needs_compiler
@pytest.mark.slow
@pytest.mark.lasts(8)
@pytest.mark.filterwarnings("ignore")  # of the compiler, about what it compiles with
def test_compiled_for_a_cpu_both_ways_are_those_of_float64() -> None:
    """All four functions in one graph, since a C++ compiler takes its seconds for each; alone: the soak test below."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(5))
    x, weight, of = draw(1, 12, 64).bfloat16(), draw(64).bfloat16(), draw(1, 12, 64).bfloat16()
    wide, (scale, shift), more = draw(12, 64), draw(2, 1, 64), draw(12, 64)
    cos, sin = rope_of((Span((3, 2, 2)),), 32, dtype=torch.float64, device=CPU)

    def turned(x: Tensor) -> Tensor:
        normed = nn.functional.rms_norm(x, (64,), weight.double(), 1e-6)
        return rotate(normed.unflatten(-1, (2, 32)), cos, sin).flatten(2)

    def modulated(x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, (64,), eps=1e-6) * (1 + scale.double()) + shift.double()

    def fused(
        x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, of: Tensor, wide: Tensor, *more: Tensor
    ) -> tuple[Tensor, ...]:
        scale, shift, of_wide = more
        placed, inverse = RMS_ROTATE.body(x, weight, 1e-6, cos, sin)
        back = RMS_ROTATE_BACK.body(of, x, weight, inverse, cos, sin)
        normed, mean, inverse = NORM.body(wide, scale, shift, 1e-6, True, torch.bfloat16)
        return placed, back, normed, NORM_BACK.body(of[0], of_wide, wide, mean, inverse, scale, True)

    from torch._inductor import config

    torch.compiler.reset()
    with config.patch({"cpp.vec_isa_ok": True}):  # what the processor says of itself, without compiling a test of it
        found = fusing.compiled(fused)(x, weight, cos.float(), sin.float(), of, wide, scale, shift, more)
    near, near_norm = [*found[:2]], [*found[2:]]
    # bfloat16 results: one rounding each
    assert far(near, both_ways(turned, x.double(), of.double())) < 2.5e-3
    normed, of_normed = both_ways(modulated, wide.double(), of[0].double())
    assert far(near_norm, [normed, of_normed + more]) < 2.5e-3
    assert far(near_norm[1:], [of_normed + more]) < 1e-6


@needs_compiler
@pytest.mark.soak
@pytest.mark.lasts(120)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["", "values", "products"])
def test_a_step_on_functions_compiled_for_a_cpu_is_the_plain_step(kind: str) -> None:
    found = model(kind=kind)
    plain = step(found, clips=2, runs=True)
    with compiled_for_a_cpu(first_run.trials(found, CPU, runs=True)):
        fused = step(found, clips=2, runs=True)
    assert fusing.later_remarks() == []
    assert far(fused, plain) < 0.03


def on_a_card(function: Fused, inputs: tuple[Any, ...]) -> tuple[tuple[int, int], int]:
    """Returns kernels and bytes by the compiler's account for a card, and the bytes of inputs and results."""
    from benchmarks.fused_kernels import kernels_of

    results = function.body(*inputs)
    tensors = (*inputs, *(results if isinstance(results, tuple) else (results,)))
    least = sum(one.numel() * one.element_size() for one in tensors if isinstance(one, Tensor))
    return kernels_of(function.body, *inputs), least


soak = partial(pytest.param, marks=pytest.mark.soak)


@pytest.mark.slow
@pytest.mark.lasts(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["rms_rotate_back", *map(soak, ("norm", "norm_back", "sum_norm", "sum_norm_back", "rms_rotate"))]
)
def test_a_card_runs_one_kernel_that_reads_and_writes_nothing_twice(name: str) -> None:
    with torch.device("meta"):  # at the real width: the compiler would split longer sums, or keep what it reads twice
        wide = WanTransformer(replace(SHAPE, dim=5120, num_heads=40, num_layers=1), MIXED)
    trial = next(one for one in first_run.trials(wide, CPU, runs=True) if one.function.name == name)
    found, least = on_a_card(trial.function, trial.inputs())
    assert found == (1, least)


@pytest.mark.slow
@pytest.mark.lasts(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", list(map(soak, KINDS)))
def test_a_card_dequantises_a_weight_in_one_kernel(kind: str) -> None:
    weight, scale, whole, layout = stored(kind)
    found, least = on_a_card(DEQUANTISE, fused_inputs(weight, scale, torch.bfloat16, whole, layout))
    assert found == (1, least)


@pytest.mark.slow
@pytest.mark.lasts(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", list(map(soak, TOGETHER)))
def test_a_card_dequantises_three_weights_in_one_kernel(kind: str) -> None:
    weight, scale, _, layout = stored(kind)
    found, least = on_a_card(SEVERAL, several_inputs([weight] * 3, [scale] * 3, torch.bfloat16, layout))
    assert found == (1, least)


def both_ways(function: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    found = function(x)
    return [found.detach(), *torch.autograd.grad(found, x, gradient.to(found.dtype))]


def test_products_in_8_bits_are_as_near_on_fused_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(2)
    rows, of = torch.randn(40, 64, generator=generator), torch.randn(40, 48, generator=generator)
    weight = torch.randint(-127, 128, (48, 64), generator=generator, dtype=torch.int8)
    scale, bias = torch.rand(48, 1, generator=generator) / 127, torch.randn(48, generator=generator)
    plain = [product(rows, weight, scale, bias), input_gradient(of, weight, scale)]
    functions = [(first_run.ROUND, str(torch.int8)), (first_run.FINISH, str(torch.int32))]
    for function, _ in functions:
        monkeypatch.setattr(function, "_compiled", function.body)
    with used_on(CPU, functions):
        fused = [product(rows, weight, scale, bias), input_gradient(of, weight, scale)]
    assert far(fused, plain) < 1e-5
