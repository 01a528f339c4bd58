"""Previews equal reality: our sampler against ComfyUI's KSampler, our LoRA file through ComfyUI's own loader."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.support.forked import RunScript
from tests.support.tiny_run import make_roots
from wan_core.cache import pad_text
from wan_core.export import LoraFile
from wan_core.load import ModelPlan, materialize
from wan_core.lora import LoraConfig, adapter_parameters, exported, set_strength
from wan_core.model import WanTransformer
from wan_core.sampler import Denoiser, SampleConfig, generate
from wan_core.sampler.config import PRESETS

SCRIPT = Path(__file__).parents[2] / "tiny" / "comfy_sample.py"
PLAN = ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors")
LORA = LoraConfig(rank=4, alpha=2.0)
SHAPE = (1, 16, 3, 8, 10)
SEED = 42
STEPS = 6
# Relative, float32, CPU. Measured against ComfyUI 0.3.75 over six guided steps: 2.4e-6 with and without LoRA. ComfyUI
# merges the LoRA into the weights and has a float32 timestep sinusoid where official Wan, and we, use float64.
TOLERANCE = 1e-4

pytestmark = pytest.mark.comfy


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@dataclass
class Both:
    """The same clips sampled twice."""

    ours: dict[str, torch.Tensor]
    theirs: dict[str, torch.Tensor]
    report: dict[str, Any]
    lora_file: Path


@pytest.fixture(scope="module")
def both(comfyui_tree: Path, comfy_script: RunScript, tmp_path_factory: pytest.TempPathFactory) -> Both:
    if not (comfyui_tree / "comfy_extras" / "nodes_model_advanced.py").is_file():
        pytest.skip(f"the ComfyUI in {comfyui_tree.name} has no comfy_extras/nodes_model_advanced.py")
    root = tmp_path_factory.mktemp("parity")
    roots, _ = make_roots(root)
    model = materialize(PLAN, roots, LORA, seed=3)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in adapter_parameters(model).items():
        if name.endswith("lora_B.weight"):
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    lora_file = root / "loras" / "ours.safetensors"
    lora_file.parent.mkdir()
    written = LoraFile(parts=exported(model), dtype="fp32", metadata={"a": "b"})
    lora_file.write_bytes(written.to_bytes())
    text, negative = (pad_text(torch.randn(rows, 4096, generator=generator))[None] for rows in (9, 4))
    save_file({"text": text, "negative": negative}, root / "texts.safetensors")
    preset = SampleConfig(sampling="ComfyUI template", steps=STEPS).resolved()
    assert (preset.guidance_scale, preset.shift) == (6.0, 8.0)
    job = {
        "comfyui": str(comfyui_tree), "model": str(roots.resolve(PLAN.base_file)), "lora_folder": str(lora_file.parent),
        "lora": lora_file.name, "inputs": str(root / "texts.safetensors"), "latent_shape": SHAPE, "seed": SEED,
        "steps": preset.steps, "cfg": preset.guidance_scale, "shift": preset.shift,
        "out": str(root / "out.safetensors"),
    }  # fmt: skip
    (root / "job.json").write_text(json.dumps(job))
    done = comfy_script(SCRIPT, str(root / "job.json"))
    assert done.returncode == 0, done.stderr[-3000:]

    def sample(model: WanTransformer, strength: float) -> torch.Tensor:
        set_strength(model, strength)
        noise = torch.randn(SHAPE, generator=torch.Generator("cpu").manual_seed(SEED))
        return generate([Denoiser.of(model.train(False))], text, negative, noise, preset)

    return Both(
        ours={"base": sample(model, 0.0), "lora": sample(model, 1.0)},
        theirs=load_file(root / "out.safetensors"),
        report=json.loads(done.stdout.splitlines()[-1]),
        lora_file=lora_file,
    )


def test_the_default_preview_is_what_comfyui_templates_use() -> None:
    preset = PRESETS["ComfyUI template"]
    assert (preset.steps, preset.guidance_scale, preset.shift) == (20, 6.0, 8.0)


@pytest.mark.parametrize("model", ["base", "lora"])
def test_the_same_clip_comes_out_of_both_samplers(both: Both, model: str) -> None:
    error = relative(both.ours[model], both.theirs[model])
    print(f"{model}: relative difference {error:.2e}")  # noqa: T201
    assert error < TOLERANCE


def test_comfyui_uses_every_key_of_our_file(both: Both) -> None:
    with safe_open(both.lora_file, "pt") as file:
        assert len(list(file.keys())) == 60  # A, B and alpha of ten linears in each of two blocks
    assert both.report == {"patched": 20, "said": []}


def test_the_lora_changes_the_clip_far_more_than_the_samplers_differ(both: Both) -> None:
    """A thousand times the difference found above, and by the same amount in both samplers."""
    differ = max(relative(both.ours[model], both.theirs[model]) for model in ("base", "lora"))
    ours, theirs = (relative(side["lora"], side["base"]) for side in (both.ours, both.theirs))
    assert ours > 1000 * differ
    assert ours == pytest.approx(theirs, rel=TOLERANCE)
