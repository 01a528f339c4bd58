"""The file of each kind of adapter in ComfyUI and, where it has the kind, in diffusers: loaded by their own loaders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from tests.support.adapters import KINDS, filled
from tests.support.forked import RunScript
from tests.wan_core.export.test_readers import SHAPES, inputs_of, random_model, run
from tests.wan_core.lora.test_kinds import by_peft
from wan_core.errors import ExportError
from wan_core.export import FOLDERS, LoraFile, look_at_lora
from wan_core.lora import adapters_of, exported, inject_lora, read_lora, start_from
from wan_core.lora.linear_adapter import LinearAdapter
from wan_core.model import WanTransformer

pytestmark = pytest.mark.lasts(0.7)

SCRIPT = Path(__file__).parents[2] / "tiny" / "peer_lora.py"
PEFT_LIMIT = 2e-5
"""between the output of a linear under PEFT's own forward, and under the weight that ComfyUI makes of our file"""
MODEL_LIMIT = 1e-4
"""of whole outputs, which reach 5; as without an adapter"""
FILES = {kind: replace(config, rank=8) if kind == "OFT" else config for kind, config in KINDS.items()}


class Trial:
    """A model under each kind of adapter, and the files."""

    def __init__(self, folder: Path) -> None:
        self.folder, generator, shape = folder, torch.Generator().manual_seed(40), SHAPES["t2v"]
        base, inputs = random_model(shape, generator).state_dict(), inputs_of(shape, generator)
        self.models: dict[str, WanTransformer] = {}
        self.ours: dict[str, torch.Tensor] = {}
        for kind, config in FILES.items():
            model = WanTransformer(shape)
            model.load_state_dict(base)
            inject_lora(model, config, seed=5)
            self.models[kind] = model
            filled(model, 0.05 if kind == "OFT" else 0.15)
            self.ours[kind] = run(model, inputs)
            file = LoraFile(parts=exported(model), dtype="fp32", metadata={"format": "pt"})
            self.path(kind).write_bytes(file.to_bytes())
        tensors = {f"t2v.w.{key}": value for key, value in base.items()}
        tensors |= {f"t2v.{key}": value for key, value in inputs.items()}
        self.cases = folder / "all" / "cases.safetensors"
        self.cases.parent.mkdir()
        save_file(tensors, self.cases, {"t2v": json.dumps(shape.to_dict())})

    def path(self, kind: str) -> Path:
        return self.folder / f"t2v.{kind.replace(' ', '_')}.safetensors"


def linears_of(model: WanTransformer) -> list[LinearAdapter]:
    return [one for one in adapters_of(model) if isinstance(one, LinearAdapter)]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial(tmp_path_factory.mktemp("kinds"))


def answer(done: Any, out: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(out), json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def in_comfyui(
    trial: Trial, comfyui_tree: Path, comfy_script: RunScript
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    out = trial.cases.with_name("comfyui.safetensors")
    return answer(
        comfy_script(SCRIPT, "comfyui", str(trial.cases), str(trial.folder), str(out), str(comfyui_tree)), out
    )


@pytest.mark.comfy
@pytest.mark.parametrize("kind", KINDS)
def test_comfyui_knows_every_key_and_computes_what_peft_does(
    kind: str, trial: Trial, in_comfyui: tuple[dict[str, torch.Tensor], dict[str, Any]]
) -> None:
    (found, report), label = in_comfyui, trial.path(kind).stem
    assert report["said"] == []
    whole_differences = sum(part.startswith("diff") for one in adapters_of(trial.models[kind]) for part in one.trained)
    assert report["changed"][label] == 20 + whole_differences
    whole = float((trial.ours[kind] - found[label]).abs().max())
    generator, worst, change = torch.Generator().manual_seed(9), 0.0, 0.0
    for one in linears_of(trial.models[kind])[:10]:
        x = torch.randn(5, one.base.in_features, generator=generator)
        with torch.no_grad():
            theirs = functional.linear(x, *(found[f"{label}.{one.name}.{part}"] for part in ("weight", "bias")))
            worst = max(worst, float((theirs - by_peft(one, x)).abs().max()))
            change = max(change, float((theirs - one.base(x)).abs().max()))
    print(f"{kind}: model {whole:.1e}, linears {worst:.1e} beside PEFT, changed by {change:.2f}")  # noqa: T201
    assert worst < PEFT_LIMIT
    assert change > 0.1
    assert whole < MODEL_LIMIT


def test_diffusers_and_peft_load_the_folders_of_an_export_as_they_do_the_file(
    trial: Trial, tmp_path: Path, peer_script: RunScript
) -> None:
    file = trial.path("rsLoRA")
    (tmp_path / file.name).write_bytes(file.read_bytes())
    for layout, folder_of in FOLDERS.items():
        (tmp_path / f"t2v.{layout}").mkdir()
        for name, data in folder_of(file).items():
            (tmp_path / f"t2v.{layout}" / name).write_bytes(data)
        with pytest.raises(ExportError, match=r"is a DoRA.*reads only plain LoRAs"):
            folder_of(trial.path("DoRA"))
    out = tmp_path / "out.tensors"
    found, report = answer(peer_script(SCRIPT, "diffusers", str(trial.cases), str(tmp_path), str(out)), out)
    labels = (file.stem, "t2v.diffusers", "t2v.peft")
    assert report == {"said": [], "changed": dict.fromkeys(labels, 20)}
    for label in labels:
        assert float((trial.ours["rsLoRA"] - found[label]).abs().max()) < MODEL_LIMIT
        assert float((found[file.stem] - found[label]).abs().max()) < 1e-6 * float(found[label].abs().max())


@pytest.mark.parametrize("name", ["diffusers/pytorch_lora_weights.safetensors", "peft/adapter_model.safetensors"])
def test_a_run_starts_from_a_folder_of_an_export_as_from_the_file(name: str, trial: Trial, tmp_path: Path) -> None:
    config = replace(FILES["rsLoRA"], rank_patterns=(r"blocks\.0\.ffn\.\d = 3, 7",))
    model = WanTransformer(SHAPES["t2v"])
    inject_lora(model, config, seed=5)
    filled(model, 0.15)
    ours = tmp_path / "ours.safetensors"
    ours.write_bytes(LoraFile(parts=exported(model), dtype="fp32", metadata={}).to_bytes())
    layout, _, leaf = name.partition("/")
    for written, data in FOLDERS[layout](ours).items():
        (tmp_path / written).write_bytes(data)
    assert start_from(model, read_lora(tmp_path / leaf), config) == 0
    theirs, source = exported(model), read_lora(ours)
    for module in source.modules:
        down, up, alpha = (theirs[f"{module}.{part}"] for part in ("lora_A.weight", "lora_B.weight", "alpha"))
        again = float(alpha) / len(down) * up @ down
        assert float((again - source.change(module).delta()).abs().max()) < 1e-6


def musubis_name(key: str) -> str:
    """A key as `convert_lora.py --target default` of musubi-tuner 30c658c4 names it."""
    name = "lora_unet_" + key.removeprefix("diffusion_model.").replace(".", "_")
    for theirs in ("lora_A", "lora_B"):
        name = name.replace(f"_{theirs}_", f".{'lora_down' if theirs == 'lora_A' else 'lora_up'}.")
    name = name.replace("_hada_", ".hada_").replace("_lokr_", ".lokr_")
    return f"{name.removesuffix('_alpha')}.alpha" if name.endswith("_alpha") else name


def musubis_change(parts: dict[str, torch.Tensor]) -> torch.Tensor:
    """The change of a weight that its `merge_weights_to_tensor` makes of a linear's parts."""
    alpha = float(parts["alpha"])
    if "lora_down.weight" in parts:
        down = parts["lora_down.weight"]
        return parts["lora_up.weight"] @ down * (alpha / len(down))
    if "hada_w1_a" in parts:
        first, second = (parts[f"hada_{one}_a"] @ parts[f"hada_{one}_b"] for one in ("w1", "w2"))
        return first * second * (alpha / len(parts["hada_w1_b"]))
    if "lokr_w2" in parts:
        return torch.kron(parts["lokr_w1"], parts["lokr_w2"])
    second = parts["lokr_w2_a"] @ parts["lokr_w2_b"]
    return torch.kron(parts["lokr_w1"], second) * (alpha / parts["lokr_w2_a"].shape[1])


@pytest.mark.parametrize("kind", ["LoRA", "rsLoRA", "PiSSA", "OLoRA", "LoKr", "whole LoKr", "LoHa"])
def test_musubi_tuner_makes_the_same_of_what_its_converter_makes_of_a_file(kind: str, trial: Trial) -> None:
    """Its rules, read out of its code; its own functions gave 1.4e-6 at most (docs/use/adapters.md)."""
    found = {musubis_name(key): value for key, value in load_file(trial.path(kind)).items()}
    used: set[str] = set()
    for one in linears_of(trial.models[kind]):
        name = f"lora_unet_{one.name.replace('.', '_')}."
        parts = {key.removeprefix(name): value for key, value in found.items() if key.startswith(name)}
        used |= {name + part for part in parts}
        x = torch.randn(5, one.base.in_features, generator=torch.Generator().manual_seed(9))
        with torch.no_grad():
            theirs = functional.linear(x, one.base.weight + musubis_change(parts), one.base.bias)
            assert float((theirs - by_peft(one, x)).abs().max()) < PEFT_LIMIT
    assert used == set(found), "every key is one of musubi-tuner's"


@pytest.mark.parametrize("kind", ["LoKr", "whole LoKr", "LoHa"])
def test_our_own_reader_finds_the_change_that_was_trained(kind: str, trial: Trial) -> None:
    source = read_lora(trial.path(kind))
    for one in linears_of(trial.models[kind])[:3]:
        x = torch.eye(one.base.in_features)
        with torch.no_grad():
            change = (one.layer(x) - one.base(x)).T
        torch.testing.assert_close(source.change(one.name).delta(), change, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_at_the_file_places_every_name_and_measures_each_block(kind: str, trial: Trial) -> None:
    model = trial.models[kind]
    found = look_at_lora(trial.path(kind), [f"{one.name}.weight" for one in adapters_of(model)])
    squares: dict[str, float] = {}
    with torch.no_grad():
        for one in adapters_of(model):
            block = ".".join(one.name.split(".")[:2])
            bias = (
                float(one.parameter("diff_b").norm())
                if isinstance(one, LinearAdapter) and "diff_b" in one.trained
                else 0
            )
            squares[block] = squares.get(block, 0.0) + float(one.norm()) ** 2 + bias**2
    assert found.unplaced == ()
    assert found.updates == {block: pytest.approx(square**0.5, rel=1e-4) for block, square in squares.items()}
