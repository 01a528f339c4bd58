"""Train LoRAs with ComfyUI's own trainer, the core node TrainLoraNode at its defaults. A process of its own.

    python tests/tiny/comfy_train.py JOBS.json

JOBS: comfyui (tree), model (file), and `jobs`, a list of: inputs (safetensors with one or more latents*, each
(N, 16, F, h, w) of one size, as a VAE node gives them, and text (n, 4096) without padding), steps, learning_rate, seed,
out and optionally rank. Writes each LoRA to its `out`, with the seconds it took and ComfyUI's version in the header;
jobs whose `out` exists are skipped. Started by benchmarks/comfyui_trainer.py and benchmarks/learning/bench_cell.py.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

TEXT_ROWS = 512


def main() -> None:
    asked: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.argv = [sys.argv[0], "--cpu"]
    sys.path.insert(0, asked["comfyui"])
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.sd
    import comfyui_version
    from comfy_extras.nodes_train import TrainLoraNode

    model = comfy.sd.load_diffusion_model(asked["model"])
    usual = {part.id: part.default for part in TrainLoraNode.define_schema().inputs if hasattr(part, "default")}
    for job in asked["jobs"]:
        if Path(job["out"]).exists():
            continue
        inputs = load_file(job["inputs"])
        text = torch.nn.functional.pad(inputs["text"], (0, 0, 0, TEXT_ROWS - len(inputs["text"])))
        settings = {name: usual[name] for name in usual if name not in ("model", "latents", "positive")}
        settings |= {"gradient_checkpointing": False}  # the same gradients, sooner
        settings |= {name: job[name] for name in ("steps", "rank", "learning_rate", "seed") if name in job}
        settings |= job.get("settings", {})
        torch.manual_seed(job["seed"])
        latents = [inputs[name] for name in sorted(inputs, reverse=True) if name.startswith("latents")]
        began, spent = time.monotonic(), time.process_time()
        with torch.inference_mode():  # as every node runs
            made = TrainLoraNode.execute(
                model=[model],
                latents=[{"samples": one} for one in (latents if len(latents) == 1 else _apart(latents))],
                positive=[[[text[None], {}]]],
                **{name: [value] for name, value in settings.items()},
            )
        lora = {name: value.detach().float().contiguous() for name, value in made.result[0].items()}
        facts = {"train_s": f"{time.monotonic() - began:.1f}", "train_cpu_s": f"{time.process_time() - spent:.1f}"}
        save_file(lora, job["out"], metadata=facts | {"version": comfyui_version.__version__})


def _apart(latents: list[torch.Tensor]) -> list[torch.Tensor]:
    """One clip each: the node takes latents of several sizes only so."""
    return [one for several in latents for one in several.split(1)]


if __name__ == "__main__":
    main()
