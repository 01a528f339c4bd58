"""The whole path on a machine with nothing installed: `python3 scripts/demo.py`.

Sets everything up, starts a genuine ComfyUI with this pack and a tiny Wan that knows 96 captions of moving shapes,
teaches it a new one from eight drawn clips through `POST /prompt` (workflows/api/08_smoke_test.json), and samples it
with ComfyUI's own loader and sampler. Prints what it made and where, contact_sheet.jpg above all: each seed without and
with the LoRA. Exit code 0 only if the loss on clips of the concept that were held out fell by a quarter, ComfyUI loaded
every key of the LoRA, its sampler's output changed, judges recognise the new concept with the LoRA and not without it,
the previews play, and the same graph after a server restart trained nothing a second time.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import environment
from comfy_server import ComfyError, ComfyServer, make_base
from environment import ROOT, say

GRAPH = ROOT / "workflows" / "api" / "08_smoke_test.json"
SHOWN = 8  # clips of the contact sheet, without and with the LoRA
RECIPE: dict[str, Any] = {"eval_items": 4, "held_out": 4, "previews": True}
"""what the demo changes in a Recipe"""


@dataclass
class Findings:
    """Printed lines and failed checks."""

    failed: list[str] = field(default_factory=list)

    def show(self, name: str, value: object) -> None:
        say(f"  {name:<28} {value}")

    def check(self, name: str, value: object, holds: bool) -> None:
        self.show(name, f"{value}{'' if holds else '   <-- NOT as it should be'}")
        if not holds:
            self.failed.append(name)


def main() -> int:
    if os.environ.get("WAN_TRAINER_READY"):
        try:
            return show()
        except ComfyError as problem:
            say(f"\nThe demo failed. {problem}")
            return 1
    if not GRAPH.is_file():
        raise SystemExit(f"{GRAPH.relative_to(ROOT)} is missing; this checkout is not complete.")
    began = time.monotonic()
    say("Setting up (a second run starts at once)")
    ready = environment.prepare(tests=False)
    say(f"Set-up took {time.monotonic() - began:.1f} s.")
    code = environment.reenter_in_venv(ready, Path(__file__).resolve(), sys.argv[1:])
    say(f"\nThe demo took {time.monotonic() - began:.0f} s, exit code {code}.")
    return code


def show() -> int:
    """Runs the demo with the virtual environment's Python. Returns its exit code."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "tiny")]
    import world
    from shapeworld.comfy_graphs import MODELS, Recipe
    from shapeworld.concept import load_concept
    from shapeworld.learning import (
        CONCEPTS,
        DEFAULT_CONCEPT,
        draw_dataset,
        fill_models,
        follow,
        held_out_files,
        missing_models,
        run_of,
    )

    model, concept = MODELS["t2v"], load_concept(CONCEPTS / f"{DEFAULT_CONCEPT}.json")
    recipe = Recipe(**RECIPE)
    if absent := missing_models(model):
        say(f"The demo needs its models. There is {absent}")
        return 1
    tree = Path(os.environ["COMFYUI_PATH"])
    base = ROOT / "demo_output" / time.strftime("%Y-%m-%d_%H-%M-%S")
    make_base(base, [world.TINY_PACK])
    fill_models(base, model)
    folder, prior = draw_dataset(base, concept, recipe)
    shipped = json.loads(GRAPH.read_text(encoding="utf-8"))
    graph = demo_graph(shipped, concept, recipe, folder, prior, held_out_files(base, folder, recipe))
    found = Findings()

    say(f"\nStarting {environment.comfyui_version(tree)} on {base.relative_to(ROOT)}")
    began = time.monotonic()
    with ComfyServer(base, comfyui=tree, python=sys.executable) as comfy:
        say(f"It answers after {time.monotonic() - began:.1f} s. Queueing {GRAPH.relative_to(ROOT)}")
        began = time.monotonic()
        run = run_of(follow(comfy, graph, say))
        say(f"The queue finished after {time.monotonic() - began:.1f} s.\n\nTraining")
        about_training(found, run, base)

        say("\nThe LoRA in ComfyUI's own loader and sampler")
        about_use(found, comfy, run, base)

        say(f'\n"{concept.caption}", {SHOWN} seeds without and with the LoRA')
        about_learning(found, comfy, concept, run, base)

        say("\nThe same graph again, after a server restart")
        steps_before = step_lines(base, run)
        comfy.restart()
        again = run_of(comfy.run(graph, timeout=300))
        about_repeat(found, run, again, step_lines(base, again) - steps_before)

    say(f"\nEverything is in {base.relative_to(ROOT)}")
    if found.failed:
        say(f"NOT as it should be: {', '.join(found.failed)}")
        return 1
    say("All of it is as it should be.")
    return 0


def demo_graph(
    graph: dict[str, Any], concept: Any, recipe: Any, folder: str, prior: str, held_out: list[str]
) -> dict[str, Any]:
    """Returns the shipped graph with the demo's files and settings, and a dataset of known clips appended."""
    from shapeworld.comfy_graphs import (
        MODELS,
        SAMPLING,
        VAE,
        dataset_inputs,
        held_out_node,
        settings_inputs,
        train_inputs,
    )
    from world import tiny_graph

    sampling = {"steps": SAMPLING.steps, "cfg": SAMPLING.cfg, "shift": SAMPLING.shift}
    training = train_inputs(recipe, concept.name)
    graph = tiny_graph(
        graph,
        LoadWanModel={"diffusion_model": MODELS["t2v"].files[0], "base_precision": recipe.base_precision},
        VAELoader={"vae_name": VAE},
        WanVideoDataset=dataset_inputs(folder, recipe.concept_repeats),
        WanPreviewSettings={"prompts": concept.caption, "negative_prompt": "", **sampling},
        TrainLoRA={**training, "settings": ["settings", 0]},
    )
    graph["settings"] = {"class_type": "WanTrainSettings", "inputs": settings_inputs(recipe)}
    data, model = (
        next(n for n in graph if graph[n]["class_type"] == kind) for kind in ("WanVideoDataset", "LoadWanModel")
    )
    graph["held_out"] = held_out_node(held_out)
    graph[data]["inputs"]["settings"] = ["held_out", 0]
    if prior:
        old = {"model": [model, 0], **dataset_inputs(prior)}
        graph["prior"] = {"class_type": "WanVideoDataset", "inputs": old}
        graph[data]["inputs"]["append_to"] = ["prior", 0]
    return graph


def about_training(found: Findings, run: dict[str, Any], base: Path) -> None:
    from shapeworld.learning import evaluation_check

    cache = run["cache"]
    found.check(
        "clips and frames used",
        f"{cache['clips']} clips, {cache['frames']} frames",
        cache["clips"] >= 8,
    )
    found.show("latents encoded / cache hits", f"{cache['latents_encoded']} / {cache['latents_reused']}")
    found.show("texts encoded / cache hits", f"{cache['texts_encoded']} / {cache['texts_reused']}")
    found.check("optimizer steps", f"{run['step']} of {run['steps']}", run["step"] == run["steps"] > 0)
    found.show("seconds per step", f"{run['seconds_per_step']:.3f} s/it")
    check = evaluation_check(run)
    found.check(check.name, f"{check.measured}, wanted {check.wanted}", check.holds)
    lora = base / "models" / "loras" / run["lora_name"]
    found.check("LoRA", shown_path(lora), lora.is_file())
    if not run["samples"]:
        found.check("preview clips", "none", False)
    for sample in run["samples"]:
        file = base / sample["type"] / sample["subfolder"] / sample["filename"]
        frames, size = playable(file)
        found.check("preview clip", f"{shown_path(file)} ({frames} frames, {size})", frames > 0)


def about_use(found: Findings, comfy: ComfyServer, run: dict[str, Any], base: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from shapeworld.comfy_graphs import MODELS, VAE
    from world import sampling_graph, tiny_graph

    log_before = len(comfy.log_text())
    latents = []
    for lora in ("", run["lora_name"]):
        graph = sampling_graph(lora=lora, prefix="with_lora" if lora else "without_lora")
        files = {"UNETLoader": {"unet_name": MODELS["t2v"].files[0]}, "VAELoader": {"vae_name": VAE}}
        graph = tiny_graph(graph, **files)
        saved = comfy.outputs(comfy.run(graph, timeout=120), "10")["latents"][0]
        latents.append(load_file(base / saved["type"] / saved["subfolder"] / saved["filename"])["latent_tensor"])
    without, with_lora = latents
    keys = tensor_names(base / "models" / "loras" / run["lora_name"])
    lost = comfy.log_text()[log_before:].count("lora key not loaded")
    found.check("LoRA keys loaded / not", f"{len(keys) - lost} / {lost}", bool(keys) and lost == 0)
    change = float((with_lora - without).norm() / without.norm())
    alive = bool(torch.isfinite(with_lora).all())
    found.check(
        "change of KSampler's output",
        f"{change:.2%} (relative L2, same seed)",
        alive and change > 1e-4,
    )


def about_learning(found: Findings, comfy: ComfyServer, concept: Any, run: dict[str, Any], base: Path) -> None:
    """Adds the judges' findings on clips of the concept, and writes their contact sheet."""
    from shapeworld.comfy_graphs import MODELS
    from shapeworld.learning import concept_checks, concept_score, concept_strips, sample, shots_of
    from shapeworld.learning_report import learning_sheet
    from shapeworld.sheet import save_sheet

    shots = shots_of(concept, SHOWN)
    before, after = (
        sample(comfy, MODELS["t2v"], shots, f"concept_{len(loras)}", loras) for loras in ([], [run["lora_name"]])
    )
    for check in concept_checks(concept_score(concept, before), concept_score(concept, after), exact=False):
        found.check(check.name.removeprefix("concept "), f"{check.measured}, wanted {check.wanted}", check.holds)
    picture = base / "contact_sheet.jpg"
    save_sheet(learning_sheet(concept, concept_strips(before, after), SHOWN), picture)
    found.show("contact sheet", shown_path(picture))


def about_repeat(found: Findings, run: dict[str, Any], again: dict[str, Any], new_steps: int) -> None:
    cache = again["cache"]
    encoded = cache["latents_encoded"] + cache["texts_encoded"]
    hits = cache["latents_reused"] + cache["texts_reused"]
    found.check("steps trained", new_steps, new_steps == 0)
    found.check("encoded / cache hits", f"{encoded} / {hits}", encoded == 0)
    found.check(
        "same run, same LoRA",
        again["run"],
        (again["run"], again["lora_name"]) == (run["run"], run["lora_name"]),
    )


def step_lines(base: Path, run: dict[str, Any]) -> int:
    """Returns the optimizer steps in the run's metrics file."""
    file = base / "output" / "wan_trainer" / run["run"] / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    return sum("loss" in json.loads(line) for line in lines if line.endswith("}"))


def playable(file: Path) -> tuple[int, str]:
    """Returns (decoded frames, their size), or (0, reason)."""
    import av

    try:
        with av.open(str(file)) as video:
            frames = list(video.decode(video=0))
    except (OSError, ValueError, IndexError) as problem:
        return 0, str(problem)
    return len(frames), f"{frames[0].width}x{frames[0].height}" if frames else "empty"


def tensor_names(file: Path) -> list[str]:
    """Returns the names in a safetensors header."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    return [name for name in header if name != "__metadata__"]


def shown_path(file: Path) -> str:
    return file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else str(file)


if __name__ == "__main__":
    sys.exit(main())
