"""Split tokens on simulated devices: the gradients of one model, whatever it reads and however it is checkpointed."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.animate import face_inputs, without_motion_encoder
from tests.support.golden import FLOAT64
from wan_core.errors import ConfigError
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora, without_adapters
from wan_core.model import (
    POLICIES,
    Conditioning,
    Numerics,
    Passage,
    Route,
    WanShape,
    WanTransformer,
    draw_passages,
)
from wan_core.model.heads import shares
from wan_core.model.parts import parts_of
from wan_core.parallel import SplitTokens

SHAPE = WanShape(dim=60, ffn_dim=96, num_heads=5, num_layers=2, text_dim=24)
SIZE = (2, 3, 6, 10)
"""clips, latent frames, height, width: 15 tokens in a frame, so two and four copies have uneven parts"""
HALF = Route(selection_ratio=0.5, start_layer_idx=1, end_layer_idx=1)
KINDS = {
    "text to video": SHAPE,
    "first and last frame": replace(SHAPE, in_channels=36, image_dim=32, image_positions=14),
    "a timestep per frame": replace(SHAPE, in_channels=48, out_channels=48),
    "control stream": replace(SHAPE, vace_layers=(0, 1)),
    "camera": replace(SHAPE, in_channels=36, camera_channels=24),
    "reference image": replace(SHAPE, reference_channels=16, in_channels=48),
    "face": replace(SHAPE, pose_channels=16, face_layers=(1,)),
}
ELSEWHERE = ("text to video", "control stream", "reference image")
"""in CI with other shares or routes below, and on ranks"""
SLOW = (*ELSEWHERE, "face")


def model_of(shape: WanShape, numerics: Numerics = FLOAT64, **lora: Any) -> WanTransformer:
    torch.manual_seed(0)
    with without_motion_encoder():
        model = WanTransformer(shape, numerics)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3 if name.endswith("modulation") else 0.1)
    inject_lora(model, LoraConfig(rank=4, **lora), seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.to(numerics.compute)
    return model


def inputs(shape: WanShape, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Conditioning]:
    clips, frames, height, width = SIZE
    torch.manual_seed(1)

    def of(*sizes: int) -> Tensor | None:
        return torch.randn(clips, *sizes, dtype=dtype) if sizes[0] else None

    given = Conditioning(
        channels=of(shape.condition_channels, *SIZE[1:]),
        image_tokens=of(shape.image_positions, shape.image_dim),
        vace=of(shape.vace_channels if shape.vace_layers else 0, *SIZE[1:]),
        camera=of(shape.camera_channels, frames, 8 * height, 8 * width),
        reference=of(shape.reference_channels, height, width),
        **(face_inputs(clips, frames, height, width, dtype) if shape.face_layers else {}),
    )
    timestep = torch.rand(clips, frames) if shape.out_channels == 48 else torch.rand(clips)
    latent, text = (
        torch.randn(clips, shape.out_channels, *SIZE[1:], dtype=dtype),
        torch.randn(clips, 20, 24, dtype=dtype),
    )
    return latent, timestep.to(dtype) * 1000, text, given


def passages(shape: WanShape, *routes: Route) -> tuple[Passage, ...]:
    generators = [torch.Generator().manual_seed(number) for number in range(len(routes))]
    return draw_passages(routes, SIZE[1] + bool(shape.reference_channels), SIZE[2] * SIZE[3] // 4, generators)


def over(model: WanTransformer, copies: int, shares: tuple[int, ...] = ()) -> WanTransformer:
    """The model with as many copies in all, on simulated devices."""
    model.team = SplitTokens(model, [copy.deepcopy(model) for _ in range(copies - 1)], shares)
    return model


def trained(model: WanTransformer, given: tuple[Any, ...], routed: tuple[Passage, ...] = ()) -> list[Tensor]:
    """The answer, and the gradient of every adapter, of two micro-batches."""
    for parameter in model.parameters():
        parameter.grad = None
    for _ in range(2):
        answer = model(*given, routed)
        weights = torch.linspace(-1, 1, answer.numel(), dtype=answer.dtype, device=answer.device)
        (answer * weights.view_as(answer)).sum().backward()
    if isinstance(model.team, SplitTokens):
        model.team.sum_gradients()
    return [answer.detach(), *(p.grad for p in adapter_parameters(model).values() if p.grad is not None)]


def furthest(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of two lists of tensors, by the largest value of each."""
    assert len(found) == len(expected) > 1
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("kind", "shares"),
    [
        *((kind, (6, 3, 1)) for kind in KINDS if kind not in SLOW),
        ("text to video", (1, 999)),
        *(pytest.param(kind, (6, 3, 1), marks=pytest.mark.soak) for kind in SLOW),
        *(pytest.param("text to video", one, marks=pytest.mark.soak) for one in ((), (1, 1), (4, 1, 1, 1, 1, 2))),
    ],
)
def test_gradients_are_those_of_one_model_in_float64(kind: str, shares: tuple[int, ...]) -> None:
    """With 5 heads; () is three equal parts."""
    shape = KINDS[kind]
    given = inputs(shape)
    for routed in ((), passages(shape, HALF)):
        model = model_of(shape)
        expected = trained(model, given, routed)
        assert furthest(trained(over(model, len(shares) or 3, shares), given, routed), expected) < 1e-11


@pytest.mark.parametrize("shares", [pytest.param((1, 1), marks=pytest.mark.soak), (5, 1, 2)], ids=str)
@pytest.mark.parametrize(
    "kind",
    ["control stream", *(pytest.param(k, marks=pytest.mark.soak) for k in ("a timestep per frame", "reference image"))],
)
def test_several_routes_are_those_of_one_model_in_float64(kind: str, shares: tuple[int, ...]) -> None:
    """Of 15 tokens in a frame 8 go through the first layer, 5 through the second and one through the third."""
    ratios = (0.5, 0.7, 0.99)
    shape = replace(KINDS[kind], num_layers=4, vace_layers=(0, 2) if KINDS[kind].vace_layers else ())
    routes = [Route(selection_ratio=one, start_layer_idx=n, end_layer_idx=n) for n, one in enumerate(ratios)]
    given, routed = inputs(shape), passages(shape, *routes)
    expected = trained(model_of(shape), given, routed)
    model = over(model_of(shape), len(shares), shares)
    model.checkpoint_blocks = True
    assert furthest(trained(model, given, routed), expected) < 1e-11


@pytest.mark.parametrize(
    "policy",
    # CI: one that keeps something, and those that offload something.
    [pytest.param(p, marks=pytest.mark.soak) if p in ("full", "matmul_without_batch") else p for p in POLICIES],
)
def test_recomputing_changes_nothing(policy: str) -> None:
    shape = KINDS["control stream"]
    given, routed = inputs(shape), passages(shape, HALF)
    expected = trained(model_of(shape), given, routed)
    model = over(model_of(shape), 2)
    model.checkpoint_blocks, model.checkpoint_policy, model.unchecked_blocks = True, POLICIES[policy], 1
    model.run_in_chunks(8)
    assert furthest(trained(model, given, routed), expected) < 1e-11


@pytest.mark.parametrize("lora", [{"kind": "DoRA"}, {"kind": "LoKr", "also_train": "norms and biases"}], ids=str)
def test_every_kind_of_adapter_is_summed(lora: dict[str, str]) -> None:
    given = inputs(SHAPE)
    model = model_of(SHAPE, **lora)
    expected = trained(model, given)
    assert len(expected) > 40
    model.checkpoint_blocks = True
    assert furthest(trained(over(model, 2), given), expected) < 1e-11


@pytest.mark.soak
@pytest.mark.lasts(4)
def test_what_lies_between_two_exchanges_is_compiled() -> None:
    """A first stage that is compiled would be a graph for each piece between its five exchanges."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch.compiler.reset()
    given, counter = inputs(SHAPE), CompileCounterWithBackend("eager")
    expected, model = trained(model_of(SHAPE), given), over(model_of(SHAPE), 2)
    model.checkpoint_blocks = True
    for one in (model, *model.team.copies):  # type: ignore[union-attr]
        one.compile_blocks(counter)  # type: ignore[arg-type]
    assert furthest(trained(model, given), expected) < 1e-11
    assert counter.frame_count <= 4


def test_float32_differs_by_rounding() -> None:
    given = inputs(SHAPE, torch.float32)
    model = model_of(SHAPE, Numerics())
    expected = trained(model, given)
    assert furthest(trained(over(model, 2), given), expected) < 1e-5


def test_parts_have_equally_many_tokens_of_every_frame_and_of_every_layer() -> None:
    (passage,) = passages(SHAPE, Route(selection_ratio=0.4, start_layer_idx=0, end_layer_idx=0))
    devices = [torch.device("cpu")] * 4
    for routed in ((), (passage,)):
        parts = parts_of(3, 15, devices, routed)
        assert torch.equal(torch.cat([part.numbers for part in parts]).sort().values, torch.arange(45))
        for part in parts:
            assert torch.bincount(part.numbers // 15).unique().numel() == 1
            assert torch.equal(part.numbers, part.numbers.sort().values)
    assert [len(part.numbers) // 3 for part in parts_of(3, 15, devices)] == [3, 4, 4, 4]
    routed_parts = parts_of(3, 15, devices, (passage,))
    kept = [part.numbers[part.passages[0].kept] for part in routed_parts]
    assert torch.equal(torch.cat(kept).sort().values, passage.kept)
    assert [len(numbers) // 3 for numbers in kept] == [2, 2, 2, 3]
    assert [len(part.numbers) // 3 for part in routed_parts] == [4, 3, 4, 4]


def test_uneven_parts_have_their_share_of_every_frame_and_of_every_layer() -> None:
    (passage,) = passages(SHAPE, Route(selection_ratio=0.4, start_layer_idx=0, end_layer_idx=0))
    devices = [torch.device("cpu")] * 3
    for routed in ((), (passage,)):
        parts = parts_of(3, 15, devices, routed, (90, 8, 2))
        assert torch.equal(torch.cat([part.numbers for part in parts]).sort().values, torch.arange(45))
        for part in parts:
            assert torch.bincount(part.numbers // 15).unique().numel() == 1
        assert [len(part.numbers) // 3 for part in parts] == ([13, 1, 1] if not routed else [11, 2, 2])
    assert [len(part.passages[0].kept) // 3 for part in parts] == [7, 1, 1], "9 of 15 go through"
    assert [len(part.numbers) for part in parts_of(1, 5, devices, (), (90, 8, 2))] == [1, 2, 2], "few: equally"
    assert shares(40, (74, 26)) == [29, 11]
    assert shares(40, (999, 1)) == [39, 1]
    assert (shares(40, (1, 999)), shares(40, (1, 999), least=1)) == ([0, 40], [1, 39])
    assert (shares(2, (1, 1, 1), least=1), shares(15, 4)) == ([0, 1, 1], [3, 4, 4, 4])


def test_what_cannot_be_shared_out_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="has 1 tokens, too few to split over 2 devices"):
        parts_of(3, 1, [torch.device("cpu")] * 2)
    drops = model_of(SHAPE, dropout=0.1)
    with pytest.raises(ConfigError, match="set dropout to 0"):
        over(drops, 2)


def test_a_pass_without_gradients_runs_on_the_first_copy_alone() -> None:
    model, given = over(model_of(SHAPE), 2), inputs(SHAPE)
    assert model.team is not None
    with torch.no_grad():
        expected = model_of(SHAPE)(*given)
        for parameter in model.team.copies[0].parameters():
            parameter.fill_(float("nan"))
        assert torch.equal(model(*given), expected)


def test_inside_watching_it_runs_on_all_with_the_adapters_of_now() -> None:
    model, given = over(model_of(SHAPE), 2), inputs(SHAPE)
    assert isinstance(model.team, SplitTokens)
    trained(model, given)
    of_all, adapters = adapter_parameters(model.team.copies[0]), adapter_parameters(model)
    with torch.no_grad():
        for parameter in adapters.values():
            parameter.mul_(2)
        expected = model(*given)
        with model.team.watching():
            assert furthest([model(*given), expected], [expected, expected]) < 1e-11
            assert not torch.equal(model(*given), expected), "sums in one order: it ran on one copy"
            assert all(torch.equal(of_all[name], value) for name, value in adapters.items())
            with without_adapters(model):
                bare = model(*given)
            for parameter in adapters.values():
                parameter.zero_()
        with without_adapters(model):
            assert furthest([bare, bare], [model(*given)] * 2) < 1e-11
    trained(model, given)
    assert all(torch.equal(of_all[name], value) for name, value in adapters.items()), "what is trained again"


class Broken(torch.nn.Module):
    """A layer that raises, in its first pass or in a later one."""

    def __init__(self, layer: torch.nn.Module, fails_at: int) -> None:
        super().__init__()
        self.layer, self.left = layer, fails_at

    def forward(self, *inputs: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise torch.OutOfMemoryError("planted")
        return self.layer(*inputs)


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2))])
@pytest.mark.parametrize("fails_at", [1, 2], ids=["forward", "backward"])
def test_an_error_of_one_copy_ends_all_and_the_step_can_be_tried_again(number: int, fails_at: int) -> None:
    model, given = model_of(SHAPE), inputs(SHAPE)
    expected = trained(model, given)
    over(model, 3)
    assert isinstance(model.team, SplitTokens)
    model.checkpoint_blocks = True
    broken = (model, *model.team.copies)[number].blocks[1].self_attn
    broken.o = Broken(broken.o, fails_at)
    with pytest.raises(torch.OutOfMemoryError, match="planted"):
        trained(model, given)
    model.team.forget_gradients()
    assert furthest(trained(model, given), expected) < 1e-11
