"""ComfyUI's own trainer in the trials of benchmarks/learning/recipes.py: lines for the same results.

    .venv/bin/python benchmarks/comfyui_trainer.py --comfyui TREE --python ITS_PYTHON --rates 1e-3 3e-3 6e-3

Trains with the core node TrainLoraNode of a ComfyUI tree (tests/tiny/comfy_train.py, its own process and Python) at
its defaults: the same tiny model, clips, caption, steps, batch and rank. The LoRA is added to the base weights, and
the clips are sampled and judged exactly as in the other trials.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "tests"), str(ROOT / "tests" / "tiny")]

import torch
from learning.recipes import CLIPS, CONCEPTS, RESULTS, add_result, read_results
from learning.study import Study, studied
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from shapeworld.comfy_graphs import MODELS
from shapeworld.learning import models_folder
from shapeworld.wan_vae import latent_shift_and_scale

from wan_core.model import WanTransformer

FILE = MODELS["t2v"].files[0]
BATCH, RANK, EXAMPLES = 1, 8, 8


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True, help="a tree whose comfy_extras has nodes_train.py")
    parser.add_argument("--python", default=sys.executable, help="a Python that runs that tree")
    parser.add_argument("--rates", nargs="+", type=float, default=[5e-4, 1.5e-3, 3e-3, 6e-3, 1.2e-2])
    parser.add_argument("--concepts", nargs="+", default=list(CONCEPTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lora-dtype", choices=("bf16", "fp32"), default="bf16", help="bf16 is the node's default")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=ROOT / "demo_output" / "learning_recipes")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    study = Study(asked.work, asked.comfyui)
    trials = [trial for trial in wanted(asked) if not known(trial, read_results(asked.results))]
    jobs = [job_of(study, asked.work.resolve(), trial) for trial in trials]
    for trial, job in zip(trials, jobs, strict=True):
        train(asked, [job])
        concept = studied(trial["concept"])
        score = study.scores([adapted(study, Path(job["out"]))], concept, CLIPS)
        with safe_open(job["out"], "pt") as file:
            seconds = float(file.metadata()["train_s"])
        add_result(asked.results, trial | score | {"train_s": seconds})
    return 0


def wanted(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the lines of the results without figures."""
    version = re.search(r'"([\d.]+)"', (asked.comfyui / "comfyui_version.py").read_text(encoding="utf-8"))
    name = f"ComfyUI {version[1] if version else ''} TrainLoraNode"
    if asked.lora_dtype != "bf16":
        name += f", LoRA in {asked.lora_dtype}"
    return [
        {
            "recipe": name,
            "concept": concept,
            "model": "t2v",
            "learning_rate": rate,
            "seed": seed,
            "steps": asked.steps,
            "batch_size": BATCH,
            "rank": RANK,
            "clips": EXAMPLES,
            "settings": {"lora_dtype": asked.lora_dtype},
        }
        for seed in asked.seeds
        for concept in asked.concepts
        for rate in asked.rates
    ]


def known(trial: dict[str, Any], results: list[dict[str, Any]]) -> bool:
    return any(all(line.get(key) == value for key, value in trial.items()) for line in results)


def job_of(study: Study, work: Path, trial: dict[str, Any]) -> dict[str, Any]:
    """Writes the inputs of a job of comfy_train.py, and returns the job."""
    folder = work / "comfyui_trainer"
    folder.mkdir(parents=True, exist_ok=True)
    concept = studied(trial["concept"])
    inputs = folder / f"{concept.name}.safetensors"
    if not inputs.exists():
        mean, std = latent_shift_and_scale()
        latents = study.latents(study.concept_items(concept, 0, EXAMPLES)) * std + mean
        save_file({"latents": latents.contiguous(), "text": study.text(concept.caption)}, inputs)
    name = "_".join(str(trial[key]) for key in ("concept", "learning_rate", "seed", "steps"))
    settings = trial["settings"]
    kept = {key: trial[key] for key in ("steps", "rank", "learning_rate", "seed")}
    out = folder / f"{name}_{settings['lora_dtype']}.safetensors"
    return {**kept, "settings": settings, "inputs": str(inputs), "out": str(out)}


def train(asked: argparse.Namespace, jobs: list[dict[str, Any]]) -> None:
    """Runs the jobs in ComfyUI's process."""
    file = asked.work / "comfyui_trainer" / f"jobs_{jobs[0]['seed']}_{Path(jobs[0]['out']).stem}.json"
    model = str(models_folder() / FILE)
    file.write_text(json.dumps({"comfyui": str(asked.comfyui), "model": model, "jobs": jobs}), encoding="utf-8")
    subprocess.run([asked.python, str(ROOT / "tests" / "tiny" / "comfy_train.py"), str(file)], check=True)


def adapted(study: Study, lora: Path) -> WanTransformer:
    """Returns the base model with ComfyUI's LoRA merged: low-rank parts, and differences of norms and biases."""
    model = study.model(FILE, None)
    changes = {name.removeprefix("diffusion_model."): value for name, value in load_file(lora).items()}
    weights, used = model.state_dict(), 0
    for name, value in weights.items():
        stem, _, kind = name.rpartition(".")
        if kind == "weight" and f"{stem}.lora_up.weight" in changes:
            up, down = changes[f"{stem}.lora_up.weight"], changes[f"{stem}.lora_down.weight"]
            value += (up.flatten(1) @ down.flatten(1)).view_as(value) * changes[f"{stem}.alpha"] / len(down)
            used += 3
        difference = changes.get(f"{stem}.{'diff' if kind == 'weight' else 'diff_b'}")
        if difference is not None:
            value += difference
            used += 1
    if used != len(changes):
        raise SystemExit(f"{lora.name}: {len(changes) - used} of {len(changes)} tensors fit nothing in the model.")
    model.load_state_dict(weights)
    return model.train(False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
