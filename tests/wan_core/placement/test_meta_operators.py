"""What operators make of meta tensors is asked of torch once, and is then what torch said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import POLICIES, WanShape
from wan_core.placement import Recomputing, StepShape, trace
from wan_core.placement.meta_operators import run_on_meta
from wan_core.precision import PrecisionPolicy

aten = torch.ops.aten
SMALL = WanShape(dim=64, ffn_dim=128, num_heads=2, num_layers=3)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def facts(made: Any) -> Any:
    """What there is to know of the results of an operator."""
    if isinstance(made, tuple):
        return tuple(map(facts, made))
    return made if not isinstance(made, Tensor) else (made.shape, made.stride(), made.dtype, made.device)


def no_bias(x: Tensor) -> tuple[Any, ...]:
    statistics = meta(*x.shape[:-1], 1)
    return x, x, [x.shape[-1]], statistics, statistics, None, None, [True, False, False]


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        (aten.mm.default, (meta(5, 3), meta(3, 7).t().t())),
        (aten.mul.Tensor, (meta(4, 1, dtype=torch.bfloat16), meta(6))),
        (aten.clone.default, (meta(3, 8).t(),)),
        (aten.native_layer_norm_backward.default, no_bias(meta(2, 9, 8))),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, [meta(1, 2, 9, 8)] * 3),
        (aten.cat.default, ([meta(2, 3), meta(4, 3)],)),
    ],
    ids=lambda value: str(value) if not isinstance(value, tuple | list) else "",
)
def test_the_second_answer_is_torchs_own(operator: Any, args: Any) -> None:
    own = facts(operator(*args))
    assert [facts(run_on_meta(operator, tuple(args), {})) for _ in range(3)] == [own] * 3


def test_questions_that_differ_in_a_type_alone_have_answers_of_their_own() -> None:
    whole = meta(3, dtype=torch.int64)
    assert run_on_meta(aten.mul.Scalar, (whole, 1), {}).dtype == torch.int64
    assert run_on_meta(aten.mul.Scalar, (whole, 1.0), {}).dtype == torch.float32
    assert run_on_meta(aten._to_copy.default, (whole,), {"dtype": torch.int32}).dtype == torch.int32
    assert run_on_meta(aten._to_copy.default, (whole,), {"dtype": torch.int16}).dtype == torch.int16


@pytest.mark.parametrize(
    ("operator", "given"),
    [(aten.addmm_.default, 3), (aten.addcmul_.default, 3), (aten.mul_.Tensor, 2), (aten.copy_.default, 2)],
)
def test_what_is_written_into_is_what_comes_back(operator: Any, given: int) -> None:
    for _ in range(3):
        args = tuple(meta(4, 4) for _ in range(given))
        assert run_on_meta(operator, args, {}) is args[0]
        out = meta(4, 4)
        assert run_on_meta(aten.mm.out, args[:2], {"out": out}) is out
    with pytest.raises(RuntimeError, match="shape"):
        run_on_meta(aten.mul_.Tensor, (meta(4, 4), meta(5, 4, 4)), {})


def test_a_result_that_is_too_small_is_resized_each_time() -> None:
    with pytest.warns(UserWarning, match="was resized"):
        made = [run_on_meta(aten.mm.out, (meta(3, 5), meta(5, 2)), {"out": meta(1)}) for _ in range(2)]
    assert [one.shape for one in made] == [(3, 2)] * 2


@pytest.mark.parametrize(
    "view",
    [lambda x: (aten.view.default, (x, [12])), lambda x: (aten._unsafe_view.default, (x, [12]))],
    ids=["view", "_unsafe_view"],
)
def test_a_result_that_shares_memory_shares_it_each_time(view: Callable[[Tensor], Any]) -> None:
    for x in (meta(3, 4), meta(3, 4)):
        made = run_on_meta(*view(x), {})
        assert made.untyped_storage()._cdata == x.untyped_storage()._cdata


@pytest.mark.parametrize("policy", [pytest.param("full", marks=pytest.mark.soak), "offload_matmul_without_batch"])
def test_a_traced_step_is_the_same_byte_for_byte_as_with_every_question_asked(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adapt(model: nn.Module) -> None:
        inject_lora(model, LoraConfig(rank=4), seed=0)

    numerics = PrecisionPolicy().numerics(torch.bfloat16)
    step = StepShape(batch_size=1, latent_frames=5, latent_height=60, latent_width=104)  # two chunks
    found = []
    for run in (run_on_meta, run_on_meta, lambda func, args, kwargs: func(*args, **kwargs)):
        monkeypatch.setattr(trace, "run_on_meta", run)
        with torch.inference_mode():  # as nodes run
            found.append(
                trace._trace(SMALL, numerics, step, adapt, trace.How(Recomputing(policy=POLICIES[policy]), True))
            )
    assert found[0] == found[1] == found[2]
