"""Attention kernels: each choice is followed or refused in one sentence."""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.golden import Golden
from wan_core.abilities import Abilities, abilities_of
from wan_core.errors import ConfigError, DependencyError
from wan_core.kernels.backends import (
    ATTENTIONS,
    attention_kernel,
    check_attention,
    check_preview_attention,
    long_attention,
    preview_kernel,
    sdpa_choice,
)

CPU = torch.device("cpu")
PACKAGES = {
    "flash_attn": "flash_attn",
    "flash_attn_3": "flash_attn_interface",
    "flash_attn_4": "flash_attn.cute",
    "xformers": "xformers",
}


class Seen(TorchDispatchMode):
    """Names of the operators that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 12, 3, 8, generator=generator, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize(("name", "operator"), [("sdpa", "flash"), ("sdpa_flash", "flash"), ("sdpa_math", "bmm")])
def test_the_kernel_that_was_chosen_is_the_one_that_runs(name: str, operator: str) -> None:
    query, key, value = inputs()
    with Seen() as seen:
        found = attention_kernel(name)(query, key, value)
    assert any(operator in name for name in seen.names)
    assert any("flash" in name for name in seen.names) == (operator == "flash")
    scores = torch.einsum("bnhd,bmhd->bhnm", query, key) / 8**0.5
    expected = torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), value)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "sdpa_math"])
def test_a_kernel_switches_nothing_for_other_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards of one step, and experts at once, have a thread each."""

    def switched(*_given: Any) -> None:
        raise AssertionError("for all threads")

    kernel, given = attention_kernel(name), [part.bfloat16() for part in inputs()]
    for backend in ("flash", "mem_efficient", "math", "cudnn"):
        monkeypatch.setattr(torch._C, f"_set_sdp_use_{backend}", switched)
    attended = kernel(*(part.to("meta") for part in given))
    assert attended.shape == given[0].shape


@pytest.mark.parametrize("name", ["sdpa_flash", "sdpa_math"])
def test_every_kernel_predicts_what_the_reference_does(name: str) -> None:
    golden = Golden("i2v")
    model = golden.model()
    model.use_attention(name)
    output = model(*golden.inputs())
    torch.testing.assert_close(output.double(), golden["expected.output_fp64"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["sdpa", "sdpa_flash", "sdpa_math"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_that_works_here_passes(name: str, dtype: torch.dtype) -> None:
    check_attention(name, device=CPU, dtype=dtype, head_dim=128)


@pytest.mark.parametrize("name", ["sdpa_efficient", "sdpa_cudnn"])
def test_a_kernel_that_this_device_lacks_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf'"{name}" cannot train on cpu in float32 with 128 .* Choose sdpa'):
        check_attention(name, device=CPU, dtype=torch.float32, head_dim=128)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(
        DependencyError, match=f"needs the package {PACKAGES[name]}, which is not installed. Install it"
    ):
        check_attention(name, device=CPU, dtype=torch.bfloat16, head_dim=128)


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[int, ...]]:
    """Puts a package of this name in place that attends as its documentation says: (B, N, heads, head_dim)."""
    shapes: list[tuple[int, ...]] = []

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        shapes.append(tuple(query.shape))
        return attention_kernel("sdpa_math")(query, key, value)

    module = ModuleType(PACKAGES[name])
    module.__spec__ = importlib.machinery.ModuleSpec(PACKAGES[name], None)
    module.flash_attn_func = attend  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PACKAGES[name], module)
    if name == "xformers":
        operators = ModuleType("xformers.ops")
        operators.memory_efficient_attention = attend  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "xformers.ops", operators)
    return shapes


@pytest.mark.parametrize("name", PACKAGES)
def test_an_installed_package_is_given_its_own_layout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = stand_in(monkeypatch, name)
    golden = Golden("i2v")
    model = golden.model()
    model.use_attention(name)
    output = model(*golden.inputs())
    torch.testing.assert_close(output.double(), golden["expected.output_fp64"], atol=1e-4, rtol=0)
    assert shapes == [(1, 36, 2, 28)] * 6  # self, text and image attention of two blocks


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_for_cuda_is_refused_on_another_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, name)
    with pytest.raises(ConfigError, match=f'"{name}" runs on CUDA devices and this job uses cpu. Choose sdpa'):
        check_attention(name, device=CPU, dtype=torch.bfloat16, head_dim=128)


@pytest.mark.parametrize("name", ["sage", "sageattn"])
def test_sage_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=f'"{name}" cannot train: .* has no backward pass'):
        check_attention(name, device=CPU, dtype=torch.bfloat16, head_dim=128)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert ATTENTIONS[0] == "sdpa"
    with pytest.raises(ConfigError, match=r'"sdpa_flas" is unknown. Did you mean "sdpa_flash"'):
        attention_kernel("sdpa_flas")


def test_what_torch_chooses_for_sdpa_is_told() -> None:
    here = {"device": torch.device("cpu"), "dtype": torch.bfloat16, "head_dim": 128}
    assert sdpa_choice(**here) == "flash_attention"
    with sdpa_kernel(SDPBackend.MATH):
        assert sdpa_choice(**here) == "math"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none")
def test_on_a_gpu_bfloat16_has_a_fast_kernel_and_float64_has_none() -> None:
    card = torch.device("cuda", 0)
    assert sdpa_choice(device=card, dtype=torch.bfloat16, head_dim=128) in ("flash_attention", "cudnn_attention")
    assert sdpa_choice(device=card, dtype=torch.float64, head_dim=128) == "math"


def test_auto_takes_the_kernel_of_the_card_for_long_sequences_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = stand_in(monkeypatch, "flash_attn_3")
    kernel = attention_kernel("auto", "flash_attn_3")
    for queries, keys in ((4096, 4096), (4096, 512), (4095, 4095)):
        query, key = (torch.zeros(1, rows, 1, 8) for rows in (queries, keys))
        assert kernel(query, key, key).shape == query.shape
    assert shapes == [(1, 4096, 1, 8)]
    assert attention_kernel("auto").args == (attention_kernel("sdpa"),)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("capability", "trains", "chosen"),
    [
        ((12, 0), {"flash_attn_4", "sdpa_cudnn"}, "flash_attn_4"),
        ((9, 0), {"flash_attn_4", "sdpa_cudnn"}, "flash_attn_4"),
        ((9, 0), {"sdpa_cudnn", "flash_attn"}, "sdpa_cudnn"),
        ((8, 9), {"sdpa_cudnn", "flash_attn"}, "flash_attn"),
        ((8, 9), {"sdpa_cudnn"}, "sdpa"),
        ((7, 5), {"flash_attn"}, "sdpa"),
    ],
)
def test_auto_takes_the_fastest_that_trains_on_the_card(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], trains: set[str], chosen: str
) -> None:
    def check(name: str, **_: Any) -> None:
        if name not in trains:
            raise DependencyError(f"{name} is not installed. Get it.")

    monkeypatch.setattr("wan_core.kernels.backends.check_attention", check)
    monkeypatch.setattr(
        "wan_core.kernels.backends.abilities_of", lambda _: Abilities(name="card", capability=capability)
    )
    here = {"dtype": torch.bfloat16, "head_dim": 128}
    assert long_attention(device=torch.device("cuda", 0), **here) == chosen
    assert long_attention(device=CPU, **here) == "sdpa"


REAL = 20_280
"""tokens of 832x480 with 49 frames"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_on_a_gpu_the_real_length_has_a_kernel_without_scores(dtype: torch.dtype) -> None:
    card = torch.device("cuda", 0)
    chosen = sdpa_choice(device=card, dtype=dtype, head_dim=128, tokens=REAL)
    assert (chosen == "efficient_attention") == (dtype == torch.float32), chosen
    assert abilities_of(card).fuses_attention(dtype) == (chosen != "math"), "as the plan counts it"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none")
@pytest.mark.parametrize("name", [name for name in ATTENTIONS if name != "sdpa_math"])
def test_on_a_gpu_each_kernel_trains_at_the_real_length(name: str) -> None:
    card = torch.device("cuda", 0)
    try:
        check_attention(name, device=card, dtype=torch.bfloat16, head_dim=128)
    except DependencyError as error:
        pytest.skip(str(error))
    draw = torch.Generator(card).manual_seed(0)
    given = [torch.randn(1, REAL, 4, 128, generator=draw, device=card, dtype=torch.bfloat16) for _ in range(3)]
    for one in given:
        one.requires_grad_()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = attention_kernel(name)(*given)
    found.float().square().mean().backward()
    assert torch.cuda.max_memory_allocated() - before < 2 * 4 * REAL**2 / 4, "a quarter of the scores"
    query, key, value = (one.detach()[:, :, 0].double() for one in given)
    expected = (query[:, :64] @ key.mT / 128**0.5).softmax(-1) @ value
    torch.testing.assert_close(found[:, :64, 0].double(), expected, atol=2e-3, rtol=2e-2)
    assert all(one.grad is not None and bool(one.grad.isfinite().all()) for one in given)


def sage(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Puts a package sageattention in place; returns whether gradients were on, a call each."""
    calls: list[bool] = []

    def sageattn(query: Tensor, key: Tensor, value: Tensor, tensor_layout: str, is_causal: bool) -> Tensor:
        assert (tensor_layout, is_causal) == ("NHD", False)
        calls.append(torch.is_grad_enabled())
        return attention_kernel("sdpa_math")(query, key, value)

    module = ModuleType("sageattention")
    module.__spec__ = importlib.machinery.ModuleSpec("sageattention", None)
    module.sageattn = sageattn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sageattention", module)
    return calls


def test_sage_renders_previews_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, golden = sage(monkeypatch), Golden("i2v")
    model = golden.model()
    with torch.no_grad(), model.previewing_with("sage"):
        output = model(*golden.inputs())
    torch.testing.assert_close(output.double(), golden["expected.output_fp64"], atol=1e-4, rtol=0)
    assert calls == [False] * 6
    model(*golden.inputs())
    with model.previewing_with("as in training"):
        model(*golden.inputs())
    assert len(calls) == 6
    with model.previewing_with("sage"), pytest.raises(AssertionError, match="no backward pass"):
        model(*golden.inputs())


def test_sage_is_refused_where_it_is_missing_or_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"device": CPU, "dtype": torch.bfloat16, "head_dim": 128}
    check_preview_attention("as in training", **here)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(DependencyError, match=r"package sageattention, .* Install it \(.*\), or choose as in training"):
        check_preview_attention("sage", **here)
    monkeypatch.undo()
    sage(monkeypatch)
    with pytest.raises(ConfigError, match='"sage" runs on CUDA devices and this job uses cpu'):
        check_preview_attention("sage", **here)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none")
def test_on_a_gpu_sage_is_near_the_kernel_of_training() -> None:
    card = torch.device("cuda", 0)
    try:
        check_preview_attention("sage", device=card, dtype=torch.bfloat16, head_dim=128)
    except DependencyError as error:
        pytest.skip(str(error))
    draw = torch.Generator(card).manual_seed(0)
    given = [torch.randn(1, REAL, 4, 128, generator=draw, device=card, dtype=torch.bfloat16) for _ in range(3)]
    kernel = preview_kernel("sage")
    assert kernel is not None
    with torch.no_grad():
        found, expected = kernel(*given).float(), attention_kernel("sdpa")(*given).float()
    assert (found - expected).norm() < 0.1 * expected.norm()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none")
def test_on_a_gpu_auto_is_no_slower_at_the_real_length() -> None:
    card = torch.device("cuda", 0)
    chosen = long_attention(device=card, dtype=torch.bfloat16, head_dim=128)

    def seconds(name: str) -> float:
        given = [torch.randn(1, REAL, 40, 128, device=card, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
        kernel, times = attention_kernel(name, chosen), []
        for _ in range(4):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            kernel(*given).backward(given[0].detach())
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1000)
        return min(times)

    auto, plain = seconds("auto"), seconds("sdpa")
    assert auto < 1.05 * plain, f"{chosen} {auto:.4f} s, sdpa {plain:.4f} s"
