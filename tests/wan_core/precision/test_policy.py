"""The precision policy: presets, single switches, and that what is stated is what runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch

from tests.support.golden import Golden
from wan_core.audit.any_dtype import compute_in, fill_empty_adapters, let_linears_cast
from wan_core.errors import ConfigError
from wan_core.kernels.rope import Span, rope_of
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import Numerics, WanShape, WanTransformer
from wan_core.precision import PRESETS, SWITCHES, PrecisionPolicy, dtype_name, switch_values

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64


def test_reference_is_official_wan() -> None:
    """wan-models 3, column official: float32 everywhere around bf16 linears and attention, rotary embedding float64."""
    assert PrecisionPolicy(preset="reference").numerics(BF16) == Numerics(
        compute=BF16, residual=FP32, norm=FP32, qk_norm=FP32, time=FP32, modulation=FP32, head=FP32,
        rope_table=FP64, rope=FP64, attention=BF16, adapter=FP32,
    )  # fmt: skip


def test_balanced_drops_the_float64_product_and_fast_also_the_wide_residual() -> None:
    def differs(one: str, other: str) -> set[str]:
        return {part for part in SWITCHES if PRESETS[one][part] != PRESETS[other][part]}

    assert differs("reference", "balanced") == {"rope", "adapter"}
    assert differs("balanced", "fast") == {"residual", "head"}


@pytest.mark.parametrize("part", SWITCHES)
def test_a_switch_changes_its_part_alone(part: str) -> None:
    before, after = PrecisionPolicy().numerics(FP32), PrecisionPolicy(**{part: "bf16"}).numerics(FP32)
    changed = {name for name in Numerics.__dataclass_fields__ if getattr(before, name) != getattr(after, name)}
    assert changed == {part}
    assert getattr(after, part) == BF16


@pytest.mark.parametrize("part", SWITCHES)
def test_compute_follows_the_linears(part: str) -> None:
    assert getattr(PrecisionPolicy(**{part: "compute"}).numerics(torch.float16), part) == torch.float16


@pytest.mark.parametrize("part", SWITCHES)
def test_every_offered_value_is_accepted_and_others_are_named(part: str) -> None:
    for value in switch_values(part):
        assert PrecisionPolicy(**{part: value}).resolved()[part] == value
    with pytest.raises(ConfigError, match=rf'precision of {part} "fp8" is not a choice\. Use one of: .*fp32, bf16'):
        PrecisionPolicy(**{part: "fp8"})


@pytest.fixture(scope="module")
def audited() -> Callable[[PrecisionPolicy], torch.Tensor]:
    """What the golden model, with a LoRA, makes of its inputs in bf16 under a policy."""
    file = Golden("t2v")
    model = file.model()
    inject_lora(model, LoraConfig(rank=4), seed=0)
    fill_empty_adapters(model, 0)
    let_linears_cast(model)

    @cache  # a repeat would be the same to the bit
    def run(policy: PrecisionPolicy) -> torch.Tensor:
        compute_in(model, policy.numerics(BF16))
        with torch.no_grad():
            return model(*file.inputs())

    return run


@pytest.mark.parametrize("part", SWITCHES)
def test_every_switch_changes_something_in_a_run_of_bf16(
    audited: Callable[[PrecisionPolicy], torch.Tensor], part: str
) -> None:
    other = "fp32" if PrecisionPolicy().resolved()[part] == "compute" else "bf16"
    assert not torch.equal(audited(PrecisionPolicy()), audited(PrecisionPolicy(**{part: other})))


def test_float64_is_for_the_rotary_embedding_only() -> None:
    assert PrecisionPolicy(rope="fp64", rope_table="fp64").resolved()["rope"] == "fp64"
    with pytest.raises(ConfigError, match='precision of residual "fp64"'):
        PrecisionPolicy(residual="fp64")


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'"balance" is unknown\. Did you mean "balanced"'):
        PrecisionPolicy(preset="balance")


def test_a_policy_survives_json_and_says_what_it_is() -> None:
    policy = PrecisionPolicy(preset="fast", residual="fp32", head="compute")
    assert PrecisionPolicy.from_dict(policy.to_dict()) == policy
    assert policy.describe() == "fast, but residual fp32"
    assert PrecisionPolicy().describe() == "balanced"


def test_dtype_names_and_dtypes_belong_together() -> None:
    assert [dtype_name(d) for d in (FP64, FP32, BF16, torch.float16)] == ["fp64", "fp32", "bf16", "fp16"]


def test_a_rope_table_built_narrow_is_as_wrong_as_rounding_its_angles_says() -> None:
    """At frame 79 the fastest axis turns 79 rad: bf16 keeps 8 bits of it, so it is off by up to 0.25 rad; float32 by
    4e-6 (wan-models 3.1 measured 0.11 and 2.9e-6 for whole tables)."""
    grid, head_dim = (80, 2, 2), 128
    exact, _ = rope_of((Span(grid),), head_dim, dtype=FP64, device=torch.device("cpu"))
    errors = {}
    for built_in in (FP64, FP32, BF16):
        found, _ = rope_of((Span(grid),), head_dim, dtype=FP64, device=torch.device("cpu"), built_in=built_in)
        errors[built_in] = float((found - exact).abs().max())
    assert errors[FP64] == 0
    assert 1e-8 < errors[FP32] < 1e-5
    assert 0.05 < errors[BF16] < 0.3


def test_attention_runs_in_the_dtype_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []
    real = torch.nn.functional.scaled_dot_product_attention

    def spy(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        seen.extend((query.dtype, key.dtype, value.dtype))
        return real(query, key, value)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    shape = WanShape(dim=128, ffn_dim=128, num_heads=1, num_layers=1, text_dim=64)
    for attention, expected in (("compute", BF16), ("fp32", FP32)):
        seen.clear()
        model = WanTransformer(shape, PrecisionPolicy(attention=attention).numerics(BF16)).to(BF16)
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 0.01)
        with torch.no_grad():
            output = model(torch.ones(1, 16, 1, 4, 4), torch.tensor([500.0]), torch.ones(1, 512, 64))
        assert set(seen) == {expected}
        assert len(seen) == 6  # self- and cross-attention
        assert math.isfinite(float(output.sum()))
