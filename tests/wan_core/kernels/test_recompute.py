"""What is made again instead of kept: the same bits, less memory, and no quarrel with those who decide otherwise."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tests.support.blocks import MIXED, SHAPE, block_inputs, new_block
from wan_core.kernels import modulate
from wan_core.kernels.modulate import rms_norm
from wan_core.kernels.recompute import remade
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import Numerics
from wan_core.model.block import WanBlock


def adapted(numerics: Numerics) -> WanBlock:
    """A block with filled adapters on its ten linears; only they train, as in a run."""
    block = new_block(numerics)
    inject_lora(torch.nn.ModuleDict({"blocks": torch.nn.ModuleList([block])}), LoraConfig(rank=2), seed=1)
    for number, adapter in enumerate(adapter_parameters(block).values()):
        adapter.data = torch.randn(adapter.shape, generator=torch.Generator().manual_seed(number))
    return block


def gradients(
    numerics: Numerics, around: AbstractContextManager[Any] | None = None, recompute: Any = None, passes: int = 1
) -> dict[str, Tensor]:
    block, inputs = adapted(numerics), block_inputs(numerics)
    with around or nullcontext():
        loss = block(*inputs, recompute=recompute).square().mean()
    for number in range(passes):
        loss.backward(retain_graph=number + 1 < passes)
    found = {name: p.grad for name, p in adapter_parameters(block).items() if p.grad is not None}
    assert len(found) == 20
    assert inputs[0] is not None
    assert inputs[0].grad is not None
    return found | {"tokens": inputs[0].grad}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Everything is kept, as if `remade` did not exist."""
    monkeypatch.setattr("wan_core.model.block.remade", lambda _made, _make: nullcontext())
    return monkeypatch


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert torch.equal(gradient, expected[name]), name


@pytest.mark.parametrize("numerics", [Numerics(), MIXED], ids=["fp32", "mixed"])
def test_making_again_changes_no_bit_of_a_gradient(numerics: Numerics, kept: pytest.MonkeyPatch) -> None:
    expected = gradients(numerics)
    kept.undo()
    assert_same_bits(gradients(numerics), expected)
    assert_same_bits(gradients(numerics, recompute=partial(checkpoint, use_reentrant=False)), expected)
    assert_same_bits(gradients(numerics, recompute=partial(checkpoint, use_reentrant=True)), expected)


def test_a_graph_that_is_kept_can_be_walked_twice(kept: pytest.MonkeyPatch) -> None:
    expected = gradients(Numerics(), passes=2)
    kept.undo()
    assert_same_bits(gradients(Numerics(), passes=2), expected)


def test_an_outer_hook_sees_every_tensor_and_ours_stays_out() -> None:
    """Offload by hooks, as `save_on_cpu` does it: torch would silently skip the outer pair."""
    seen: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor.numel())
        return tensor

    expected = gradients(Numerics())
    assert_same_bits(gradients(Numerics(), saved_tensors_hooks(pack, lambda tensor: tensor)), expected)
    tokens = 2 * 12
    assert seen.count(tokens * SHAPE.ffn_dim) >= 2, "the GELU's input and its output, for the linear behind it"
    assert_same_bits(gradients(Numerics(), save_on_cpu()), expected)


def test_less_is_kept_and_only_where_it_can_be_made_again() -> None:
    made = torch.ones(4, 6) * 2
    source = torch.ones(4, 6)
    weight = torch.ones(6, 3, requires_grad=True)
    calls: list[int] = []

    def make() -> Tensor:
        calls.append(1)
        return source * 2

    with remade(made, make):
        first, second = made @ weight, made.view(2, 12) @ torch.ones(12, 3, requires_grad=True)
        other = (source * 3) @ weight
    made.zero_()  # nobody looks at it any more
    (first.sum() + second.sum() + other.sum()).backward()
    assert len(calls) == 1, "two uses share one result"
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full((6, 3), 4 * 2.0 + 4 * 3.0))


def test_asking_whether_others_decide_leaves_their_hooks_and_ours_as_they_were() -> None:
    seen: list[int] = []
    with saved_tensors_hooks(lambda tensor: seen.append(1) or tensor, lambda tensor: tensor):
        with remade(torch.ones(2), lambda: torch.ones(2)):
            torch.ones(2, requires_grad=True).exp()
        torch.ones(2, requires_grad=True).exp()
    assert len(seen) == 2, "the outer pair saw what was kept inside and after"
    with remade(torch.ones(2), lambda: torch.ones(2)), remade(torch.ones(3), lambda: torch.ones(3)):
        torch.ones(3, requires_grad=True).exp()


def test_what_is_made_inside_of_another_is_made_again_too() -> None:
    """As the norm of queries inside of a self-attention, whose input is made again: a GPU kept it in float32."""
    source = torch.linspace(1, 2, 6, requires_grad=True)
    outer, calls = source * 2, []

    def make(name: str, factor: float) -> Tensor:
        calls.append(name)
        return source.detach() * factor

    with remade(outer, partial(make, "outer", 2)):
        first = outer.square()
        inner = source * 3
        with remade(inner, partial(make, "inner", 3)):
            second = inner.square() + outer.square()
        third = (source * 5).square()
    with torch.no_grad():
        outer.zero_(), inner.zero_()  # nobody looks at them any more
    (first + second + third).sum().backward()
    assert sorted(calls) == ["inner", "outer"], "two uses share one result"
    assert torch.equal(source.grad, source.detach() * 2 * (4 + 9 + 4 + 25))


def test_inside_of_ours_hooks_of_others_are_left_alone() -> None:
    seen: list[int] = []
    source = torch.ones(2, requires_grad=True)
    theirs = saved_tensors_hooks(lambda tensor: seen.append(1) or tensor, lambda tensor: tensor)
    with remade(torch.ones(3), lambda: torch.ones(3)), theirs:
        made = source * 2
        with remade(made, lambda: torch.zeros(2)):
            out = made.exp()
    out.sum().backward()
    assert seen
    assert torch.allclose(source.grad, torch.full((2,), 2 * 2.718281828**2))


class OnCuda(Tensor):
    """A CPU tensor that says it lies on a GPU."""

    is_cuda = True


@pytest.mark.parametrize(
    ("x", "has_kernel", "torchs"),
    [
        (OnCuda, True, True),
        (OnCuda, False, False),  # torch 2.8 and older: a composite of many passes
        (Tensor, True, False),
    ],
)
def test_torchs_rms_norm_is_taken_only_where_it_is_one_kernel(
    monkeypatch: pytest.MonkeyPatch, x: type[Tensor], has_kernel: bool, torchs: bool
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(modulate, "_HAS_FUSED_RMS_NORM", has_kernel)
    monkeypatch.setattr(modulate.functional, "rms_norm", lambda x, *_: taken.append(1) or x)
    rms_norm(torch.ones(2, 4).as_subclass(x), torch.ones(4), 1e-6, torch.float32)
    assert bool(taken) is torchs


def test_without_gradients_nothing_is_hooked() -> None:
    with torch.no_grad():
        assert isinstance(remade(torch.ones(2), lambda: torch.ones(2)), nullcontext)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_our_rms_norm_in_a_narrow_dtype_is_no_worse_than_torchs(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    x = (5 * torch.randn(2, 7, 5120, generator=generator)).to(dtype).requires_grad_()
    weight = (torch.randn(5120, generator=generator) + 1).to(dtype)
    out_gradient = torch.randn(2, 7, 5120, generator=generator).to(dtype)
    exact = x.detach().double().requires_grad_()
    wanted = torch.nn.functional.rms_norm(exact, (5120,), weight.double(), 1e-6)
    (wanted_gradient,) = torch.autograd.grad(wanted, exact, out_gradient.double())
    errors = []
    for output in (
        rms_norm(x, weight, 1e-6, dtype),
        torch.nn.functional.rms_norm(x, (5120,), None, 1e-6) * weight,
    ):
        (gradient,) = torch.autograd.grad(output, x, out_gradient)
        pairs = ((output.detach(), wanted.detach()), (gradient, wanted_gradient))
        errors.append([float((a.double() - b).norm() / b.norm()) for a, b in pairs])
    for mine, theirs in zip(*errors, strict=True):
        assert mine <= 1.1 * theirs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_norm_of_16_bits_rounds_what_is_normalised_and_a_wide_one_rounds_once(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, compiled: bool
) -> None:
    """By hand, as diffusers' RMSNorm has it; torch's kernel is taken on a GPU and where it is compiled."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(64, 256, generator=generator).to(dtype)
    weight = torch.randn(256, generator=generator) + 1
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiled)
    narrow, wide = (rms_norm(x, weight, 1e-6, inside) for inside in (dtype, torch.float32))
    assert narrow.dtype == wide.dtype == dtype
    by_hand = exact.to(dtype) * weight.to(dtype), (exact * weight.double()).to(dtype)
    # A sum of squares in another order moves some value in a thousand by its last bit.
    for found, wanted in zip((narrow, wide), by_hand, strict=True):
        assert float((found != wanted).float().mean()) < 5e-3
    changed = float((narrow != wide).float().mean())
    assert 0.2 < changed < 0.8, "the switch that says so would change nothing"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_our_rms_norm_is_torchs_with_its_gradients(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    found = []
    for ours in (True, False):
        generator.manual_seed(4)
        x = torch.randn(2, 5, 48, generator=generator).to(dtype).requires_grad_()
        weight = (torch.randn(48, generator=generator) + 1).requires_grad_()
        wide = x.to(torch.float32)
        plain = torch.nn.functional.rms_norm(wide, (48,), weight, 1e-6).to(dtype)
        output = rms_norm(x, weight, 1e-6, torch.float32) if ours else plain
        output.backward(torch.randn(2, 5, 48, generator=generator).to(dtype))
        found.append((output.detach(), x.grad, weight.grad))
    tolerance = 2e-6 if dtype == torch.float32 else 1.6e-2
    for mine, theirs in zip(*found, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=tolerance)
