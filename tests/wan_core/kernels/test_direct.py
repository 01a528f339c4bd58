"""A compiled call that was made before goes to its graph; a layer is walked once, until its modules change."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.blocks import MIXED, SHAPE
from wan_core.kernels import Fused
from wan_core.kernels.direct import key_of
from wan_core.kernels.fused import _turned
from wan_core.kernels.walks import having
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import WanTransformer

ROTATE = Fused(
    "rotate(Tensor x, Tensor cos, Tensor sin, bool back) -> Tensor",
    lambda x, cos, sin, back: _turned(x, cos, -sin if back else sin),
    lambda x, *rest: torch.empty_like(x),
)


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name.rpartition("::")[2])
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(not shutil.which("g++"), reason="torch compiles for a CPU with a C++ compiler")
@pytest.mark.lasts(3)
def test_a_call_that_was_made_before_goes_to_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def inputs(tokens: int) -> tuple[Tensor, Tensor, Tensor, bool]:
        cos, sin = torch.randn(2, tokens, 1, 4)
        return torch.randn(1, tokens, 16), cos, sin, False

    ran: list[int] = []
    operator = ROTATE._operator

    def noted(*given: Any) -> Tensor:
        ran.append(given[0].shape[1])
        return operator(*given)

    monkeypatch.setattr(ROTATE, "_operator", noted)
    from torch._inductor import config

    turned = inputs(10)
    with config.patch({"cpp.vec_isa_ok": True}):  # what the processor says of itself, without compiling a test of it
        for tokens in (10, 12, 10, 12):
            given = inputs(tokens)
            torch.testing.assert_close(ROTATE(*given), ROTATE.body(*given))
        assert ran == [10, 12], "the first call of each size"
    assert key_of(turned) != key_of((*turned[:3], True)), "another number is another call"
    with Seen() as seen:
        ROTATE(*turned)
    assert seen.names[0] == "rotate", "a mode sees one call with a name"
    meta = ROTATE(*(one.to("meta") if isinstance(one, Tensor) else one for one in turned))
    assert meta.device.type == "meta"
    # Inputs that want a gradient give a result without one, as a call of the operator does.
    wanting = (turned[0].requires_grad_(), *turned[1:])
    assert not ROTATE(*wanting).requires_grad


def test_a_layer_is_walked_again_when_modules_change() -> None:
    with torch.device("meta"):
        model = WanTransformer(SHAPE, MIXED)
    block = model.blocks[0]
    assert having(block, "narrowed") == ()
    inject_lora(model.requires_grad_(False), LoraConfig(rank=2), seed=0)
    found = having(block, "narrowed")
    assert len(found) == 10
    assert all(module.narrowed is value for module, value in found)
    assert having(block, "narrowed") is found
