"""The block is fit for speed: names for policies, one graph, no look at values, one row of modulation per frame."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.support.blocks import GRID, MIXED, SHAPE, block_inputs, new_block
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import Conditioning, Numerics, WanShape, WanTransformer
from wan_core.model.checkpointing import Checkpointing
from wan_core.model.keeping import EVERY_MATMUL, Policy
from wan_core.model.names import ACTIVATIONS, UNREAD

IMAGES = WanShape(**SHAPE.to_dict() | {"image_dim": 20})


class Operators(TorchDispatchMode):
    """Counts what runs, and the size of the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count[str(func)] += 1
        sizes = [leaf.untyped_storage().nbytes() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.largest = max([self.largest, *sizes])
        return result

    @property
    def attentions(self) -> int:
        return sum(n for name, n in self.count.items() if "scaled_dot_product" in name and "backward" not in name)


def gradients(recompute: Any, numerics: Numerics = MIXED) -> tuple[dict[str, Tensor], Operators]:
    """Of one step, and what ran in its backward pass."""
    block, inputs = new_block(numerics), block_inputs(numerics)
    loss = block(*inputs, recompute=recompute).square().mean()
    with Operators() as ran:
        loss.backward()
    return {name: p.grad for name, p in block.named_parameters() if p.grad is not None}, ran


def test_a_policy_meets_every_name_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last product has its name in VACE's second stream alone, where the way back reads it."""
    met: list[str | None] = []

    def place_of(_policy: Policy, name: str | None, _operator: Any) -> str:
        met.append(name)
        return ""

    monkeypatch.setattr(Policy, "place_of", place_of)
    block, inputs = new_block(MIXED), block_inputs(MIXED)
    block(*inputs, recompute=Checkpointing(policy=Policy(frozenset({EVERY_MATMUL}))))
    assert tuple(name for name, _ in groupby(met) if name is not None) == (*ACTIVATIONS[:-1], UNREAD)


def test_nothing_is_named_while_no_policy_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_name: str) -> None:
        raise AssertionError("a name was entered")

    monkeypatch.setattr("wan_core.model.names._named", never)
    gradients(None)
    gradients(Checkpointing())


@pytest.mark.lasts(1)
@pytest.mark.parametrize(
    ("shape", "frames", "backend", "frozen"),
    [(SHAPE, 1, "eager", True), pytest.param(IMAGES, 2, "aot_eager", False, marks=pytest.mark.soak)],
    ids=["text", "images"],
)
def test_the_block_compiles_alone_into_one_graph(shape: WanShape, frames: int, backend: str, frozen: bool) -> None:
    """`frozen`: with adapters, as it is trained."""
    found = []
    for compiled in (False, True):
        torch.compiler.reset()
        block = new_block(MIXED, shape)
        if frozen:
            inject_lora(nn.ModuleDict({"blocks": nn.ModuleList([block])}), LoraConfig(rank=2), seed=1)
        run = torch.compile(block, fullgraph=True, backend=backend) if compiled else block
        inputs = block_inputs(MIXED, shape, frames=frames)
        output = run(*inputs)
        output.square().mean().backward()
        found.append([output.detach(), *(p.grad for p in block.parameters() if p.requires_grad)])
        assert len(found[-1]) == (21 if frozen else 1 + len([*block.parameters()]))
    for eager, graph in zip(*found, strict=True):
        torch.testing.assert_close(graph, eager, atol=2e-2, rtol=2e-2)


def test_modulation_is_never_expanded_to_one_row_per_token() -> None:
    """One row per token would be 6 D wide: larger than anything that a block of this shape makes."""
    tokens = GRID[0] * GRID[1] * GRID[2]
    for frames in (1, 2):
        block, inputs = new_block(Numerics()), block_inputs(Numerics(), frames=frames)
        with Operators() as ran:
            block(*inputs).square().mean().backward()
        assert ran.largest < 2 * tokens * 6 * SHAPE.dim * 4


VARIANTS = {
    "t2v": {},
    "flf2v": {"in_channels": 36, "image_dim": 20, "image_positions": 514},
    "ti2v": {"in_channels": 48, "out_channels": 48},
    "vace": {"vace_layers": (0,)},
    "control": {"in_channels": 52, "reference_channels": 16},
    "camera": {"in_channels": 32, "camera_channels": 24},
}


def conditioning(shape: WanShape, device: str) -> Conditioning:
    def empty(wanted: int, *sizes: int) -> Tensor | None:
        return torch.zeros(2, *sizes, device=device) if wanted else None

    return Conditioning(
        channels=empty(shape.condition_channels, shape.condition_channels, 3, 4, 6),
        image_tokens=empty(shape.image_dim, 514, shape.image_dim),
        vace=empty(len(shape.vace_layers), 96, 3, 4, 6),
        reference=empty(shape.reference_channels, shape.reference_channels, 4, 6),
        camera=empty(shape.camera_channels, shape.camera_channels, 3, 32, 48),
    )


SEEN_IN_CI = {("fake", "vace")}
"""the memory of a step is planned on the meta device: tests/wan_core/placement/test_memory.py"""


@pytest.mark.parametrize(
    ("variant", "device"),
    [
        pytest.param(variant, device, marks=[] if (device, variant) in SEEN_IN_CI else pytest.mark.soak)
        for variant in VARIANTS
        for device in ("meta", "fake")
    ],
)
def test_a_step_runs_without_values(variant: str, device: str) -> None:
    """On the meta device and under fake tensors: a look at a value, which would wait for the GPU, is an error there."""
    shape = WanShape(**SHAPE.to_dict() | {"num_layers": 1} | VARIANTS[variant])
    where = "meta" if device == "meta" else "cpu"
    with FakeTensorMode(), torch.device(where):
        model = WanTransformer(shape)
        model.checkpoint_blocks = True
        latent, text = torch.zeros(2, shape.out_channels, 3, 4, 6), torch.zeros(2, 512, 8)
        timestep = torch.zeros(2, 3) if shape.out_channels == 48 or shape.reference_channels else torch.zeros(2)
        output = model(latent, timestep, text, conditioning(shape, where))
        output.square().mean().backward()
        assert output.shape == latent.shape
        assert all(p.grad is not None for p in model.parameters())


def test_a_hint_travels_to_the_block_it_is_added_behind() -> None:
    """The second stream stays where its layers are; of a split model only the hint is carried."""

    class Spy:
        def __init__(self) -> None:
            self.carried: list[int] = []

        def to_block(self, index: int, tokens: Tensor, constants: Any) -> tuple[Tensor, Any]:
            self.carried.append(index)
            return tokens, constants

        def to_head(self, tokens: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
            return tokens, time

        def to_start(self, predicted: Tensor) -> Tensor:
            return predicted

    shape = WanShape(**SHAPE.to_dict() | {"num_layers": 3, "vace_layers": (0, 2)})
    with torch.device("meta"):
        model, inputs = WanTransformer(shape), (torch.zeros(2, 16, 3, 4, 6), torch.zeros(2), torch.zeros(2, 512, 8))
        model.carrier = spy = Spy()
        model(*inputs, conditioning(shape, "meta"))
    assert spy.carried == [0, 0, 1, 2, 2]
