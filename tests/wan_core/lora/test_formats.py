"""LoRA files of every trainer act in our model as they act in ComfyUI (wan-model facts: tests/fixtures/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.support.forked import RunCommand
from tests.support.lora_formats import (
    ALPHA,
    FORMATS,
    LYCORIS_NAMES,
    MODULES,
    RANK,
    expected,
    golden_model,
    pairs,
    pinned,
    write_format,
    write_lycoris,
)
from wan_core.errors import CheckpointError
from wan_core.lora import LoraConfig, describe_lora, inject_lora, read_lora, start_from
from wan_core.model import WanTransformer

TOLERANCE = 1e-4  # README of the fixtures: float32 implementations differ by up to 2e-5; the LoRA itself changes 0.2


def started(path: Path, **settings: float) -> tuple[WanTransformer, list[torch.Tensor], float]:
    """The golden model with adapters that start from a file, its inputs, and what was left out."""
    model, inputs = golden_model()
    config = LoraConfig(**settings)  # type: ignore[arg-type]
    inject_lora(model, config, seed=0)
    return model, inputs, start_from(model, read_lora(path), config)


def merged(path: Path) -> tuple[WanTransformer, list[torch.Tensor]]:
    """The golden model with the file's exact change added to its weights."""
    model, inputs = golden_model()
    source = read_lora(path)
    for module in source.modules:
        model.get_submodule(module).weight.data += source.change(module).delta()
    return model, inputs


def difference(model: WanTransformer, inputs: list[torch.Tensor], name: str, label: str) -> float:
    with torch.no_grad():
        found = float((model(*inputs) - expected(name)).abs().max())
    print(f"{label}: largest difference {found:.1e}")  # noqa: T201
    return found


@pytest.mark.parametrize("settings", [{"kind": "LoKr", "r": 2}, {"kind": "LoKr", "r": 8}, {"kind": "LoHa", "r": 2}])
def test_the_lokr_or_loha_that_peft_saves_counts_as_much_as_in_peft(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Of rank 8 both matrices of the LoKr are whole; PEFT scales it all the same."""
    from peft import LoHaConfig, LoKrConfig, get_peft_model

    kind, rank = {"LoKr": LoKrConfig, "LoHa": LoHaConfig}[settings["kind"]], settings["r"]
    linear = nn.ModuleDict({"blocks": nn.ModuleList([nn.ModuleDict({"ffn": nn.ModuleList([nn.Linear(48, 36)])})])})
    model = get_peft_model(linear, kind(r=rank, alpha=10, target_modules=["ffn.0"], init_weights=False))  # type: ignore[arg-type]
    model.save_pretrained(str(tmp_path))
    theirs = model.get_submodule("base_model.model.blocks.0.ffn.0").get_delta_weight("default").detach()  # type: ignore[operator]
    found = read_lora(tmp_path / "adapter_model.safetensors").change("blocks.0.ffn.0").delta()
    torch.testing.assert_close(found, theirs)


@pytest.mark.parametrize("name", FORMATS)
def test_a_plain_lora_in_any_names_gives_the_output_comfyui_gives(tmp_path: Path, name: str) -> None:
    path = write_format(name, tmp_path / "lora.safetensors")
    before = load_file(path)
    model, inputs, left_out = started(path, rank=RANK, alpha=6.0)  # another scale than the file's
    assert left_out == 0
    assert difference(model, inputs, "", name) < TOLERANCE
    after = load_file(path)
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_the_plain_lora_changes_the_output_far_more_than_the_tolerance(tmp_path: Path) -> None:
    model, inputs = golden_model()
    assert difference(model, inputs, "", "no LoRA at all") == pytest.approx(0.2008, abs=1e-3)


@pytest.mark.parametrize("prefix", ["kohya.", "generic.", "diffusers."])
def test_the_fixtures_own_keys_are_read_as_they_stand(tmp_path: Path, prefix: str) -> None:
    save_file(pinned(prefix), tmp_path / "lora.safetensors")
    model, inputs, _ = started(tmp_path / "lora.safetensors", rank=RANK)
    assert difference(model, inputs, "", prefix) < TOLERANCE
    model, inputs = merged(tmp_path / "lora.safetensors")
    assert difference(model, inputs, "", f"{prefix} merged") < TOLERANCE


@pytest.mark.parametrize("kind", ["lokr", "loha"])
@pytest.mark.parametrize("names", LYCORIS_NAMES)
def test_the_change_of_a_lokr_or_loha_is_the_one_comfyui_makes(tmp_path: Path, kind: str, names: str) -> None:
    path = write_lycoris(kind, names, tmp_path / "lycoris.safetensors")
    model, inputs = merged(path)
    assert difference(model, inputs, f"_{kind}", f"{kind} {names}") < TOLERANCE


@pytest.mark.parametrize(("kind", "rank"), [("loha", 16), ("loha", 20), ("lokr", 56)])
def test_a_run_of_its_full_rank_starts_as_a_lokr_or_loha_exactly(tmp_path: Path, kind: str, rank: int) -> None:
    """LoHa of rank 4: products of 4 x 4 vectors, rank 16. LoKr of two whole matrices: rank 2 * 28."""
    path = write_lycoris(kind, "lora_unet_", tmp_path / "lycoris.safetensors")
    model, inputs, left_out = started(path, rank=rank, alpha=3.0)
    assert left_out < 1e-5
    assert difference(model, inputs, f"_{kind}", f"{kind} at rank {rank}") < TOLERANCE


def test_a_pair_of_a_smaller_rank_starts_a_larger_run_exactly_and_the_rest_can_learn(tmp_path: Path) -> None:
    path = write_format("c: lora_unet_", tmp_path / "small.safetensors")
    model, inputs, left_out = started(path, rank=7, alpha=1.0)
    assert left_out == 0
    assert difference(model, inputs, "", "rank 4 in a run of rank 7") < TOLERANCE
    layer = model.get_submodule("blocks.0.ffn.0")
    down, up = (half["default"].weight.detach() for half in (layer.lora_A, layer.lora_B))  # type: ignore[index]
    assert down.shape == (7, 56)
    assert bool((down[RANK:].abs().sum(dim=1) > 0).all())
    assert bool((up[:, RANK:] == 0).all())


@pytest.mark.parametrize(("rslora", "stated"), [(False, 3.0), (True, 3.0)])
@pytest.mark.parametrize("where", ["metadata", "adapter_config.json"])
def test_the_alpha_that_peft_keeps_beside_the_weights_is_heard(
    tmp_path: Path, where: str, rslora: bool, stated: float
) -> None:
    scale = stated / RANK**0.5 if rslora else stated / RANK
    wrapping = "transformer." if where == "metadata" else "base_model.model."
    settings = {"r": RANK, "lora_alpha": stated, "use_rslora": rslora, "alpha_pattern": {}}
    tensors = {}
    for module, down, up in pairs():
        tensors[f"{wrapping}{MODULES[module]}.lora_A.weight"] = down * (ALPHA / RANK / scale)
        tensors[f"{wrapping}{MODULES[module]}.lora_B.weight"] = up
    stated_in_file = {"transformer." + key: value for key, value in settings.items()} if where == "metadata" else {}
    save_file(tensors, tmp_path / "peft.safetensors", {"lora_adapter_metadata": json.dumps(stated_in_file)})
    if where != "metadata":
        (tmp_path / where).write_text(json.dumps(settings))
    model, inputs, _ = started(tmp_path / "peft.safetensors", rank=RANK)
    assert difference(model, inputs, "", f"PEFT alpha in {where}") < TOLERANCE


def test_ranks_and_alphas_of_modules_are_read_by_name_and_never_as_expressions(tmp_path: Path) -> None:
    settings = {"r": RANK, "lora_alpha": 8.0, "alpha_pattern": {"attn1.to_q": 2.0, "blocks.1.ffn.net.2": 16}}
    tensors = {}
    for module, down, up in pairs():
        tensors[f"base_model.model.{MODULES[module]}.lora_A.weight"] = down
        tensors[f"base_model.model.{MODULES[module]}.lora_B.weight"] = up
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    source = read_lora(tmp_path / "adapter_model.safetensors")
    scales = {module: source.scale(module) for module in source.modules}
    others = {"blocks.0.self_attn.q": 0.5, "blocks.1.self_attn.q": 0.5, "blocks.1.ffn.2": 4.0}
    assert scales == dict.fromkeys(scales, 2.0) | others
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings | {"alpha_pattern": {"(a+)+$": 2.0}}))
    with pytest.raises(CheckpointError, match=r"finite numbers by names of modules can be read"):
        source.scale("blocks.0.ffn.0")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if number % 6 == 0 else pytest.mark.soak) for number, name in enumerate(FORMATS)],
)
def test_inspect_names_the_sizes_and_alphas(tmp_path: Path, name: str) -> None:
    path = write_format(name, tmp_path / "lora.safetensors")
    with_alpha = FORMATS[name][1]
    said = describe_lora(read_lora(path))
    assert said["ranks"] == [RANK]
    assert said["alphas"] == ([ALPHA] if with_alpha else [])
    assert (said["modules"], said["blocks"], said["kinds"]) == (20, 2, ["LoRA"])
    assert said["can_start_a_run"] is True
    assert said["adapts"] == sorted({module.replace(".0.", ".*.", 1).replace(".1.", ".*.", 1) for module in MODULES})
    assert json.loads(json.dumps(said)) == said


@pytest.mark.lasts(2)
def test_the_command_line_describes_a_lora_file(wan_core_command: RunCommand, tmp_path: Path) -> None:
    path = write_format("c: lora_unet_", tmp_path / "musubi.safetensors")
    done = wan_core_command("inspect", str(path))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["file"], said["tensors"], said["dtypes"]) == ("musubi.safetensors", 60, ["F32"])
    assert said["lora"] == describe_lora(read_lora(path))
    assert said["lora"]["key_format"] == "lora_unet_<module>.lora_down.weight"
