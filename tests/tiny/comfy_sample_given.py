"""Sample tiny image-to-video Wans with ComfyUI's own nodes, from given pictures. A process of its own.

    python tests/tiny/comfy_sample_given.py JOB.json

JOB: comfyui (tree), cases (name -> [kind, model file]), vae, inputs (safetensors: text, negative, start_image and
end_image (1, H, W, 3), tokens (2, 257, 1280), first_latent (1, 48, 1, h, w) raw, clips (n, F, H, W, 3)), size
(width, height, frames), steps, cfg, shift, seed, out. Kinds: i2v, i2v_clip, flf2v, ti2v.
Writes to `out` one latent per case, normalised by ComfyUI's latent format, and `encoded.<i>`, what ComfyUI's VAE makes
of clip i (not normalised).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from comfy_job import read_job
from safetensors.torch import load_file, save_file


class GivenVae:
    """Stands where Wan22ImageToVideoLatent wants the 700 million weights of the 2.2 VAE: its answer is given."""

    def __init__(self, latent: torch.Tensor) -> None:
        self.encode = lambda _pixels: latent


def given(kind: str, job: dict[str, Any], inputs: dict[str, torch.Tensor], vae: Any) -> Any:
    """(positive, negative, latent) as ComfyUI's node for that kind of model makes them."""
    from comfy_extras.nodes_wan import Wan22ImageToVideoLatent, WanFirstLastFrameToVideo, WanImageToVideo

    positive, negative = ([[inputs[name], {}]] for name in ("text", "negative"))
    width, height, frames = job["size"]
    size: dict[str, Any] = {"width": width, "height": height, "length": frames, "batch_size": 1}
    start = inputs["start_image"]
    if kind == "ti2v":
        latent = Wan22ImageToVideoLatent.execute(GivenVae(inputs["first_latent"]), start_image=start, **size).result[0]
        return positive, negative, latent
    end = inputs["end_image"]
    first, last = (SimpleNamespace(penultimate_hidden_states=tokens[None]) for tokens in inputs["tokens"])
    if kind == "flf2v":
        pictures = {"start_image": start, "end_image": end}
        vision = {"clip_vision_start_image": first, "clip_vision_end_image": last}
        return WanFirstLastFrameToVideo.execute(positive, negative, vae, **size, **pictures, **vision).result
    tokens = {"clip_vision_output": first} if kind == "i2v_clip" else {}
    return WanImageToVideo.execute(positive, negative, vae, start_image=start, **size, **tokens).result


def main() -> None:
    job = read_job()
    import comfy.sd
    import comfy.utils
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    import nodes

    inputs = load_file(job["inputs"])
    out: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(job["vae"]))
        for index, clip in enumerate(inputs["clips"]):
            out[f"encoded.{index}"] = vae.encode(clip).float().cpu().contiguous()
        for name, (kind, file) in job["cases"].items():
            model = comfy.sd.load_diffusion_model(file, model_options={"dtype": torch.float32})
            (shifted,) = ModelSamplingSD3().patch(model, shift=job["shift"])
            positive, negative, latent = given(kind, job, inputs, vae)
            (result,) = nodes.KSampler().sample(
                shifted, job["seed"], job["steps"], job["cfg"], "euler", "simple", positive, negative, latent
            )
            out[name] = model.get_model_object("latent_format").process_in(result["samples"]).float().contiguous()
    save_file(out, job["out"])


if __name__ == "__main__":
    main()
