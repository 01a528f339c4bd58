"""Ambient autocast changes nothing in our block, and a foreign block's recompute sees what its first pass saw."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.support.blocks import MIXED, block_inputs, linear_dtypes, new_block
from tests.support.forked import ForkServer
from wan_core.model import Numerics

RECOMPUTE = partial(checkpoint, use_reentrant=False)
bf16, fp16 = torch.bfloat16, torch.float16


def cast(dtype: torch.dtype = bf16, **options: bool) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=dtype, **options)


def nested(*contexts: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    stack = ExitStack()
    for context in contexts:
        stack.enter_context(context)
    return stack


AMBIENT: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "bf16": cast,
    "fp16": lambda: cast(fp16),
    "bf16 without cache": lambda: cast(cache_enabled=False),
    "off inside bf16": lambda: nested(cast(), cast(enabled=False)),
    "bf16 inside off": lambda: nested(cast(enabled=False), cast()),
    "fp16 inside bf16": lambda: nested(cast(), cast(fp16)),
}


Step = tuple[Tensor, dict[str, Tensor], list[tuple[str, str]]]


def step(numerics: Numerics, ambient: AbstractContextManager[Any], *, recompute: Any = None) -> Step:
    """Output, gradients by name, and the dtypes of the linears of the pass and of its recompute."""
    block, inputs = new_block(numerics), block_inputs(numerics)
    dtypes = linear_dtypes(block)
    with ambient:
        output = block(*inputs, recompute=recompute)
    output.square().mean().backward()
    gradients = {name: p.grad for name, p in block.named_parameters() if p.grad is not None}
    assert inputs[0] is not None
    assert inputs[0].grad is not None
    return output.detach(), gradients | {"tokens": inputs[0].grad}, dtypes


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert gradient.dtype == expected[name].dtype, name
        assert torch.equal(gradient, expected[name]), name


@pytest.mark.parametrize("recompute", [None, RECOMPUTE], ids=["plain", "recomputed"])
@pytest.mark.parametrize("numerics", [Numerics(), MIXED], ids=["fp32", "mixed"])
@pytest.mark.parametrize("ambient", AMBIENT)
def test_a_block_alone_does_not_see_ambient_autocast(ambient: str, numerics: Numerics, recompute: Any) -> None:
    expected_output, expected, plain = step(numerics, nullcontext())
    output, gradients, dtypes = step(numerics, AMBIENT[ambient](), recompute=recompute)
    assert torch.equal(output, expected_output)
    assert_same_bits(gradients, expected)
    assert dtypes == plain * (2 if recompute else 1), "the recompute sees other dtypes than the first pass"
    assert {kind for dtype in dtypes for kind in dtype} == {str(numerics.compute)}


def test_a_linear_of_the_block_called_alone_would_follow_autocast() -> None:
    """So the tests above could fail: it is the block that shuts autocast out."""
    block = new_block(Numerics())
    with cast():
        assert block.ffn[0](torch.ones(1, 48)).dtype == bf16


@pytest.mark.parametrize("ambient", AMBIENT)
def test_a_backward_inside_autocast_recomputes_in_the_dtypes_of_the_first_pass(ambient: str) -> None:
    """The gradient's own matrix products are torch's and follow autocast there; checkpointing adds nothing to that."""
    found = []
    for recompute in (None, RECOMPUTE):
        block, inputs = new_block(MIXED), block_inputs(MIXED)
        dtypes = linear_dtypes(block)
        with AMBIENT[ambient]():
            block(*inputs, recompute=recompute).square().mean().backward()
        assert {kind for dtype in dtypes for kind in dtype} == {str(bf16)}
        found.append({name: p.grad for name, p in block.named_parameters() if p.grad is not None})
    assert_same_bits(found[1], found[0])


@pytest.mark.skipif(sys.platform == "win32", reason="FSDP2 over gloo is tested on Linux")
@pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"),
    reason=f"torch {torch.__version__} has no torch.cpu.Stream.record_event, without which FSDP2 needs a GPU",
)
@pytest.mark.lasts(1)
def test_fsdp2_with_mixed_precision_on_two_ranks_recomputes_bit_for_bit(server: ForkServer, tmp_path: Path) -> None:
    """Inputs cast by FSDP or not, autocast around or not: recompute changes no bit and no dtype on either rank."""
    script = Path(__file__).parents[2] / "support" / "fsdp_ranks.py"
    worker = server.start([str(tmp_path / "store"), "2"], tmp_path / "ranks", script=str(script))
    assert worker.wait() == 0, worker.log()[-3000:]
    ranks = [json.loads(line) for line in worker.out.read_text().splitlines() if line.startswith("{")]
    assert len(ranks) == 2
    for reports in ranks:
        assert "different metadata" in reports["published"], "the CheckpointError of Wan2.2's block is gone"
        assert "'dtype': torch.bfloat16" in reports["published"]
        assert "'dtype': torch.float32" in reports["published"]
        assert len(reports["ours"]) == 4
        for name, report in reports["ours"].items():
            assert report["sharded"], name
            assert report["same_gradients"], name
            assert report["same_dtypes"], name
            assert report["linears"] == 2 * report["linears_without_recompute"] > 0, name


# ------------------------------------------------------------------------------------------- blocks that are not ours
