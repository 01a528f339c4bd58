"""Each kind of adapter beside PEFT's own forward, beside its file, and as it is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from tests.support.adapters import KINDS, filled
from wan_core.errors import ConfigError
from wan_core.lora import (
    LoraConfig,
    adapters_of,
    count_values,
    exported,
    inject_lora,
    limit_norms,
    set_adapter_dtype,
    set_strength,
)
from wan_core.lora.linear_adapter import LinearAdapter
from wan_core.lora.products import _two_factors  # pyright: ignore[reportPrivateUsage]
from wan_core.precision import QuantizeConfig, quantize_block

pytestmark = pytest.mark.lasts(0.1)

WIDE, TALL = 48, 36


def holder(config: LoraConfig, *, wide: int = WIDE, tall: int = TALL, fill: bool = True, **more: Any) -> nn.Module:
    """A block of one linear with random weights and an adapter."""
    torch.manual_seed(3)
    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.ModuleDict({"ffn": nn.ModuleList([nn.Linear(wide, tall)])})])})
    inject_lora(model, replace(config, targets=(r"blocks\.0\.ffn\.0",)), seed=5, **more)
    return filled(model) if fill else model


def adapter(model: nn.Module) -> LinearAdapter:
    (found,) = adapters_of(model)
    assert isinstance(found, LinearAdapter)
    return found


def rows(count: int = 7, wide: int = WIDE) -> torch.Tensor:
    return torch.randn(2, count, wide, generator=torch.Generator().manual_seed(8))


def by_peft(one: LinearAdapter, x: torch.Tensor) -> torch.Tensor:
    """What PEFT's own forward makes of the same parameters, and the bias of which PEFT knows nothing."""
    found = _by_peft(one, x)
    return found + one.parameter("diff_b") if "diff_b" in one.trained else found


def _by_peft(one: LinearAdapter, x: torch.Tensor) -> torch.Tensor:
    """An OFT of PEFT turns inputs, so it gets the transpose."""
    base, layer = one.base, in_peft(one.config, one.base, one.rank, one.alpha)
    parts = {name: value for name, value in one.layer.named_parameters() if name.startswith(PARTS)}
    if one.constants:
        down, up = one.constants.values()
        pair = functional.linear(x, one.parameter("lora_B.weight") @ one.parameter("lora_A.weight"))
        return functional.linear(x, base.weight - one.scale * up @ down, base.bias) + one.scale * pair
    if one.config.kind != "OFT":
        layer.scaling["default"] = one.scale
        layer.base_layer = base
        return functional_call(layer, parts, (x,))
    layer.base_layer.weight, layer.base_layer.bias = nn.Parameter(base.weight.T), None
    turned = functional_call(layer, parts, (torch.eye(len(base.weight)),))  # R @ W
    return functional.linear(x, turned, base.bias)


PARTS = ("lora_", "lokr_", "hada_", "oft_")


def in_peft(config: LoraConfig, base: nn.Linear, rank: int, alpha: float) -> Any:
    """The layer PEFT makes for a linear of that size."""
    import peft

    begun: dict[str, Any] = {"target_modules": ["linear"]}
    asked: Any
    if config.kind == "OFT":
        asked = peft.OFTConfig(r=0, oft_block_size=rank, init_weights=False, use_cayley_neumann=False, **begun)
    elif config.kind == "LoKr":
        factor = config.lokr_factor or -1
        asked = peft.LoKrConfig(r=rank, alpha=alpha, decompose_factor=factor, init_weights=False, **begun)  # type: ignore[arg-type]
    elif config.kind == "LoHa":
        asked = peft.LoHaConfig(r=rank, alpha=alpha, init_weights=False, **begun)  # type: ignore[arg-type]
    else:
        begun |= {"init_lora_weights": False, "use_dora": config.kind == "DoRA"}
        asked = peft.LoraConfig(r=rank, lora_alpha=alpha, use_rslora=config.kind == "rsLoRA", **begun)  # type: ignore[arg-type]
    size = (base.in_features, base.out_features)
    shown = nn.ModuleDict({"linear": nn.Linear(*(size[::-1] if config.kind == "OFT" else size))})
    return peft.inject_adapter_in_model(asked, shown)["linear"]  # type: ignore[index]


@pytest.mark.parametrize(
    "size", [*(pytest.param(one, marks=pytest.mark.soak) for one in ((48, 36), (256, 1024))), (35, 97), (1536, 8960)]
)
@pytest.mark.parametrize("rank", [pytest.param(1, marks=pytest.mark.soak), 4, 64])
@pytest.mark.parametrize("kind", ["LoRA", "rsLoRA", "DoRA", "LoKr", "LoHa", "OFT"])
def test_the_parts_of_a_layer_are_named_and_sized_as_pefts(kind: str, rank: int, size: tuple[int, int]) -> None:
    wide, tall = size
    for factor in (0, 4, 7) if kind == "LoKr" else (0,):
        config = LoraConfig(kind=kind, rank=rank, lokr_factor=factor)
        with torch.device("meta"):
            one = adapter(holder(config, wide=wide, tall=tall, fill=False))
            theirs = in_peft(config, one.base, one.rank, one.alpha)
        found, wanted = (
            [(name, value.shape) for name, value in layer.named_parameters() if name.startswith(PARTS)]
            for layer in (one.layer, theirs)
        )
        assert found
        assert sorted(found) == sorted(wanted), factor
        if kind not in ("LoKr", "OFT"):
            assert one.scale == theirs.scaling["default"]


def test_a_size_is_cut_in_two_as_pefts_lokr_does() -> None:
    from peft.tuners.lokr.layer import factorization

    for size in (*range(1, 400), 1536, 5120, 8960, 13824):
        for wanted in (*range(40), 64, 128):
            assert _two_factors(size, wanted) == factorization(size, wanted or -1), (size, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_output_and_gradients_are_those_of_pefts_own_forward(kind: str) -> None:
    model = holder(KINDS[kind])
    one, x = adapter(model), rows()
    ours, theirs = (
        (out, torch.autograd.grad(out.square().sum(), list(one.parameters().values())))
        for out in (one.layer(x), by_peft(one, x))
    )
    change = float((ours[0] - one.base(x)).detach().abs().max())
    assert change > 0.1
    assert float((ours[0] - theirs[0]).detach().abs().max()) < 2e-5
    for name, mine, other in zip(one.parameters(), ours[1], theirs[1], strict=True):
        assert float(other.abs().max()) > 0, name
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-4 * float(other.abs().max()), msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_adapter_changes_nothing_and_its_values_are_counted_beforehand(kind: str) -> None:
    model = holder(KINDS[kind], fill=False)
    one, x = adapter(model), rows()
    assert torch.equal(one.layer(x), one.base(x))
    asked = replace(KINDS[kind], targets=(r"blocks\.0\.ffn\.0",))
    meta = nn.ModuleDict({"blocks": nn.ModuleList([nn.ModuleDict({"ffn": nn.ModuleList([nn.Linear(WIDE, TALL)])})])})
    assert count_values(meta, asked) == {"blocks.0.ffn.0": one.values}


@pytest.mark.parametrize("kind", KINDS)
def test_strength_0_is_the_base_and_between_the_weights_lie_as_in_comfyui(kind: str) -> None:
    """ComfyUI adds s times the change; of an OFT s * s times, because it multiplies twice."""
    model = holder(KINDS[kind])
    one, x = adapter(model), rows()
    with torch.no_grad():
        full, base = one.layer(x), one.base(x)
        set_strength(model, 0.0)
        assert torch.equal(one.layer(x), base)
        set_strength(model, 0.5)
        part = 0.25 if kind == "OFT" else 0.5
        torch.testing.assert_close(one.layer(x), base + part * (full - base), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["DoRA", "LoKr", "LoHa", "OFT"])
@pytest.mark.parametrize("scheme", ["fp8_e4m3fn", "int8"])
def test_on_a_packed_weight_it_is_the_adapter_of_the_unpacked_one(kind: str, scheme: str) -> None:
    torch.manual_seed(3)
    block = nn.ModuleDict({"ffn": nn.ModuleList([nn.Linear(WIDE, TALL)])}).requires_grad_(False)
    model = nn.ModuleDict({"blocks": nn.ModuleList([block])})
    quantize_block(block, "blocks.0", QuantizeConfig(scheme=scheme, keep_high_precision=False))
    packed: Any = block["ffn"][0]  # type: ignore[index]
    values = packed(torch.eye(WIDE)).T - packed.bias[:, None]
    config = replace(KINDS[kind], targets=(r"blocks\.0\.ffn\.0",))
    inject_lora(model, config, seed=5)
    other = holder(config, fill=False)
    adapter(other).base.weight.data, adapter(other).base.bias.data = values, packed.bias.data
    if kind == "DoRA":
        adapter(other).start(5)
    x = rows()
    assert torch.equal(adapter(model).layer(x), packed(x))
    torch.testing.assert_close(filled(model) and adapter(model).layer(x), filled(other) and adapter(other).layer(x))


@pytest.mark.parametrize("kind", KINDS)
def test_matmuls_run_in_the_dtype_that_is_asked_for(kind: str) -> None:
    model = holder(KINDS[kind])
    full = adapter(model).layer(rows())
    adapter(model).base.to(torch.bfloat16)
    narrow = adapter(model).layer(rows().bfloat16())
    assert narrow.dtype == torch.bfloat16
    set_adapter_dtype(model, torch.float32)
    wide = adapter(model).layer(rows().bfloat16())
    assert wide.dtype == torch.bfloat16
    for found in (narrow, wide):
        assert float((found.float() - full).detach().norm() / full.detach().norm()) < 0.02


@pytest.mark.parametrize("kind", [kind for kind, config in KINDS.items() if config.init == "default"])
def test_max_norm_scales_a_larger_change_down_to_it_and_leaves_a_smaller_one(kind: str) -> None:
    model = holder(KINDS[kind])
    one = adapter(model)
    with torch.no_grad():
        before = float(one.norm())
        if one.config.kind not in ("DoRA", "OFT"):
            added = [one.layer(x) - one.base(x) for x in (torch.eye(WIDE), torch.zeros(1, WIDE))]
            assert before == pytest.approx(float((added[0] - added[1]).norm()), rel=1e-4)
        for limit, after in ((before * 2, before), (before / 3, before / 3)):
            one.config = replace(one.config, max_norm=limit)
            limit_norms(model)
            assert float(one.norm()) == pytest.approx(after, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_step_leaves_out_is_the_same_in_every_pass_and_another_in_the_next_step(kind: str) -> None:
    model = holder(replace(KINDS[kind], rank_dropout=0.5))
    one, x = adapter(model), rows()
    whole = one.layer.eval()(x).detach()
    one.layer.train()
    found = []
    for step in (1, 2, 1):
        torch.manual_seed(step)
        found += [one.layer(x).detach(), one.layer(x[:, 3:]).detach()]
    torch.testing.assert_close(found[0][:, 3:], found[1], rtol=1e-5, atol=1e-6)
    assert torch.equal(found[0], found[4])
    assert not torch.equal(found[0], found[2])
    assert not torch.equal(found[0], whole)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            k, marks=[] if k in ("LoRA", "DoRA, norms and biases", "PiSSA", "LoHa", "OFT") else pytest.mark.soak
        )
        for k in KINDS
    ],
)
def test_module_dropout_leaves_the_base_in_its_share_of_steps_with_gradients_of_zero(kind: str) -> None:
    model = holder(replace(KINDS[kind], module_dropout=0.3))
    one, x = adapter(model), rows()
    left_out = 0
    for step in range(60):
        torch.manual_seed(step)
        out = one.layer(x)
        if torch.equal(out, one.base(x)):
            left_out += 1
            gradients = torch.autograd.grad(out.sum(), list(one.parameters().values()))
            assert not any(gradient.any() for gradient in gradients)
    assert 8 <= left_out <= 30


@pytest.mark.parametrize("init", ["PiSSA", "OLoRA"])
@pytest.mark.parametrize("wide", [False, True])
def test_a_pair_that_begins_in_the_weight_is_pefts(init: str, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`wide`: by a few random directions, as weights of real models."""
    import peft

    if wide:
        monkeypatch.setattr("wan_core.lora.low_rank.EXACT_UP_TO", 8)
        monkeypatch.setattr("wan_core.lora.factors._MORE", 12)
    one = adapter(holder(KINDS[init], fill=False))
    theirs = nn.ModuleDict({"linear": nn.Linear(WIDE, TALL)})
    theirs.load_state_dict({f"linear.{key}": value for key, value in one.base.state_dict().items()})
    asked = peft.LoraConfig(r=4, lora_alpha=3.0, target_modules=["linear"], init_lora_weights=init.lower())  # type: ignore[arg-type]
    layer: Any = peft.inject_adapter_in_model(asked, theirs)["linear"]  # type: ignore[index]
    product = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    down, up = one.constants.values()
    torch.testing.assert_close(up @ down, product.detach(), rtol=0, atol=1e-3 if wide else 1e-5)
    torch.testing.assert_close(layer(rows()), one.layer(rows()), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("init", "asked_for"), [("default", True), ("gaussian", "gaussian")])
def test_a_pair_begins_as_large_as_pefts(init: str, asked_for: Any) -> None:
    """4096 values of each: their deviations agree to a few percent."""
    import peft

    one = adapter(holder(LoraConfig(rank=16, init=init), wide=256, fill=False))
    asked = peft.LoraConfig(r=16, target_modules=["linear"], init_lora_weights=asked_for)
    layer: Any = peft.inject_adapter_in_model(asked, nn.ModuleDict({"linear": nn.Linear(256, TALL)}))["linear"]  # type: ignore[index]
    ours, theirs = (float(a.detach().std()) for a in (one.parameter("lora_A.weight"), layer.lora_A["default"].weight))
    assert ours == pytest.approx(theirs, rel=0.1)
    assert not one.parameter("lora_B.weight").any()


def test_other_ranks_are_those_of_the_first_pattern_that_matches() -> None:
    config = LoraConfig(rank=8, alpha=4.0, rank_patterns=(r".*\.0 = 2", r"blocks\..*= 4, 1", ".* = 16"))
    ranks = {"blocks.0.ffn.0": (2, 1.0), "blocks.0.ffn.2": (4, 1.0), "vace_blocks.0.ffn.2": (16, 8.0)}
    assert config.ranks_of(list(ranks)) == ranks
    one = adapter(holder(config))
    assert (one.rank, one.scale) == (2, 0.5)
    assert one.parameter("lora_A.weight").shape == (2, WIDE)
    assert float(exported(holder(config))["blocks.0.ffn.0.alpha"]) == 1.0


def test_an_oft_turns_blocks_of_the_largest_size_that_divides_the_outputs() -> None:
    one = adapter(holder(LoraConfig(kind="OFT", rank=16)))
    assert one.rank == 12
    with torch.no_grad():
        turned = torch.block_diag(*one.learnt().turns())  # type: ignore[attr-defined]
        torch.testing.assert_close(turned @ turned.T, torch.eye(TALL), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "lora"}, r'^kind "lora" is unknown\. Did you mean '),
        (
            {"kind": "LoHa", "init": "gaussian"},
            r"^adapter_init .gaussian. is for LoRA, rsLoRA and DoRA, and this is a LoHa\.",
        ),
        (
            {"kind": "DoRA", "init": "PiSSA"},
            r"^adapter_init .PiSSA. is for LoRA and rsLoRA, and this is a DoRA\. Use default or",
        ),
        (
            {"init": "OLoRA", "start_from": "loras:a"},
            r"^adapter_init .OLoRA. and start_from_lora both set the first values of a LoRA\.",
        ),
        (
            {"init": "PiSSA", "max_norm": 1.0},
            r"^adapter_init .PiSSA. starts with a part of the weight, which scale_weight_norms",
        ),
        (
            {"kind": "DoRA", "start_from": "loras:a"},
            r"^A DoRA cannot start from a LoRA file\. Set start_from",
        ),
        (
            {"kind": "OFT", "dropout": 0.1},
            r"^An OFT rotates outputs, so it has neither alpha \(0\) nor lora_dropout",
        ),
        ({"rank_patterns": ("ffn",)}, r'^rank_patterns "ffn" is not an expression = rank\. Example: '),
        ({"rank_patterns": ("( = 4",)}, r"^rank_patterns '\(' is not a regular expression"),
        ({"rank_patterns": ("a = 0",)}, r'^rank_patterns "a = 0" is not an expression = rank'),
        ({"rank_dropout": 1.0}, r"^rank_dropout 1\.0 is out of range\. Use 0 up to 0\.9\.$"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        LoraConfig(**changes).check_grammar()
