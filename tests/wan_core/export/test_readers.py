"""LoRA files that we write act the same in our model, in ComfyUI and in diffusers, each with its own loader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.golden import fill_at_random
from wan_core.export import LoraFile
from wan_core.lora import LoraConfig, adapter_parameters, exported, inject_lora, read_lora, start_from
from wan_core.model import Conditioning, WanShape, WanTransformer

Tensors = dict[str, torch.Tensor]
pytestmark = pytest.mark.lasts(0.7)

SCRIPT = Path(__file__).parents[2] / "tiny" / "peer_lora.py"
LIMIT = 1e-4
"""Largest absolute difference, float32; outputs reach 5, and the LoRAs change them by more than 0.1."""
SIZES: dict[str, Any] = {"dim": 56, "ffn_dim": 64, "num_heads": 2, "num_layers": 2, "text_dim": 32}
SHAPES = {
    "t2v": WanShape(**SIZES),
    "i2v_2_1": WanShape(**SIZES, in_channels=36, image_dim=1280),
    "i2v_2_2": WanShape(**SIZES, in_channels=36),
    "vace": WanShape(**SIZES, vace_layers=(0,)),
}
LORAS = {
    "fp32_3_of_4": ("fp32", LoraConfig(rank=4, alpha=3.0)),
    "bf16_2_of_4": ("bf16", LoraConfig(rank=4, alpha=2.0)),
    "bf16_1_of_8": ("bf16", LoraConfig(rank=8, alpha=1.0)),
    "fp16_16_of_4": ("fp16", LoraConfig(rank=4, alpha=16.0)),
}
"""Powers of two in 16 bits: diffusers rounds A * alpha / rank to the file's dtype (3/4 in bf16: 1.1e-3 apart)."""
LINEARS = {"t2v": 20, "i2v_2_1": 24, "i2v_2_2": 20, "vace": 20}


def random_model(shape: WanShape, generator: torch.Generator) -> WanTransformer:
    model = WanTransformer(shape)
    fill_at_random(model, generator)
    return model.requires_grad_(False)


def inputs_of(shape: WanShape, generator: torch.Generator) -> Tensors:
    found = {
        "latent": torch.randn(2, 16, 3, 8, 6, generator=generator),
        "timestep": torch.tensor([991.25, 437.5]),
        "text": torch.randn(2, 512, shape.text_dim, generator=generator),
    }
    if shape.condition_channels:
        found["channels"] = torch.randn(2, shape.condition_channels, 3, 8, 6, generator=generator)
    if shape.image_dim:
        found["image_tokens"] = torch.randn(2, 257, shape.image_dim, generator=generator)
    if shape.vace_layers:
        found["vace"] = torch.randn(2, shape.vace_channels, 3, 8, 6, generator=generator)
        found["vace_strength"] = torch.tensor(0.75)
    return found


def run(model: WanTransformer, inputs: Tensors) -> torch.Tensor:
    given = dict(inputs)
    latent, timestep, text = (given.pop(name) for name in ("latent", "timestep", "text"))
    strength = float(given.pop("vace_strength", 1.0))
    with torch.no_grad():
        return model(latent, timestep, text, Conditioning(**given, vace_strength=strength))


def write(path: Path, model: WanTransformer, dtype: str, config: LoraConfig, generator: torch.Generator) -> None:
    inject_lora(model, config, seed=5)
    for name, value in adapter_parameters(model).items():
        if name.endswith("lora_B.weight"):
            value.data.copy_(0.15 / config.scale**0.5 * torch.randn(value.shape, generator=generator))
    file = LoraFile(parts=exported(model), dtype=dtype, metadata={"format": "pt"})
    path.write_bytes(file.to_bytes())


class Trial:
    """Models, inputs, LoRA files, and what ours makes of them: `<case>.base`, `<case>.<lora>`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ours: Tensors = {}
        tensors: Tensors = {}
        for number, (case, shape) in enumerate(SHAPES.items()):
            generator = torch.Generator().manual_seed(40 + number)
            base, inputs = random_model(shape, generator).state_dict(), inputs_of(shape, generator)
            self.ours[f"{case}.base"] = run(self.model(shape, base), inputs)
            for label, (dtype, config) in LORAS.items():
                path = folder / f"{case}.{label}.safetensors"
                write(path, self.model(shape, base), dtype, config, generator)
                model = self.model(shape, base)
                inject_lora(model, config, seed=6)
                assert start_from(model, read_lora(path), config) == 0
                self.ours[f"{case}.{label}"] = run(model, inputs)
            tensors |= {f"{case}.w.{key}": value for key, value in base.items()}
            tensors |= {f"{case}.{key}": value for key, value in inputs.items()}
        self.file = folder / "all" / "cases.safetensors"
        self.file.parent.mkdir()
        save_file(tensors, self.file, {name: json.dumps(shape.to_dict()) for name, shape in SHAPES.items()})

    @staticmethod
    def model(shape: WanShape, weights: Tensors) -> WanTransformer:
        model = WanTransformer(shape)
        model.load_state_dict(weights)
        return model.requires_grad_(False)


Theirs = Callable[[str], tuple[Tensors, dict[str, Any]]]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial(tmp_path_factory.mktemp("readers"))


@pytest.fixture(scope="module")
def theirs(trial: Trial, request: pytest.FixtureRequest) -> Theirs:
    """What `comfyui` or `diffusers` make of the same files, and what they said; each asked once."""
    answers: dict[str, tuple[Tensors, dict[str, Any]]] = {}

    def ask(program: str) -> tuple[Tensors, dict[str, Any]]:
        if program not in answers:
            tree = [str(request.getfixturevalue("comfyui_tree"))] if program == "comfyui" else []
            out = trial.file.with_name(f"{program}.safetensors")
            words = [program, str(trial.file), str(trial.folder), str(out), *tree]
            script = request.getfixturevalue("comfy_script" if tree else "peer_script")
            done = script(SCRIPT, *words)
            assert done.returncode == 0, done.stderr[-3000:]
            answers[program] = load_file(out), json.loads(done.stdout.splitlines()[-1])
        return answers[program]

    return ask


def check(program: str, case: str, trial: Trial, theirs: Theirs) -> None:
    found, report = theirs(program)
    for label in ("base", *LORAS):
        name = f"{case}.{label}"
        difference = float((trial.ours[name] - found[name]).abs().max())
        change = float((trial.ours[name] - trial.ours[f"{case}.base"]).abs().max())
        print(f"{program} {name}: largest difference {difference:.1e}, the LoRA changes {change:.2f}")  # noqa: T201
        assert difference < LIMIT, name
        assert label == "base" or (0.1 < change < 10 and report["changed"][name] == LINEARS[case]), name
    assert report["said"] == []


@pytest.mark.comfy
@pytest.mark.parametrize("case", SHAPES)
def test_comfyui_makes_the_same_of_our_file(case: str, trial: Trial, theirs: Theirs) -> None:
    check("comfyui", case, trial, theirs)


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.soak
def test_diffusers_makes_the_same_of_our_file(case: str, trial: Trial, theirs: Theirs) -> None:
    check("diffusers", case, trial, theirs)
