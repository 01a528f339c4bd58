"""A preview of a run is what ComfyUI's own sampler makes of the same prompt with the LoRA files that the run saved."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.forked import RunScript
from tests.support.sessions import train_here
from tests.support.tiny_run import HIGH_FILE, LOW_FILE, TinyRun, make_pair_run, make_run, template
from wan_core.cache import LatentCache, pad_text
from wan_core.sampler import SampleConfig
from wan_core.sampler.schedules import schedule
from wan_core.train import SaveStore, TrainConfig

SCRIPT = Path(__file__).parents[2] / "tiny" / "comfy_sample_all.py"
STEPS = 4
TRAINED = {"steps": STEPS, "save_every_n_steps": STEPS, "preview_every_n_steps": STEPS, "learning_rate": 0.03}
SHAPE = (1, 16, 2, 4, 4)
PREVIEW = SampleConfig(steps=8)
BOUNDARY = 0.875

pytestmark = pytest.mark.comfy


def decibels(one: torch.Tensor, other: torch.Tensor) -> float:
    """PSNR of pixels from 0 to 1."""
    return -10 * math.log10(float((one.double() - other.double()).square().mean()) + 1e-20)


def trained(run: TinyRun) -> tuple[torch.Tensor, list[Path]]:
    """The last preview of a finished run (1, C, F, h, w), and the LoRA files it saved."""
    config = replace(run.config, preview=PREVIEW)
    (run.directory / "run.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
    train_here(run)
    saved = SaveStore(run.directory).read(STEPS)
    assert saved is not None
    files = [file for file in (saved.lora_file, saved.low_noise_lora_file) if file is not None]
    return load_file(run.directory / "samples" / f"step-{STEPS:06d}_p0.latent")["latent"][None], files


def test_the_last_preview_is_what_a_core_graph_generates(
    comfyui_tree: Path, tiny_models: Path, comfy_script: RunScript, tmp_path: Path
) -> None:
    single = make_run(tmp_path / "one", train=TrainConfig(**{**TRAINED, "eval_items": 0}))  # type: ignore[arg-type]
    pair = make_pair_run(tmp_path / "two", **{**TRAINED, "eval_items": 0})
    cache = LatentCache(single.roots.first("cache"))
    found = cache.read_set(single.config.data.fingerprint)
    inputs = {
        "text": pad_text(cache.read_text(found.items[0].text_key))[None],
        "negative": pad_text(cache.read_text(found.negative_text_key))[None],
    }
    inputs["ours.one"], one_files = trained(single)
    inputs["ours.two"], two_files = trained(pair)
    inputs |= {"ours.base": inputs["ours.one"].clone(), "ours.base pair": inputs["ours.two"].clone()}
    save_file(inputs, tmp_path / "inputs.safetensors")
    models = {"one": tmp_path / "one/models/wan_tiny_t2v.safetensors"}
    models |= {"high": tmp_path / "two/models" / HIGH_FILE, "low": tmp_path / "two/models" / LOW_FILE}

    def case(kind: str, loras: dict[str, Path], names: list[str]) -> dict[str, object]:
        preset = PREVIEW.resolved(template("t2v", pair=kind == "pair"))
        sigmas = schedule(preset.scheduler, preset.steps, preset.shift)
        return {
            "kind": kind, "models": names, "loras": {name: str(file) for name, file in loras.items()},
            "sampler_name": preset.sampler_name, "scheduler": preset.scheduler, "steps": preset.steps,
            "cfg": preset.guidance_scale, "shift": preset.shift, "switch": int((sigmas >= BOUNDARY).sum()),
        }  # fmt: skip

    cases = {
        "one": case("t2v", dict(zip(["one"], one_files, strict=True)), ["one"]),
        "two": case("pair", dict(zip(["high", "low"], two_files, strict=True)), ["high", "low"]),
        "base": case("t2v", {}, ["one"]),
        "base pair": case("pair", {}, ["high", "low"]),
    }
    job = {
        "comfyui": str(comfyui_tree), "models": {name: str(file) for name, file in models.items()},
        "inputs": str(tmp_path / "inputs.safetensors"), "shape": {"t2v": SHAPE, "pair": SHAPE}, "seed": PREVIEW.seed,
        "vae": str(tiny_models / "vae" / "wan_tiny_vae.safetensors"), "out": str(tmp_path / "out.safetensors"),
        "cases": cases,
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = comfy_script(SCRIPT, str(tmp_path / "job.json"))
    assert done.returncode == 0, done.stderr[-3000:]
    out = load_file(tmp_path / "out.safetensors")
    psnr = {name: decibels(out[f"pixels.{name}"], out[f"pixels.ours.{name}"]) for name in cases}
    print({name: round(value, 1) for name, value in psnr.items()})  # noqa: T201
    assert min(psnr["one"], psnr["two"]) >= 45, psnr
    assert max(psnr["base"], psnr["base pair"]) < 40, "the LoRA changes the clip: without it, it is another"
