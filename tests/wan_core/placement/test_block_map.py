"""Where the weights of a plan will lie, before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.cards import AMPERE, put_in
from tests.support.tiny_run import TINY, TINY_VACE, random_weights
from wan_core.errors import ConfigError
from wan_core.files import Roots
from wan_core.footprint import placements_of, planned_weights
from wan_core.load import ModelPlan, inspect_model, materialize, stays_stored
from wan_core.lora import LoraConfig, check_targets
from wan_core.lora.source import is_wan_linear
from wan_core.model import WanTransformer
from wan_core.placement import PlacementConfig, resolve_placement
from wan_core.precision import QuantizeConfig
from wan_core.train import FlopCount

TWO_GPUS = {"devices": "cuda:0,cuda:1"}


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """A tiny model of four blocks, a VACE model, and a pair of which the low-noise half is stored wider."""
    shape = replace(TINY, num_layers=4)
    small = {name: tensor.to(torch.bfloat16) for name, tensor in random_weights(shape).items()}
    save_file(small, tmp_path / "wan_high_noise.safetensors")
    save_file(random_weights(shape), tmp_path / "wan_low_noise.safetensors")
    save_file(random_weights(TINY_VACE), tmp_path / "vace.safetensors")
    return Roots({"diffusion_models": (str(tmp_path),)})


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, AMPERE, AMPERE)


def plan(file: str = "wan_low_noise", **placement: str) -> ModelPlan:
    return ModelPlan(base_file=f"diffusion_models:{file}.safetensors", placement=PlacementConfig(**placement))


def test_on_one_device_the_plan_is_what_a_load_takes(roots: Roots) -> None:
    for asked in (plan(devices="cpu"), replace(plan(devices="cpu"), base_precision="bf16")):
        model = materialize(asked, roots, None)
        held = [*model.parameters(), *model.buffers()]
        assert planned_weights(asked, roots) == {"cpu": sum(tensor.nbytes for tensor in held)}


def test_a_split_gives_every_device_its_blocks_the_last_the_head_and_the_first_the_rest(
    roots: Roots, two_gpus: None
) -> None:
    whole = planned_weights(plan(devices="cpu"), roots)["cpu"]
    split = planned_weights(plan(mode="split blocks", split_at="1", **TWO_GPUS), roots)
    halves = planned_weights(plan(mode="split blocks", **TWO_GPUS), roots)
    block, head = split["cuda:1"] - halves["cuda:1"], 4 * (128 * 64 + 64 + 2 * 128)
    assert sum(split.values()) == sum(halves.values()) == whole
    assert split["cuda:1"] == 3 * block + head
    assert halves["cuda:1"] == 2 * block + head
    assert halves["cuda:0"] > halves["cuda:1"]


def test_control_layers_lie_on_the_first_device(roots: Roots, two_gpus: None) -> None:
    vace = planned_weights(plan("vace", mode="split blocks", **TWO_GPUS), roots)
    assert vace["cuda:0"] > 2 * vace["cuda:1"]


@pytest.mark.parametrize("mode", ["copy per GPU", "split tokens"])
def test_copies_lie_on_a_device_each_and_add_up_where_they_share_one(roots: Roots, two_gpus: None, mode: str) -> None:
    whole = planned_weights(plan(devices="cpu"), roots)["cpu"]
    copies = plan(mode=mode, **TWO_GPUS)
    assert [str(placement.first) for placement in placements_of(copies, 4)] == ["cuda:0", "cuda:1"]
    assert planned_weights(copies, roots) == {"cuda:0": whole, "cuda:1": whole}
    assert planned_weights(plan(mode=mode, devices="cpu,cpu"), roots) == {"cpu": 2 * whole}


def test_of_a_pair_the_larger_expert_counts(roots: Roots) -> None:
    high, low = (planned_weights(plan(f"wan_{half}_noise", devices="cpu"), roots)["cpu"] for half in ("high", "low"))
    assert high < low
    pair = replace(plan("wan_high_noise", devices="cpu"), low_noise_file="diffusion_models:wan_low_noise.safetensors")
    assert planned_weights(pair, roots) == {"cpu": low}


def test_both_streams_of_a_vace_model_are_blocks_to_whoever_asks(roots: Roots, two_gpus: None) -> None:
    """Loading, quantization, adapters, starting from a LoRA, the count of arithmetic; placement keeps them together."""
    asked = plan("vace", devices="cpu")
    quantize = QuantizeConfig(vace_blocks=True)
    found = inspect_model(asked, roots)
    with torch.device("meta"):
        model = WanTransformer(found.variant.shape)
    linears = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    of_blocks = {name for name in linears if name.startswith(("blocks.", "vace_blocks."))}
    assert {name.split(".")[0] for name in of_blocks} == {"blocks", "vace_blocks"}
    in_8_bits = replace(found.weights["blocks.0.ffn.0.weight"], dtype="F8_E4M3")
    assert in_8_bits.can_stay
    assert {name for name in linears if stays_stored(asked, f"{name}.weight", in_8_bits)} == of_blocks
    assert {name for name in linears if quantize.selects(name)} == of_blocks
    adapted = check_targets(model, LoraConfig(targets=(r"(vace_)?blocks\..*",)))
    assert set(adapted) == of_blocks
    with pytest.raises(ConfigError, match="is outside the blocks"):
        check_targets(model, LoraConfig(targets=(r"head\.head",)))
    assert {name for name in linears if is_wan_linear(name)} == {n for n in of_blocks if not n.endswith("_proj")}
    homes = resolve_placement(plan("vace", mode="split blocks", **TWO_GPUS).placement, found.variant.shape.num_layers)
    assert {str(homes.device_of(name)) for name in of_blocks if name.startswith("vace")} == {"cuda:0"}
    assert {str(homes.device_of(name)) for name in of_blocks if name.startswith("blocks")} == {"cuda:0", "cuda:1"}
    for part in (model.blocks, model.vace_blocks):
        model.requires_grad_(False)
        part.requires_grad_(True)
        tokens = FlopCount(model).of(torch.Size((1, 16, 2, 4, 4)), time_rows=1, image_rows=0)
        assert 0 < tokens.backward < 2 * tokens.forward
