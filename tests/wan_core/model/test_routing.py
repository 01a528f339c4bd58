"""Token routing: which tokens go through, what they carry with them, and what the others miss."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.tiny_run import TINY, TINY_CAMERA, TINY_FLF2V, TINY_I2V_21, TINY_TI2V, TINY_VACE
from wan_core.errors import ConfigError
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import (
    Conditioning,
    Passage,
    Route,
    WanShape,
    WanTransformer,
    draw_passages,
    placed_routes,
    read_routes,
    tokens_by_layer,
)
from wan_core.placement import DeviceCarrier, Placement
from wan_core.precision import PrecisionPolicy

SIZE = (2, 3, 8, 12)  # clips, latent frames, height, width: 24 tokens in a frame
HALF = Route(selection_ratio=0.5, start_layer_idx=1, end_layer_idx=2)
KINDS = {
    "text to video": TINY,
    "CLIP tokens": TINY_I2V_21,
    "first and last frame": TINY_FLF2V,
    "a timestep per frame": TINY_TI2V,
    "control stream": replace(TINY_VACE, num_layers=4, vace_layers=(0, 2)),
    "control stream that begins in the route": replace(TINY_VACE, num_layers=4, vace_layers=(1, 3)),
    "camera": TINY_CAMERA,
    "reference image": replace(TINY, reference_channels=16),
}


def model_of(shape: WanShape) -> WanTransformer:
    torch.manual_seed(0)
    model = WanTransformer(replace(shape, num_layers=4), PrecisionPolicy().numerics(torch.float32))
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3 if name.endswith("modulation") else 0.1)
    inject_lora(model, LoraConfig(rank=4), seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def inputs(shape: WanShape) -> tuple[Tensor, Tensor, Tensor, Conditioning]:
    clips, frames, height, width = SIZE
    torch.manual_seed(1)
    rows = shape.image_positions or 257
    given = Conditioning(
        channels=torch.randn(clips, shape.condition_channels, *SIZE[1:]) if shape.condition_channels else None,
        image_tokens=torch.randn(clips, rows, shape.image_dim) if shape.image_dim else None,
        vace=torch.randn(clips, shape.vace_channels, *SIZE[1:]) if shape.vace_layers else None,
        camera=torch.randn(clips, 24, frames, 8 * height, 8 * width) if shape.camera_channels else None,
        reference=torch.randn(clips, 16, height, width) if shape.reference_channels else None,
    )
    timestep = torch.rand(clips, frames) * 1000 if shape is TINY_TI2V else torch.rand(clips) * 1000
    return torch.randn(clips, shape.out_channels, *SIZE[1:]), timestep, torch.randn(clips, 512, 4096), given


def passages(shape: WanShape, *routes: Route) -> tuple[Passage, ...]:
    _, frames, height, width = SIZE
    generators = [torch.Generator().manual_seed(number) for number in range(len(routes))]
    return draw_passages(routes, frames + bool(shape.reference_channels), height * width // 4, generators)


def trained(model: WanTransformer, given: tuple[Any, ...], routed: tuple[Passage, ...]) -> list[Tensor]:
    """The answer, and the gradient of every adapter."""
    for parameter in model.parameters():
        parameter.grad = None
    answer = model(*given, routed)
    (answer * torch.linspace(-1, 1, answer.numel()).view_as(answer)).sum().backward()
    return [answer.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


class _TokenByToken(torch.nn.Module):
    """A layer that is told the timestep and the position of every single token, and which ones it may see."""

    def __init__(self, layer: Any, frames: int, kept: Tensor | None, second: bool) -> None:
        super().__init__()
        self.layer, self.frames, self.kept, self.second = layer, frames, kept, second

    def forward(self, *inputs: Tensor, recompute: Any = None) -> Any:
        streams, (rows, text, cos, sin, *image) = inputs[: 1 + self.second], inputs[1 + self.second :]
        count = streams[0].shape[1]
        frame = torch.arange(count) * rows.shape[1] // count
        kept = torch.arange(count) if self.kept is None else self.kept
        # A row of modulation for each token, so no count of tokens in a frame is used.
        own = (rows[:, frame[kept]], text, cos[kept], sin[kept], *image)
        found = self.layer(*(stream[:, kept] for stream in streams), *own)
        found = found if self.second else (found,)
        whole = [torch.zeros_like(streams[0], dtype=one.dtype) for one in found]
        whole[0] = streams[0].clone()
        for all_of_them, one in zip(whole, found, strict=True):
            all_of_them[:, kept] = one
        return tuple(whole) if self.second else whole[0]


IN_CI = ("first and last frame", "a timestep per frame", "control stream that begins in the route", "camera")


@pytest.mark.parametrize(
    "kind", [kind if kind in IN_CI else pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS]
)
def test_tokens_carry_their_position_timestep_and_control_with_them(kind: str) -> None:
    shape = KINDS[kind]
    model, given, (passage,) = model_of(shape), inputs(shape), passages(shape, HALF)
    found = trained(model, given, (passage,))
    frames = SIZE[1] + bool(shape.reference_channels)
    for stream, places in (("blocks", range(4)), ("vace_blocks", shape.vace_layers)):
        layers = getattr(model, stream, ())
        for number, place in enumerate(places if layers else ()):
            kept = passage.kept if HALF.start_layer_idx <= place <= HALF.end_layer_idx else None
            layers[number] = _TokenByToken(layers[number], frames, kept, second=stream == "vace_blocks")
    # Layer by layer, with all tokens in their places: what passes by a layer is as it was before it.
    for one, other in zip(found, trained(model, given, ()), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-4 * float(other.abs().max()))


def test_a_frame_sends_equally_many_tokens_and_each_draw_others() -> None:
    route = Route(selection_ratio=0.3, start_layer_idx=0, end_layer_idx=0)
    first, again, other = (
        draw_passages([route], 3, 24, [torch.Generator().manual_seed(seed)])[0].kept for seed in (7, 7, 8)
    )
    assert len(first) == 3 * (24 - round(0.3 * 24))
    assert torch.bincount(first // 24).tolist() == [17, 17, 17]
    assert torch.equal(first, first.unique())  # rising, and none twice
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_every_token_has_its_turn() -> None:
    counts = torch.zeros(48)
    for seed in range(400):
        counts[draw_passages([HALF], 2, 24, [torch.Generator().manual_seed(seed)])[0].kept] += 1
    # A share of one half of 400 draws: 200, with a deviation of 10.
    assert counts.min() > 150
    assert counts.max() < 250


@pytest.mark.parametrize(
    "kind", [pytest.param("text to video", marks=pytest.mark.soak), "a timestep per frame", "control stream"]
)
def test_checkpointing_chunks_and_a_split_change_nothing(kind: str) -> None:
    shape = KINDS[kind]
    model, given = model_of(shape), inputs(shape)
    routes = (HALF, Route(selection_ratio=0.25, start_layer_idx=3, end_layer_idx=3))
    routed = passages(shape, *routes)
    plain = trained(model, given, routed)
    model.checkpoint_blocks = True
    for block in (*model.blocks, *(model.vace_blocks if shape.vace_layers else ())):
        block.chunk_tokens = 10
    small = trained(model, given, routed)
    for one, other in zip(plain, small, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))
    model.carrier = DeviceCarrier(Placement((torch.device("cpu"), torch.device("cpu"), *(torch.device("cpu", 0),) * 2)))
    assert all(torch.equal(one, other) for one, other in zip(small, trained(model, given, routed), strict=True))


def test_the_five_progressive_routes_of_the_page_fit_thirty_blocks() -> None:
    page = (Path(__file__).parents[3] / "docs" / "measured" / "token_routes.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if "five progressive routes" in line]
    routes = placed_routes(read_routes(line.partition("  ")[0]), 30)
    shares = [(route.start_layer_idx, route.end_layer_idx, route.selection_ratio) for route in routes]
    assert shares == [(2, 5, 0.1), (6, 11, 0.3), (12, 17, 0.5), (18, 23, 0.3), (24, 28, 0.1)]


def test_a_share_of_nothing_is_off() -> None:
    assert placed_routes(read_routes("0: 1..-1; 0.0: 0..0"), 4) == ()


JSON = {"routes": [{"selection_ratio": 0.5, "start_layer_idx": 2, "end_layer_idx": -2}]}


@pytest.mark.parametrize(
    "text", ["0.5: 2..-2", " .5 :2 .. -2 ; ", json.dumps(JSON), json.dumps(JSON["routes"]),
             json.dumps(JSON["routes"][0]), json.dumps({"tread_config": JSON})],
)  # fmt: skip
def test_routes_are_read_in_both_forms(text: str) -> None:
    assert read_routes(text) == (Route(selection_ratio=0.5, start_layer_idx=2, end_layer_idx=-2),)


def test_layers_are_counted_from_either_end_and_routes_sorted() -> None:
    placed = placed_routes(read_routes("0.7: -4..-1; 0.3: 1..3"), 40)
    assert [(r.start_layer_idx, r.end_layer_idx) for r in placed] == [(1, 3), (36, 39)]
    assert tokens_by_layer(read_routes("0.5: 1..-2"), 4, 24, 3) == (72, 36, 36, 72)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("half of them", 'tread_routes has "half of them", which is not a route.'),
        ("0.5: 2", 'tread_routes has "0.5: 2", which is not a route.'),
        ("1.5: 2..3", "tread_routes: selection_ratio 1.5 is out of range. Use 0.0 to 0.99."),
        ('{"routes": [', "tread_routes is no JSON"),
        ('[{"selection_ratio": 0.5}]', "A route of tread_routes lacks end_layer_idx, start_layer_idx."),
        ('[{"selection_ratio": 0.5, "start_layer_idx": 2, "end_layer": 3, "end_layer_idx": 3}]',
         'Unknown setting "end_layer" in tread_routes[0]. Did you mean "end_layer_idx"?'),
        ("[3]", "tread_routes[0] must be an object"),
    ],
)  # fmt: skip
def test_what_is_no_route_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_routes(text)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.5: 2..40", "tread_routes goes from layer 2 to 40, and this model has layers 0 to 29."),
        ("0.5: -2..2", "tread_routes goes from layer -2 to 2, and this model has layers 0 to 29."),
        ("0.5: 2..9; 0.3: -21..12", "Two routes of tread_routes share layer 9."),
    ],
)
def test_layers_a_model_lacks_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        placed_routes(read_routes(text), 30)
    assert str(error.value).startswith(said)
