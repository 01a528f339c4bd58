"""ComfyUI's own loader makes of a tuner's file what the tuner computes in training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.adapters import filled
from tests.support.forked import RunScript
from tests.wan_core.export.test_readers import LIMIT, LINEARS, SCRIPT, SHAPES, Trial, inputs_of, random_model, run
from tests.wan_core.lora.test_tuners import TUNERS, config
from wan_core.export import LoraFile
from wan_core.lora import LoraConfig, exported, inject_lora

SHAPE = SHAPES["t2v"]
FILES = [(tuner, "differences") for tuner in TUNERS] + [("HRA", "LoRA"), ("MISS", "LoRA")]
"""LoRA: where the change has the rank of the file, so that nothing is left out"""


@pytest.mark.comfy
@pytest.mark.lasts(5)
def test_comfyui_makes_of_a_file_what_the_tuner_computes(
    tmp_path: Path, comfyui_tree: Path, comfy_script: RunScript
) -> None:
    generator = torch.Generator().manual_seed(40)
    base, inputs = random_model(SHAPE, generator).state_dict(), inputs_of(SHAPE, generator)
    ours = {"t2v.base": run(Trial.model(SHAPE, base), inputs)}
    for tuner, form in FILES:
        model = Trial.model(SHAPE, base)
        inject_lora(model, config(tuner, targets=LoraConfig.targets, peft_file=form), seed=5)
        filled(model, 0.05)
        name = f"t2v.{tuner}_{form}"
        ours[name] = run(model, inputs)
        file = LoraFile(parts=exported(model), dtype="fp32", metadata={"format": "pt"})
        (tmp_path / f"{name}.safetensors").write_bytes(file.to_bytes())
    cases, out = tmp_path / "all" / "cases.safetensors", tmp_path / "all" / "out.safetensors"
    cases.parent.mkdir()
    tensors = {f"t2v.w.{key}": value for key, value in base.items()}
    tensors |= {f"t2v.{key}": value for key, value in inputs.items()}
    save_file(tensors, cases, {"t2v": json.dumps(SHAPE.to_dict())})
    done = comfy_script(SCRIPT, "comfyui", str(cases), str(tmp_path), str(out), str(comfyui_tree))
    assert done.returncode == 0, done.stderr[-3000:]
    found, report = load_file(out), json.loads(done.stdout.splitlines()[-1])
    assert report == {"said": [], "changed": dict.fromkeys(sorted(ours.keys() - {"t2v.base"}), LINEARS["t2v"])}
    for name, wanted in ours.items():
        assert float((wanted - found[name]).abs().max()) < LIMIT, name
        assert name == "t2v.base" or float((wanted - ours["t2v.base"]).abs().max()) > 100 * LIMIT, name
