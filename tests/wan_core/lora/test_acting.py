"""What a LoRA file adds to the outputs of a model that knows nothing of it: what was trained, whatever the kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.applied_loras import KINDS, apart, engine, given_inputs, trained
from tests.support.containers import weights
from wan_core.errors import ExportError
from wan_core.lora import Acting, acting_parts
from wan_core.model import WanTransformer

HELD = weights()
GIVEN = given_inputs()


@contextmanager
def acting(model: nn.Module, parts: dict[str, Acting]) -> Iterator[None]:
    """The linears of a model with the parts at their outputs; norms of the engine are read, and not called."""

    def add(part: Acting):
        return lambda base, given, result: part(base, given[0], result, "a mark")

    modules = dict(model.named_modules())
    handles = [modules[name].register_forward_hook(add(part)) for name, part in parts.items()]
    yield
    for handle in handles:
        handle.remove()


@torch.no_grad()
def changed(model: WanTransformer, tensors: dict[str, Tensor], strength: float = 1.0) -> Tensor:
    before = model(*GIVEN)
    with acting(model, acting_parts(tensors, strength)):
        after = model(*GIVEN)
    assert torch.equal(model(*GIVEN), before), "nothing of it stays"
    return after - before


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "norms" not in kind])
def test_outputs_change_as_they_do_in_training(kind: str) -> None:
    wanted, tensors = trained(HELD, KINDS[kind], GIVEN)
    assert apart(changed(engine(HELD), tensors), wanted) < 1e-3, "float32 rounding of a change of one percent"


@pytest.mark.parametrize("kind", ["DoRA", *(pytest.param(k, marks=pytest.mark.soak) for k in ("LoRA", "LoHa"))])
def test_half_the_strength_is_half_the_change(kind: str) -> None:
    wanted, tensors = trained(HELD, KINDS[kind], GIVEN)
    assert apart(changed(engine(HELD), tensors, 0.5), 0.5 * wanted) < 0.02, "the model itself is not linear"


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(12, 8)


X = torch.linspace(-2, 2, 36).reshape(3, 12)


def added(base: nn.Module, parts: dict[str, Tensor], x: Tensor = X, strength: float = 1.0) -> Tensor:
    (part,) = acting_parts(
        {f"diffusion_model.blocks.0.ffn.0.{key}": value for key, value in parts.items()}, strength
    ).values()
    with torch.no_grad():
        return part(base, x, base(x), "a mark") - base(x)


def test_scales_signs_and_biases() -> None:
    base, down, up = linear(), torch.randn(2, 12), torch.randn(8, 2)
    pair = {"lora_A.weight": down, "lora_B.weight": up, "alpha": torch.tensor(4.0)}
    assert torch.allclose(added(base, pair), 2 * X @ down.T @ up.T, atol=1e-5)
    assert torch.allclose(added(base, pair, strength=-0.5), -1 * X @ down.T @ up.T, atol=1e-5)
    assert torch.allclose(
        added(base, {"diff_b": torch.arange(8.0)}, strength=0.5), 0.5 * torch.arange(8.0).expand(3, 8), atol=1e-6
    )
    both = added(base, {**pair, "diff_b": torch.arange(8.0)})
    assert torch.allclose(both, 2 * X @ down.T @ up.T + torch.arange(8.0), atol=1e-5)
    assert torch.allclose(added(base, {"diff": up @ down}), X @ (up @ down).T, atol=1e-5)


def test_lengths_of_rows_are_those_of_the_base_and_measured_again_when_it_changed() -> None:
    base = linear()
    down, up = torch.randn(2, 12), torch.randn(8, 2)
    scale = torch.rand(8, 1) + 0.5
    tensors = {"lora_A.weight": down, "lora_B.weight": up, "dora_scale": scale}
    (part,) = acting_parts({f"diffusion_model.blocks.0.ffn.0.{k}": v for k, v in tensors.items()}, 1.0).values()
    with torch.no_grad():
        for mark in ("one", "two"):
            weight = (base.weight + up @ down) * scale / base.weight.norm(dim=1, keepdim=True)
            assert torch.allclose(part(base, X, base(X), mark), functional.linear(X, weight, base.bias), atol=1e-5)
            base.weight.mul_(3)


@pytest.mark.parametrize("norm", [nn.LayerNorm(12), nn.RMSNorm(12)])
def test_norms(norm: nn.Module) -> None:
    diff, shift = torch.randn(12), torch.randn(12)
    parts = {"diff": diff, "diff_b": shift} if isinstance(norm, nn.LayerNorm) else {"diff": diff}
    wanted = type(norm)(12)
    with torch.no_grad():
        wanted.weight.copy_(norm.weight + diff)
        if isinstance(wanted, nn.LayerNorm):
            wanted.bias.copy_(shift)
        assert torch.allclose(added(norm, parts), wanted(X) - norm(X), atol=1e-5)


def test_what_cannot_act_so_is_named() -> None:
    with pytest.raises(ExportError, match=r"blocks\.0\.ffn\.0 holds a1\.weight, .*Use core Load LoRA"):
        acting_parts({"diffusion_model.blocks.0.ffn.0.a1.weight": torch.ones(1)}, 1.0)
    with pytest.raises(ExportError, match=r'"something else" is not the key of a Wan LoRA'):
        acting_parts({"something else": torch.ones(1)}, 1.0)
