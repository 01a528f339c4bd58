"""Names and sizes of every weight, against tables made from the official classes (tests/fixtures/README.md)."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from wan_core.checkpoint import to_file
from wan_core.model import WanShape, WanTransformer, block_of

TABLE = json.loads((Path(__file__).parents[2] / "fixtures" / "wan_variant_keys.json").read_text(encoding="utf-8"))


def small(**changes: object) -> WanShape:
    return WanShape(dim=1536, ffn_dim=8960, num_heads=12, num_layers=30, **changes)  # type: ignore[arg-type]


def large(**changes: object) -> WanShape:
    return WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40, **changes)  # type: ignore[arg-type]


SHAPES = {
    "wan2.1-t2v-1.3B": small(),
    "wan2.1-t2v-14B": large(),
    "wan2.1-i2v-14B-480p-or-720p": large(in_channels=36, image_dim=1280),
    "wan2.1-flf2v-14B": large(in_channels=36, image_dim=1280, image_positions=514),
    "wan2.1-vace-1.3B": small(vace_layers=tuple(range(0, 30, 2))),
    "wan2.1-vace-14B": large(vace_layers=tuple(range(0, 40, 5))),
    "wan2.2-t2v-A14B-expert": large(),
    "wan2.2-i2v-A14B-expert": large(in_channels=36),
    "wan2.2-ti2v-5B": WanShape(
        dim=3072, ffn_dim=14336, num_heads=24, num_layers=30, in_channels=48, out_channels=48
    ),
    "wan2.2-s2v-14B": large(
        sound_channels=1024, sound_depth=25, sound_layers=(0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39)
    ),
}  # fmt: skip
NOT_COMPARED = {"wan2.2-animate-14B"}
"""its official class has fixed kernels among its weights"""


def test_the_table_of_official_variants_is_covered() -> None:
    assert SHAPES.keys() | NOT_COMPARED == TABLE.keys() - {"_about"}


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=pytest.mark.soak if name in ("wan2.1-t2v-14B", "wan2.1-vace-14B") else [])
        for name in SHAPES
    ],
)
def test_names_and_shapes_are_those_of_the_official_class(variant: str) -> None:
    with torch.device("meta"):
        state = WanTransformer(SHAPES[variant]).state_dict()
    found: dict[str, list[list[int]]] = defaultdict(list)
    for name, tensor in state.items():
        found[re.sub(r"(blocks|injector|injector_adain_layers)\.\d+\.", r"\1.{i}.", to_file(name))].append(
            list(tensor.shape)
        )
    wanted = TABLE[variant]["keys"]
    assert found == {name: [entry["shape"]] * entry["count"] for name, entry in wanted.items()}
    assert len(state) == TABLE[variant]["tensors"]
    assert sum(tensor.numel() for tensor in state.values()) == TABLE[variant]["params"]


def test_a_shape_survives_json() -> None:
    shape = SHAPES["wan2.1-vace-14B"]
    assert WanShape.from_dict(json.loads(json.dumps(shape.to_dict()))) == shape


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("blocks.7.self_attn.q.weight", ("blocks", 7, "self_attn.q.weight")),
        ("vace_blocks.0.before_proj.bias", ("vace_blocks", 0, "before_proj.bias")),
        ("blocks.39", ("blocks", 39, "")),
        ("blocks", None),
        ("blocks.first.ffn.0", None),
        ("head.head.weight", None),
        ("text_blocks.0.weight", None),
        ("blocks.12345.ffn.0", None),
    ],
)
def test_a_name_tells_the_block_it_lies_in(name: str, place: tuple[str, int, str] | None) -> None:
    assert block_of(name) == place
