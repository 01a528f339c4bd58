"""Sample a tiny Wan 2.2 Animate with ComfyUI's own nodes, without and with a LoRA. A process of its own.

    python tests/tiny/comfy_animate.py JOB.json

JOB: comfyui (tree), model, lora, vae, inputs (safetensors: text, pose, face and reference (F, H, W, 3), tokens
(1, 257, 1280)), size (width, height, frames), steps, shift, seed, out. Writes to `out` the latents `base` and `lora`,
normalised, and what WanAnimateToVideo put into its CONDITIONING; prints what was said about LoRA keys.
"""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import torch
from comfy_job import read_job
from safetensors.torch import load_file, save_file


class Heard(logging.Handler):
    """Keeps what is logged about LoRA keys."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "lora" in record.getMessage().lower():
            self.lines.append(record.getMessage())


def main() -> None:
    job = read_job()
    import comfy.sd
    import comfy.utils
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3
    from comfy_extras.nodes_wan import WanAnimateToVideo

    import nodes

    heard, inputs, (width, height, length) = Heard(), load_file(job["inputs"]), job["size"]
    logging.getLogger().addHandler(heard)
    with torch.inference_mode():
        vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(job["vae"]))
        positive, negative, latent, trim, *_ = WanAnimateToVideo.execute(
            *([[inputs["text"], {}]], [[inputs["text"], {}]], vae, width, height, length, 1, 5, 0),
            reference_image=inputs["reference"],
            clip_vision_output=SimpleNamespace(penultimate_hidden_states=inputs["tokens"]),
            face_video=inputs["face"],
            pose_video=inputs["pose"],
        ).result
        assert trim == 1
        model = comfy.sd.load_diffusion_model(job["model"], model_options={"dtype": torch.float32})
        kind = type(model.model).__name__
        adapted, _ = comfy.sd.load_lora_for_models(model, None, comfy.utils.load_torch_file(job["lora"]), 1.0, 0.0)
        values = positive[0][1]
        out = {name: values[name] for name in ("concat_latent_image", "concat_mask", "pose_video_latent")}
        out["face_video_pixels"] = values["face_video_pixels"]
        for name, one in (("base", model), ("lora", adapted)):
            (shifted,) = ModelSamplingSD3().patch(one, shift=job["shift"])
            (result,) = nodes.KSampler().sample(
                *(shifted, job["seed"], job["steps"], 1.0, "euler", "simple", positive, negative, latent)
            )
            out[name] = model.get_model_object("latent_format").process_in(result["samples"])
    save_file({name: value.float().cpu().contiguous() for name, value in out.items()}, job["out"])
    print(json.dumps({"kind": kind, "said": heard.lines, "patches": len(adapted.patches)}))


if __name__ == "__main__":
    main()
