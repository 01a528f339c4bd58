"""A layer that is run again by chunks: the bits of one that keeps everything, whatever lies elsewhere meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.animate import FACED, face_inputs, quick
from tests.support.blocks import GRID, MIXED, SHAPE, block_inputs, new_block
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import Conditioning, Numerics, WanShape, WanTransformer
from wan_core.model.block import Constants
from wan_core.model.checkpointing import Checkpointing
from wan_core.model.stages import Stages, chunks

TOKENS = GRID[0] * GRID[1] * GRID[2]
IMAGES = replace(SHAPE, image_dim=20)
WHOLE = 0


def adapted(block: nn.Module, dropout: float = 0.0, also: str = "nothing") -> nn.Module:
    """Filled adapters on its ten or twelve linears; only they train, as in a run."""
    holder = nn.ModuleDict({"blocks": nn.ModuleList([block])})
    inject_lora(holder, LoraConfig(rank=2, dropout=dropout, also_train=also), seed=1)
    for number, adapter in enumerate(adapter_parameters(holder).values()):
        adapter.data = torch.randn(adapter.shape, generator=torch.Generator().manual_seed(number))
    return block


def gradients(
    how: Checkpointing,
    chunk_tokens: int,
    *,
    shape: WanShape = SHAPE,
    frames: int = 1,
    dropout: float = 0.0,
    passes: int = 1,
    also: str = "nothing",
) -> dict[str, Tensor]:
    """Of every adapter and of the tokens, added up over the passes, and the output."""
    block, inputs = adapted(new_block(MIXED, shape), dropout, also), block_inputs(MIXED, shape, frames=frames)
    block.chunk_tokens = chunk_tokens
    torch.manual_seed(3)
    output = torch.empty(0)
    for _ in range(passes):
        output = block(*inputs, recompute=how)
        after = torch.get_rng_state()
        output.square().mean().backward()
        assert torch.equal(torch.get_rng_state(), after), "the walk back moved the generator"
    found = {name: p.grad for name, p in block.named_parameters() if p.grad is not None}
    linears = 12 if shape.image_dim else 10
    norms = 7 if shape.image_dim else 6  # one of them has a shift too
    assert len(found) == 2 * linears + {"nothing": 0, "norms": norms, "norms and biases": norms + linears}[also]
    assert inputs[0] is not None
    assert inputs[0].grad is not None
    return found | {"tokens": inputs[0].grad, "output": output.detach()}


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


EVERY_PAIR = {
    "nothing": ((WHOLE, SHAPE, 1), (4, IMAGES, 2), (10, SHAPE, 2), (10, IMAGES, 1)),
    "norms": ((4, SHAPE, 1), (WHOLE, IMAGES, 2), (10, SHAPE, 2)),
    "norms and biases": (
        *((WHOLE, SHAPE, 1), (WHOLE, IMAGES, 2), (4, IMAGES, 1), (4, SHAPE, 2)),
        *((10, SHAPE, 1), (10, IMAGES, 2)),
    ),
}
"""of what else is trained: chunks, shapes and frames that run in CI"""


@pytest.mark.parametrize(
    ("also", "chunk_tokens", "shape", "frames"),
    [
        pytest.param(
            *(also, *how),
            id=f"{also}-{how[0]}-{'images' if how[1] is IMAGES else 'text'}-{how[2]}",
            marks=[] if how in EVERY_PAIR[also] else pytest.mark.soak,
        )
        for also in ("nothing", "norms", "norms and biases")
        for how in itertools.product((WHOLE, 4, 10), (SHAPE, IMAGES), (1, 2))
    ],
)
def test_gradients_are_those_of_a_layer_that_keeps_everything(
    also: str, chunk_tokens: int, shape: WanShape, frames: int
) -> None:
    expected = gradients(Checkpointing(recomputes=False), chunk_tokens, shape=shape, frames=frames, also=also)
    assert_same_bits(gradients(Checkpointing(), chunk_tokens, shape=shape, frames=frames, also=also), expected)


@pytest.mark.parametrize("chunk_tokens", [pytest.param(WHOLE, marks=pytest.mark.soak), 4, 10])
@pytest.mark.parametrize("also", ["nothing", "norms and biases"])
def test_so_are_those_that_several_passes_add_up(also: str, chunk_tokens: int) -> None:
    """Sums of sums: what the chunks of a pass make is added up before it meets what earlier passes made."""
    expected = gradients(Checkpointing(recomputes=False), chunk_tokens, passes=3, also=also)
    assert_same_bits(gradients(Checkpointing(), chunk_tokens, passes=3, also=also), expected)


@pytest.mark.parametrize("chunk_tokens", [WHOLE, 4])
def test_dropout_draws_the_same_again(chunk_tokens: int) -> None:
    expected = gradients(Checkpointing(recomputes=False), chunk_tokens, dropout=0.5)
    assert_same_bits(gradients(Checkpointing(keeps_rng=True), chunk_tokens, dropout=0.5), expected)
    without = gradients(Checkpointing(recomputes=False), chunk_tokens)
    assert not torch.equal(without["output"], expected["output"]), "nothing was dropped, so nothing was shown"


def test_chunks_give_what_the_whole_gives() -> None:
    whole, parts = (gradients(Checkpointing(recomputes=False), size) for size in (WHOLE, 4))
    for name, value in parts.items():
        torch.testing.assert_close(value, whole[name], rtol=2e-2, atol=2e-2 * float(whole[name].abs().max()))


def cut(tokens: int, rows: int, most: int, batch: int = 1) -> list[tuple[int, int, list[int]]]:
    """Where the chunks of a stream begin and end, and which time rows they read."""
    stages = Stages(nn.Identity(), *(lambda *_: None,) * 3, most)  # type: ignore[arg-type]
    times = torch.arange(rows).view(1, rows, 1, 1)
    constants = Constants(times, *(torch.empty(0),) * 3)
    found = chunks(stages, torch.empty(batch, tokens, 2), constants)
    return [(part.start, part.stop, own.time_rows.flatten().tolist()) for part, own in found]


def test_a_chunk_reads_the_time_rows_of_its_own_tokens() -> None:
    assert cut(12, 1, 5) == [(0, 4, [0]), (4, 8, [0]), (8, 12, [0])]
    assert cut(12, 1, 12) == cut(12, 1, WHOLE) == [(0, 12, [0])]
    assert cut(12, 3, 8) == [(0, 8, [0, 1]), (8, 12, [2])]
    assert cut(12, 2, 4) == [(0, 3, [0]), (3, 6, [0]), (6, 9, [1]), (9, 12, [1])]
    assert cut(12, 3, 8, batch=2) == [(0, 4, [0]), (4, 8, [1]), (8, 12, [2])]


class Away:
    """Takes weights and inputs away between the passes; whoever reads them then reads NaN."""

    holds_values = True

    def __init__(self, model: nn.Module) -> None:
        self.model, self.log = model, []
        self._rest: dict[str, Tensor] = {}
        for name, p in model.named_parameters():
            if not p.requires_grad and name.startswith(("blocks.", "vace_blocks.")):
                self._rest[name] = p.data.clone()
                p.data.fill_(float("nan"))

    @contextmanager
    def weights(self, block: str, *, again: bool) -> Iterator[None]:
        self.log.append((block, again))
        own = {n: p for n, p in self.model.named_parameters() if n.startswith(f"{block}.") and n in self._rest}
        for name, p in own.items():
            p.data.copy_(self._rest[name])
        yield
        for p in own.values():
            p.data.fill_(float("nan"))

    def put(self, kept: Tensor) -> Callable[[], Tensor]:
        copy = kept.detach().clone()
        return lambda: copy.clone()


VARIANTS: dict[str, dict[str, Any]] = {
    "t2v": {},
    "vace": {"vace_layers": (0, 2)},
    "ti2v": {"time": 3},
    "animate": FACED,
}


@pytest.mark.parametrize("variant", [pytest.param("t2v", marks=pytest.mark.soak), *list(VARIANTS)[1:]])
def test_weights_and_inputs_may_rest_elsewhere_between_the_passes(variant: str) -> None:
    changes = dict(VARIANTS[variant])
    times = changes.pop("time", 1)
    shape = replace(SHAPE, num_layers=3, **changes)

    def step(*, away: bool, checkpointed: bool) -> tuple[dict[str, Tensor], list[Any]]:
        torch.manual_seed(0)
        model = WanTransformer(shape, Numerics())
        for p in model.parameters():
            nn.init.normal_(p, std=0.2)
        targets = (r"(vace_)?blocks\.\d+\.(self_attn|cross_attn)\.(q|k|v|o)", r"(vace_)?blocks\.\d+\.ffn\.(0|2)")
        inject_lora(model.requires_grad_(False), LoraConfig(rank=2, targets=targets), seed=1)
        for number, adapter in enumerate(adapter_parameters(model).values()):
            adapter.data = torch.randn(adapter.shape, generator=torch.Generator().manual_seed(number))
        for layer in (*model.blocks, *getattr(model, "vace_blocks", ())):
            layer.chunk_tokens = 4
        model.checkpoint_blocks = checkpointed
        if away:
            model.offload = Away(model)
        given = Conditioning(vace=torch.ones(1, 96, 3, 4, 6)) if shape.vace_layers else None
        if shape.face_layers:
            quick(model)
            given = Conditioning(**face_inputs(1, 3, 4, 6))
        timestep = torch.full((1, times) if times > 1 else (1,), 500.0)
        latent, text = torch.randn(1, 16, 3, 4, 6), torch.randn(1, 512, 8)
        output = model(latent, timestep, text, given)
        output.square().mean().backward()
        found = {name: p.grad for name, p in adapter_parameters(model).items() if p.grad is not None}
        return found | {"output": output.detach()}, model.offload.log if away else []

    expected, _ = step(away=False, checkpointed=False)
    assert len(expected) == 1 + 20 * (3 + len(shape.vace_layers))
    found, log = step(away=True, checkpointed=True)
    assert_same_bits(found, expected)
    forward = [block for block, again in log if not again]
    assert [block for block, again in log if again] == forward[::-1]


def test_nothing_is_kept_after_the_backward_pass() -> None:
    """A loss that somebody still holds does not hold the inputs of forty blocks."""
    block, inputs = adapted(new_block(MIXED)), block_inputs(MIXED)
    given: list[Tensor] = []

    class Once:
        holds_values = True

        def weights(self, block: str, *, again: bool) -> Any:
            return Checkpointing().offload.weights(block, again=again)

        def put(self, kept: Tensor) -> Callable[[], Tensor]:
            given.append(kept.detach().clone())
            return given.pop

    loss = block(*inputs, recompute=Checkpointing(offload=Once())).square().mean()
    assert len(given) == 1
    loss.backward()
    assert not given
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_layer_that_trains_nothing_is_not_run_again() -> None:
    block, inputs = new_block(MIXED).requires_grad_(False), block_inputs(MIXED)
    assert inputs[0] is not None
    assert not block(inputs[0].detach(), *inputs[1:], recompute=Checkpointing()).requires_grad
