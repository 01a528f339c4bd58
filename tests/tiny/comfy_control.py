"""What ComfyUI's own nodes and models make of control videos and masks. A process of its own.

    python tests/tiny/comfy_control.py JOB.json

JOB: comfyui (tree), cases (name -> [kind, model file]), vae, inputs (safetensors: clip and control (F, H, W, 3), mask
(F, H, W), picture (1, H, W, 3)), size (width, height, frames), out. Kinds: vace, vace_free (no mask), control,
control_22, first, first_last, camera, camera_22.
Writes to `out` for every case the tensor that enters the model, and for every call of the VAE `pixels.<i>` and
`latent.<i>` (raw); `rays.<pose>` of WanCameraEmbedding (job's `cameras`: its arguments); and `clip_vision`, the picture
as ComfyUI hands it to CLIP vision for Wan (not cropped).
"""

from __future__ import annotations

from typing import Any

import torch
from comfy_job import read_job
from safetensors.torch import load_file, save_file


class RecordingVae:
    """A VAE that keeps what it was asked and answered."""

    def __init__(self, vae: Any, out: dict[str, torch.Tensor]) -> None:
        self._vae, self._out, self._calls = vae, out, 0
        self.latent_channels = 16
        self.spacial_compression_encode = vae.spacial_compression_encode

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        latent = self._vae.encode(pixels)
        self._out[f"pixels.{self._calls}"] = pixels.float().cpu().clone().contiguous()
        self._out[f"latent.{self._calls}"] = latent[0].float().cpu().clone().contiguous()
        self._calls += 1
        return latent


def conditioned(kind: str, job: dict[str, Any], inputs: dict[str, torch.Tensor], vae: Any) -> dict[str, Any]:
    """The values that ComfyUI's node for that kind of model puts into a conditioning."""
    from comfy_extras import nodes_wan

    text: Any = [[torch.zeros(1, 512, 4096), {}]]
    width, height, frames = job["size"]
    size: dict[str, Any] = {"width": width, "height": height, "length": frames, "batch_size": 1}
    control, start, end = inputs["control"], inputs["clip"][:1], inputs["clip"][-1:]
    if kind.startswith("vace"):
        masks = {"control_masks": inputs["mask"]} if kind == "vace" else {}
        node, given = nodes_wan.WanVaceToVideo, {"strength": 1.0, "control_video": control, **masks}
    elif kind == "control":
        node, given = nodes_wan.WanFunControlToVideo, {"start_image": start, "control_video": control}
    elif kind == "control_22":
        node, given = nodes_wan.Wan22FunControlToVideo, {"control_video": control}
    elif kind.startswith("camera"):
        node = nodes_wan.WanCameraImageToVideo
        given = {"start_image": start, "camera_conditions": rays(job["cameras"][0])}
    else:
        node = nodes_wan.WanFunInpaintToVideo
        given = {"start_image": start, "end_image": end} if kind == "first_last" else {"start_image": start}
    return node.execute(text, text, vae, **size, **given).result[0][0][1]


def rays(camera: dict[str, Any]) -> torch.Tensor:
    """WanCameraEmbedding's output (1, 24, F', H, W)."""
    from comfy_extras import nodes_camera_trajectory

    return nodes_camera_trajectory.WanCameraEmbedding.execute(**camera).result[0]


def main() -> None:
    job = read_job()
    import comfy.clip_vision
    import comfy.sd
    import comfy.utils

    inputs = load_file(job["inputs"])
    out: dict[str, torch.Tensor] = {}
    width, height, frames = job["size"]
    noise = torch.zeros(1, 16, (frames - 1) // 4 + 1, height // 8, width // 8)
    with torch.inference_mode():
        vae = RecordingVae(comfy.sd.VAE(sd=comfy.utils.load_torch_file(job["vae"])), out)
        for name, (kind, file) in job["cases"].items():
            model = comfy.sd.load_diffusion_model(file, model_options={"dtype": torch.float32}).model
            given = conditioned(kind, job, inputs, vae)
            conds = model.extra_conds(noise=noise, device=torch.device("cpu"), **given)
            entered = conds["vace_context"].cond[:, 0] if kind.startswith("vace") else conds["c_concat"].cond
            out[name] = entered[0].float().clone().contiguous()
        for camera in job["cameras"]:
            out[f"rays.{camera['camera_pose']}"] = rays(camera)[0].float().clone().contiguous()
        out["clip_vision"] = comfy.clip_vision.clip_preprocess(inputs["picture"], crop=False).clone().contiguous()
    save_file(out, job["out"])


if __name__ == "__main__":
    main()
