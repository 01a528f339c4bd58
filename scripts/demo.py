"""The whole path on a machine with nothing installed: `python3 scripts/demo.py`.

Sets everything up, starts a genuine ComfyUI with this pack, trains a LoRA on three real clips with a tiny Wan through
`POST /prompt` (workflows/api/08_smoke_test.json), and checks the result with ComfyUI's own loader and sampler. Prints
what it made and where; exit code 0 only if the evaluation loss fell, ComfyUI loaded every key of the LoRA, its
sampler's output changed, the previews play, and the same graph after a server restart trained nothing a second time.
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
PROMPT = "a man in a suit talks inside a driving car"


@dataclass
class Findings:
    """Lines for the reader, and the checks that failed."""

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
    """The demo itself; runs with the virtual environment's Python."""
    sys.path.insert(0, str(ROOT / "tests" / "tiny"))
    import world

    tree = Path(os.environ["COMFYUI_PATH"])
    base = ROOT / "demo_output" / time.strftime("%Y-%m-%d_%H-%M-%S")
    make_base(base, [world.TINY_PACK])
    world.fill_base(base, tree)
    graph = world.tiny_graph(json.loads(GRAPH.read_text(encoding="utf-8")))
    found = Findings()

    say(f"\nStarting {environment.comfyui_version(tree)} on {base.relative_to(ROOT)}")
    began = time.monotonic()
    with ComfyServer(base, comfyui=tree, python=sys.executable) as comfy:
        say(f"It answers after {time.monotonic() - began:.1f} s. Queueing {GRAPH.relative_to(ROOT)}")
        began = time.monotonic()
        run = run_of(follow(comfy, graph))
        say(f"The queue finished after {time.monotonic() - began:.1f} s.\n\nTraining")
        about_training(found, run, base)

        say("\nThe LoRA in ComfyUI's own loader and sampler")
        about_use(found, comfy, world, run, base)

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


def follow(comfy: ComfyServer, graph: dict[str, Any]) -> dict[str, Any]:
    """Queue, and show which node runs and how far it is."""
    with comfy.events() as seen:
        prompt_id = comfy.queue(graph)
        shown, last = 0, 0.0
        while comfy.history(prompt_id) is None:
            time.sleep(0.25)
            for kind, data in seen.messages[shown:]:
                shown += 1
                if kind == "executing" and data.get("node") in graph:
                    say(f"  {graph[data['node']]['class_type']}")
                elif kind == "progress" and (time.monotonic() - last > 2 or data["value"] == data["max"]):
                    last = time.monotonic()
                    say(f"    {data['value']:.0f} of {data['max']:.0f}")
            if comfy.process is None or comfy.process.poll() is not None:
                break
    return comfy.wait(prompt_id, timeout=60)


def run_of(entry: dict[str, Any]) -> dict[str, Any]:
    """What TrainLoRA reported about its run."""
    for shown in entry["outputs"].values():
        if shown.get("wan_run"):
            return dict(shown["wan_run"][0])
    raise ComfyError("No node of the graph reported a training run (`wan_run`).")


def about_training(found: Findings, run: dict[str, Any], base: Path) -> None:
    cache = run["cache"]
    found.check(
        "clips and frames used",
        f"{cache['clips']} clips, {cache['frames']} frames",
        cache["clips"] >= 3,
    )
    found.show("latents encoded / cache hits", f"{cache['latents_encoded']} / {cache['latents_reused']}")
    found.show("texts encoded / cache hits", f"{cache['texts_encoded']} / {cache['texts_reused']}")
    found.check("optimizer steps", f"{run['step']} of {run['steps']}", run["step"] == run["steps"] > 0)
    found.show("seconds per step", f"{run['seconds_per_step']:.3f} s/it")
    first, last = run["eval_loss_first"], run["eval_loss_last"]
    found.check("fixed-noise evaluation loss", f"{first:.4f} before -> {last:.4f} after", last < first)
    lora = base / "models" / "loras" / run["lora_name"]
    found.check("LoRA", shown_path(lora), lora.is_file())
    if not run["samples"]:
        found.check("preview clips", "none", False)
    for sample in run["samples"]:
        file = base / sample["type"] / sample["subfolder"] / sample["filename"]
        frames, size = playable(file)
        found.check("preview clip", f"{shown_path(file)} ({frames} frames, {size})", frames > 0)


def about_use(found: Findings, comfy: ComfyServer, world: Any, run: dict[str, Any], base: Path) -> None:
    import torch
    from safetensors.torch import load_file

    log_before = len(comfy.log_text())
    latents = []
    for lora in ("", run["lora_name"]):
        graph = world.sampling_graph(lora=lora, text=PROMPT, prefix="with_lora" if lora else "without_lora")
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
    """How many optimizer steps the run's metrics file has."""
    file = base / "output" / "wan_trainer" / run["run"] / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    return sum("loss" in json.loads(line) for line in lines if line.endswith("}"))


def playable(file: Path) -> tuple[int, str]:
    """Frames that decode, and their size; (0, reason) when it does not play."""
    import av

    try:
        with av.open(str(file)) as video:
            frames = list(video.decode(video=0))
    except (OSError, ValueError, IndexError) as problem:
        return 0, str(problem)
    return len(frames), f"{frames[0].width}x{frames[0].height}" if frames else "empty"


def tensor_names(file: Path) -> list[str]:
    """Names in a safetensors header."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    return [name for name in header if name != "__metadata__"]


def shown_path(file: Path) -> str:
    return file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else str(file)


if __name__ == "__main__":
    sys.exit(main())
