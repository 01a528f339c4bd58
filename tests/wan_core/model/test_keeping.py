"""Selective checkpointing: what a policy names is computed once, everything else twice, and no bit changes."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.blocks import MIXED, SHAPE, block_inputs, new_block
from tests.wan_core.model.test_checkpointing import adapted, assert_same_bits
from wan_core.model import Numerics, WanTransformer
from wan_core.model.checkpointing import Checkpointing
from wan_core.model.keeping import EVERY_MATMUL, Kept, Policy
from wan_core.model.names import ACTIVATIONS, UNREAD, current_name, naming

WHOLE = 0


class Ran(TorchDispatchMode):
    """Counts matrix products of linears, and attentions."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if "scaled_dot_product" in name and "backward" not in name:
            self.count["attention"] += 1
        self.count["matmul"] += name in ("aten::mm", "aten::addmm", "aten::addmm_")
        return func(*args, **(kwargs or {}))


class Host:
    """Takes tensors over and gives copies back; notes the order."""

    holds_values = True

    def __init__(self) -> None:
        self.log: list[str] = []

    def weights(self, block: str, *, again: bool) -> Any:
        return nullcontext()

    def put(self, kept: Tensor) -> Callable[[], Tensor]:
        number, copy = len(self.log), kept.detach().clone()
        self.log.append(f"put {number}")

        def take() -> Tensor:
            self.log.append(f"take {number}")
            return copy.clone()

        return take


def step(how: Checkpointing, chunk_tokens: int = WHOLE) -> tuple[dict[str, Tensor], Counter[str]]:
    """Gradients of adapters and tokens, the output, and what ran in the backward pass."""
    block, inputs = adapted(new_block(MIXED)), block_inputs(MIXED)
    block.chunk_tokens = chunk_tokens
    output = block(*inputs, recompute=how)
    with Ran() as ran:
        output.square().mean().backward()
    found = {name: p.grad for name, p in block.named_parameters() if p.grad is not None}
    assert len(found) == 20
    assert inputs[0] is not None
    assert inputs[0].grad is not None
    return found | {"tokens": inputs[0].grad, "output": output.detach()}, ran.count


IN_CI = ("attn_output", "self_attn", EVERY_MATMUL)
"""kept where it is; what is offloaded is tried with every name"""


@functools.cache
def plain_step(chunk_tokens: int, *, recomputes: bool) -> tuple[dict[str, Tensor], Counter[str]]:
    """Without a policy; made once, as nobody changes what comes of it."""
    return step(Checkpointing(recomputes=recomputes), chunk_tokens)


@pytest.mark.parametrize(
    ("name", "offloaded", "chunk_tokens"),
    [
        pytest.param(
            *(name, *how),
            marks=[] if how == (True, 4) or (how == (False, WHOLE) and name in IN_CI) else pytest.mark.soak,
        )
        for name in (*ACTIVATIONS, EVERY_MATMUL)
        for how in itertools.product((False, True), (WHOLE, 4))
    ],
)
def test_a_policy_changes_no_bit_and_saves_what_it_names(
    name: str, offloaded: bool, chunk_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wan_core.lora.one_pass._SEPARATE", frozenset())
    expected, plain = plain_step(chunk_tokens, recomputes=False)
    _, full = plain_step(chunk_tokens, recomputes=True)
    policy = Policy(offloaded=frozenset({name})) if offloaded else Policy(saved=frozenset({name}))
    host = Host()
    found, ran = step(Checkpointing(policy=policy, offload=host), chunk_tokens)
    assert_same_bits(found, expected)
    chunks = 1 if chunk_tokens == WHOLE else 6
    again = {"attention": 1 + chunks, "matmul": full["matmul"] - plain["matmul"]}
    assert full["attention"] - plain["attention"] == again["attention"]
    # A linear with its adapter is three products; one of queries, keys and values is common to them, of no name.
    saved = {
        **dict.fromkeys(("query_proj", "key_proj", "value_proj"), ("matmul", 2)),
        "self_attn": ("matmul", 3),
        "ffn_activation": ("matmul", 3 * chunks),
        "hidden_states": ("matmul", 0),  # nobody reads it, so nothing of it is kept
        **dict.fromkeys(("xq_out", "xk_out"), ("matmul", 0)),
        "attn_output": ("attention", 1),
        "cross_attn": ("attention", chunks),
        EVERY_MATMUL: ("matmul", again["matmul"] - chunks),  # the adapter's first product on the last linear
    }
    kind, times = saved[name]
    assert full[kind] - ran[kind] == times
    puts, takes = ([line.split()[1] for line in host.log if line.startswith(what)] for what in ("put", "take"))
    assert takes == puts[::-1]
    assert len(puts) > 1 or not offloaded or name == "hidden_states"


def test_what_is_kept_is_given_back_once_and_only_for_the_same_shapes() -> None:
    policy, weight = Policy(saved=frozenset({EVERY_MATMUL})), torch.randn(3, 3)
    kept = Kept(policy, Host())
    with kept.seen(0, again=False):
        first = weight @ weight
    with Ran() as ran:
        with kept.seen(1, again=True):
            torch.mm(weight, weight)
        with kept.seen(0, again=True):
            torch.mm(weight[:2], weight)
            given = torch.mm(weight, weight)
            torch.mm(weight, weight)
    assert ran.count["matmul"] == 3
    assert given.data_ptr() == first.data_ptr()


def test_attention_is_asked_for_what_its_backward_pass_needs() -> None:
    """Without gradients these kernels leave the log-sum-exp out; the first pass runs without gradients."""
    asked: list[bool] = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func._schema.name.endswith("_efficient_attention"):
                asked.append(args[4])
                return args[0], args[0], args[0], args[0]
            return func(*args, **(kwargs or {}))

    kept = Kept(Policy(saved=frozenset({"attn_output"})), Host())
    heads = torch.empty(1, 2, 3, 4, device="meta")
    with torch.no_grad(), Spy(), kept.seen(0, again=False), naming("attn_output"):
        torch.ops.aten._scaled_dot_product_efficient_attention(heads, heads, heads, None, False)
    assert asked == [True]


@pytest.mark.parametrize(("kept", "seen"), [("query_proj", 3), ("cross_attn", 4), (EVERY_MATMUL, 9)])
def test_only_operators_of_what_is_kept_are_looked_at(kept: str, seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking costs microseconds an operator; a name within a name is looked at once."""
    looked: list[str | None] = []

    def place_of(self: Kept, operator: Any) -> str:
        looked.append(current_name())
        return ""

    monkeypatch.setattr(Kept, "place_of", place_of)
    x = torch.ones(2, 2)
    keeper = Kept(Policy(saved=frozenset({kept})), Host())
    for part in (keeper.seen(0, again=False), keeper.seen(0, again=True)):
        looked.clear()
        with torch.no_grad(), part:
            x + x
            for _ in range(3):
                with naming("query_proj"):
                    x + x
            with naming("cross_attn"):
                x + x
                with naming("cross_attn"):
                    x + x
                with naming("key_proj"):
                    x + x
                x + x
            with naming(UNREAD):
                x + x
        assert len(looked) == seen
        x + x
        assert len(looked) == seen, "nobody listens any more"


def test_the_last_blocks_may_keep_everything() -> None:
    shape = replace(SHAPE, num_layers=3)
    torch.manual_seed(0)
    model = WanTransformer(shape, Numerics())
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)
    model.checkpoint_blocks = True
    inputs = torch.randn(1, 16, 3, 4, 6), torch.full((1,), 500.0), torch.randn(1, 512, 8)
    found = []
    for unchecked in (0, 1, 3):
        model.unchecked_blocks = unchecked
        model.zero_grad()
        loss = model(*inputs).square().mean()
        with Ran() as ran:
            loss.backward()
        found.append(({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, ran.count["attention"]))
    assert [attentions for _, attentions in found] == [6, 4, 0]
    for gradients, _ in found[1:]:
        assert_same_bits(gradients, found[0][0])
