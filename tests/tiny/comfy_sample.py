"""Sample a tiny Wan with ComfyUI's own nodes: LoraLoaderModelOnly, ModelSamplingSD3, KSampler. A process of its own.

    python tests/tiny/comfy_sample.py JOB.json

JOB: comfyui (tree), model, lora_folder, lora (file name), inputs (safetensors with text, negative), latent_shape,
steps, cfg, shift, seed, out. Writes `base` and `lora` latents, normalised by ComfyUI's latent format, to `out`;
prints JSON: the number of weights the LoRA patched, and what ComfyUI said about keys it could not use.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


class Heard(logging.Handler):
    """Keeps what is logged about LoRA keys."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "lora" in record.getMessage().lower():
            self.lines.append(record.getMessage())


def read_job() -> dict[str, Any]:
    """The job named on the command line; ComfyUI is imported then."""
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    import_comfyui(job["comfyui"])
    return job


def import_comfyui(tree: str) -> None:
    """For the CPU, and without other packs."""
    sys.path.insert(0, tree)
    sys.argv = [sys.argv[0], "--cpu", "--disable-all-custom-nodes"]
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.sd

    import nodes  # noqa: F401


def main() -> None:
    job = read_job()
    import comfy.sd
    import folder_paths
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    import nodes

    heard = Heard()
    logging.getLogger().addHandler(heard)
    folder_paths.add_model_folder_path("loras", job["lora_folder"])
    texts = load_file(job["inputs"])
    positive, negative = ([[texts[name], {}]] for name in ("text", "negative"))
    latents: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        model = comfy.sd.load_diffusion_model(job["model"], model_options={"dtype": torch.float32})
        (adapted,) = nodes.LoraLoaderModelOnly().load_lora_model_only(model, job["lora"], 1.0)
        space = model.get_model_object("latent_format")
        for name, source in (("base", model), ("lora", adapted)):
            (shifted,) = ModelSamplingSD3().patch(source, shift=job["shift"])
            empty = {"samples": torch.zeros(job["latent_shape"])}
            (result,) = nodes.KSampler().sample(
                shifted, job["seed"], job["steps"], job["cfg"], "euler", "simple", positive, negative, empty
            )
            latents[name] = space.process_in(result["samples"]).float().contiguous()
    save_file(latents, job["out"])
    print(json.dumps({"patched": len(adapted.patches), "said": heard.lines}))


if __name__ == "__main__":
    main()
