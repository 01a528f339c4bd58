"""The table of the kinds of devices, with stand-ins for what torch says of them: no Intel or Apple is met here."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.support.blocks import SHAPE
from tests.support.cards import AMPERE, put_in
from wan_core import accelerator
from wan_core.abilities import abilities_of
from wan_core.accelerator import backend_of, default_device, gpu_names, has_float64, is_here, memory_of
from wan_core.errors import ConfigError, DependencyError, PlacementError
from wan_core.job.remarks import notes_on_cards
from wan_core.kernels import check_attention
from wan_core.load import ModelPlan
from wan_core.model import WanTransformer, check_compile
from wan_core.model.compiled import PlainMode
from wan_core.placement import PlacementConfig, free_memory_here
from wan_core.placement.copies import Copies, copies_of
from wan_core.placement.model_offload import device_memory_ran_out
from wan_core.precision import PrecisionPolicy

CPU, META = torch.device("cpu"), torch.device("meta")
ARC = SimpleNamespace(name="Intel Arc B580", total_memory=12 << 30, has_fp64=True)
IRIS = SimpleNamespace(name="Intel Iris Xe", total_memory=8 << 30, has_fp64=False)


def an_intel(monkeypatch: pytest.MonkeyPatch, *cards: SimpleNamespace) -> None:
    monkeypatch.setattr(torch.xpu, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: cards[index])
    for name, value in (("memory_allocated", 1), ("max_memory_allocated", 2), ("max_memory_reserved", 4)):
        monkeypatch.setattr(torch.xpu, name, lambda _, value=value: value << 30)
    monkeypatch.setattr(torch.xpu, "memory_reserved", lambda _: 3 << 30)
    monkeypatch.setattr(torch.xpu, "mem_get_info", lambda _: (7 << 30, 12 << 30))


def an_apple(monkeypatch: pytest.MonkeyPatch, macos: int = 14) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, _: macos >= major)
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M3 Max", raising=False)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 48 << 30)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 2 << 30)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 3 << 30)
    monkeypatch.setattr("wan_core.placement.cards.host_bytes", lambda: 20 << 30)


def test_the_gpus_are_those_of_the_kind_that_torch_was_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (gpu_names(), str(default_device())) == ((), "cpu")
    an_apple(monkeypatch)
    assert (gpu_names(), str(default_device())) == (("mps:0",), "mps:0")
    an_intel(monkeypatch, ARC, IRIS)
    assert (gpu_names(), str(default_device())) == (("xpu:0", "xpu:1"), "xpu:0")
    assert [is_here(torch.device(name)) for name in ("xpu:1", "xpu:2", "cuda:0", "cpu")] == [True, False, False, True]
    put_in(monkeypatch, AMPERE)
    assert gpu_names() == ("cuda:0",)


def test_an_apple_before_macos_14_trains_on_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    an_apple(monkeypatch, macos=13)
    assert (gpu_names(), str(default_device())) == ((), "cpu")


def test_devices_of_a_split_are_named_by_number_on_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    an_intel(monkeypatch, ARC, IRIS)
    split = PlacementConfig(mode="split blocks", devices="0,1")
    assert split.device_names() == ("xpu:0", "xpu:1") == replace(split, devices="all").device_names()
    with pytest.raises(PlacementError, match=r'"mps:0" does not exist here \(GPUs: xpu:0, xpu:1\)'):
        replace(split, devices="mps:0").device_names()


def test_memory_is_read_where_each_kind_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    an_intel(monkeypatch, ARC)
    xpu, mps = torch.device("xpu", 0), torch.device("mps", 0)
    assert memory_of(xpu) == {"now": 1 << 30, "peak": 2 << 30, "reserved": 4 << 30}
    # 12 GiB, of which others hold 2 and the reserve is 1 (1.5 on Windows).
    assert free_memory_here([xpu], ask_driver=True).devices["xpu:0"] in (9 << 30, int(8.5 * 2**30))
    an_apple(monkeypatch)
    assert memory_of(mps) == {"now": 2 << 30, "peak": None, "reserved": 3 << 30}
    # Metal recommends 48 GiB, but 20 of the computer's are free, and 3 are this process's already.
    assert free_memory_here([mps], ask_driver=True).devices == {"mps:0": 22 << 30}
    assert (abilities_of(mps).what, abilities_of(mps).memory) == ("Apple M3 Max", 48 << 30)


@pytest.mark.parametrize(
    ("kind", "float64", "attention", "compiles"), [("xpu:0", True, False, True), ("mps:0", False, False, False)]
)
def test_a_kind_that_was_never_run_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, kind: str, float64: bool, attention: bool, compiles: bool
) -> None:
    an_apple(monkeypatch) if kind == "mps:0" else an_intel(monkeypatch, ARC)
    device, card = torch.device(kind), abilities_of(kind)
    assert (has_float64(device), card.fuses_attention(torch.bfloat16), card.compiles) == (float64, attention, compiles)
    assert (card.compute, backend_of(kind).float8, backend_of(kind).proven) == ("bf16", kind == "xpu:0", False)
    assert isinstance(copies_of(device), Copies)
    plan = ModelPlan(base_file="diffusion_models:a", precision=PrecisionPolicy(preset="reference"))
    notes = notes_on_cards(plan, torch.bfloat16)
    assert "never run on such a device; docs/use/cards.md" in notes[0]
    assert ["rotated in fp32" in one for one in notes[1:]] == [True] * (not float64)
    with pytest.raises(
        (ConfigError, DependencyError), match=rf"needs the package|runs on CUDA devices and this job uses {kind}"
    ):
        check_attention("flash_attn", device=device, dtype=torch.bfloat16, head_dim=128)
    if not compiles:
        with pytest.raises(ConfigError, match=r"compile is not offered on Apple MPS.*Turn compile off"):
            check_compile(device)


def test_some_cards_of_intel_lack_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    an_intel(monkeypatch, ARC, IRIS)
    assert [has_float64(torch.device("xpu", index)) for index in (0, 1)] == [True, False]


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("CUDA error: out of memory", True),
        ("HIP error: out of memory", True),
        ("MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB). Tried to allocate 256 MB", True),
        ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", True),
        ("Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)", True),
        ("XPU out of memory. Tried to allocate 2.00 GiB.", True),
        ("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", False),
        ("MPS backend does not support float64", False),
    ],
)
def test_a_full_device_says_so_in_its_own_words(text: str, full: bool) -> None:
    assert device_memory_ran_out(RuntimeError(text)) is full
    assert not device_memory_ran_out(ValueError(text))


class _NoFloat64(PlainMode):
    """Fails at the first tensor in float64 on the meta device; copies from it to the CPU are zeros."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = func is torch.ops.aten._to_copy.default and args[0].is_meta and kwargs.get("device") == CPU
        found = torch.zeros(args[0].shape, dtype=kwargs["dtype"]) if leaves else func(*args, **kwargs)
        for one in tree_leaves((args, kwargs, found)):
            assert not (isinstance(one, Tensor) and one.is_meta and one.dtype == torch.float64), str(func)
        return found


def test_a_step_on_a_device_without_float64_makes_none_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy wants the rotation in float64; the meta device plays one that has none."""

    def step() -> None:
        with META:
            model = WanTransformer(SHAPE, PrecisionPolicy(preset="reference").numerics(torch.bfloat16).on([META]))
        for parameter in model.parameters():
            parameter.requires_grad_()
        latent = torch.empty(1, SHAPE.in_channels, 3, 8, 8, device=META)
        text = torch.empty(1, 16, SHAPE.text_dim, device=META)
        with _NoFloat64():
            model(latent, torch.empty(1, device=META), text).sum().backward()

    with pytest.raises(AssertionError, match="aten"):
        step()  # a device that has float64 is given it
    monkeypatch.setitem(accelerator._BACKENDS, "meta", replace(backend_of(META), float64=False))
    step()


def test_only_a_rotation_in_float64_is_changed_and_only_where_a_device_lacks_it() -> None:
    wide = PrecisionPolicy(preset="reference").numerics(torch.bfloat16)
    gpu, apple = torch.device("cuda", 0), torch.device("mps", 0)
    assert wide.rope == torch.float64
    assert wide.on([CPU, gpu]) is wide
    assert wide.on([CPU, apple]) == replace(wide, rope=torch.float32)
    balanced = PrecisionPolicy().numerics(torch.bfloat16)
    assert balanced.on([apple]) is balanced
