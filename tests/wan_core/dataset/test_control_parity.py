"""Control videos and masks become what ComfyUI's nodes and diffusers' VACE pipeline make of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.support.forked import RunScript
from tests.support.tiny_run import TINY_CAMERA, TINY_CONTROL, TINY_I2V, TINY_VACE, random_weights
from tests.support.tiny_vae import DiffusersCodec, tiny_vae
from wan_core.dataset import Sample, with_mask
from wan_core.dataset.bucket import Bucket
from wan_core.dataset.camera import camera_path, packed_path, rays_of_packed, read_poses
from wan_core.dataset.conditioning import (
    control_channels,
    given_frames,
    inpaint_channels,
    start_channels,
    vace_tensor,
)
from wan_core.model import WAN21_LATENTS
from wan_core.video import ClipInfo

SCRIPT = Path(__file__).parents[2] / "tiny" / "comfy_control.py"
WIDTH, HEIGHT, FRAMES = 96, 64, 9
CASES = {
    "vace": ("vace", TINY_VACE),
    "vace_free": ("vace_free", TINY_VACE),
    "control": ("control", replace(TINY_CONTROL, image_dim=1280)),
    "control_22": ("control_22", replace(TINY_CONTROL, in_channels=52)),
    "camera": ("camera", replace(TINY_CAMERA, in_channels=32, image_dim=1280)),
    "camera_22": ("camera_22", TINY_CAMERA),
    "first": ("first", TINY_I2V),
    "first_last": ("first_last", TINY_I2V),
}
TURNS, COMES_CLOSER = (
    {"camera_pose": pose, "speed": 1.3, "fx": 0.53, "fy": 0.94, "width": 192, "height": 144, "length": FRAMES}
    for pose in ("Anti Clockwise (ACW)", "Zoom In")
)
CAMERAS = [TURNS, COMES_CLOSER]
# The VAE's answers are shared, so what differs is rounding of (raw - mean) / std and of the pixels around grey.
TOLERANCE = 1e-6


def inputs() -> dict[str, torch.Tensor]:
    """A clip, a control video, a mask whose edges lie on no grid, and a picture for CLIP vision."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.zeros(FRAMES, HEIGHT, WIDTH)
    for frame in range(FRAMES):
        mask[frame, 5 : 30 + frame, 11 + 3 * frame : 50 + 3 * frame] = 1
    shape = (FRAMES, HEIGHT, WIDTH, 3)
    clip, control = (torch.rand(shape, generator=generator) for _ in range(2))
    y, x = torch.meshgrid(torch.linspace(0, 1, 480), torch.linspace(0, 1, 832), indexing="ij")
    picture = torch.stack([x, y, 0.5 + 0.5 * torch.sin(40 * x * y)], -1)[None]
    return {"clip": clip, "control": control, "mask": mask, "picture": (picture * 255).round() / 255}


@pytest.fixture(scope="module")
def theirs(
    comfyui_tree: Path, comfy_script: RunScript, tiny_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    if not (comfyui_tree / "comfy_extras" / "nodes_wan.py").is_file():
        pytest.skip(f"the ComfyUI in {comfyui_tree.name} has no comfy_extras/nodes_wan.py")
    root = tmp_path_factory.mktemp("control")
    save_file(inputs(), root / "inputs.safetensors")
    for name, (_, shape) in CASES.items():
        save_file(random_weights(shape), root / f"{name}.safetensors")
    job = {
        "comfyui": str(comfyui_tree), "vae": str(tiny_models / "vae" / "wan_tiny_vae.safetensors"),
        "cases": {name: [kind, str(root / f"{name}.safetensors")] for name, (kind, _) in CASES.items()},
        "inputs": str(root / "inputs.safetensors"), "size": (WIDTH, HEIGHT, FRAMES), "cameras": CAMERAS,
        "out": str(root / "out.safetensors"),
    }  # fmt: skip
    (root / "job.json").write_text(json.dumps(job))
    done = comfy_script(SCRIPT, str(root / "job.json"))
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(root / "out.safetensors")


def answers_of(theirs: dict[str, torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Their VAE: answers what it answered them, and nothing else."""

    def encode(pixels: torch.Tensor) -> torch.Tensor:
        for name, asked in theirs.items():
            if name.startswith("pixels.") and asked.shape == pixels.shape and torch.allclose(asked, pixels, atol=1e-6):
                return WAN21_LATENTS.normalise(theirs[name.replace("pixels", "latent")])
        raise AssertionError("these pixels never reached ComfyUI's VAE")

    return encode


@pytest.mark.comfy
@pytest.mark.parametrize("name", CASES)
def test_what_enters_the_model_is_what_enters_it_in_comfyui(theirs: dict[str, torch.Tensor], name: str) -> None:
    given, encode = inputs(), answers_of(theirs)
    if name.startswith("vace"):
        ours = vace_tensor(given["control"], given["mask"] if name == "vace" else None, encode)
    elif name == "control":
        ours = control_channels(given["control"], given["clip"][:1], encode)
    elif name.startswith("camera"):
        ours = start_channels(given["clip"], encode, with_mask=name == "camera_22")
    elif name == "control_22":
        ours = control_channels(given["control"], None, encode, with_mask=True)
    else:
        frames = [0, -1] if name == "first_last" else [0]
        ours = with_mask(encode(given_frames(given["clip"], frames)), FRAMES, frames)
        # Fun-InP with a mask that leaves the same frames black is the same thing.
        mask = torch.ones(FRAMES, HEIGHT, WIDTH)
        mask[frames] = 0
        torch.testing.assert_close(inpaint_channels(given["clip"], mask, encode), ours, atol=TOLERANCE, rtol=0)
    assert ours.shape == theirs[name].shape
    torch.testing.assert_close(ours, theirs[name], atol=TOLERANCE, rtol=0)


@pytest.mark.comfy
@pytest.mark.parametrize("columns", [18, 19, 22, 23])
@pytest.mark.parametrize("camera", CAMERAS, ids=lambda camera: camera["camera_pose"])
def test_rays_are_those_of_wan_camera_embedding(
    theirs: dict[str, torch.Tensor], columns: int, camera: dict[str, Any], tmp_path: Path
) -> None:
    """The same camera in a file, for a clip of 1280x720 that is cropped to 4:3."""
    file = tmp_path / "clip.camera.txt"
    file.write_text(pose_lines(camera, columns))
    sample = Sample(
        path=file, name="", caption="", caption_from="none", mark=(), bucket=Bucket(FRAMES, 144, 192),
        info=ClipInfo(kind="clip", width=1280, height=720, num_frames=FRAMES, fps=16.0, duration_s=FRAMES / 16),
    )  # fmt: skip
    ours = rays_of_packed(packed_path(camera_path(read_poses(file), sample, 16.0)))
    torch.testing.assert_close(ours, theirs[f"rays.{camera['camera_pose']}"], atol=TOLERANCE, rtol=0)


def pose_lines(camera: dict[str, Any], columns: int) -> str:
    """Lines of a camera of CAMERAS, in one of the four layouts; an address or a blank line stands first."""
    lines = ["some/address" if columns == 19 else ""]
    for frame in range(FRAMES):
        share = frame / FRAMES * camera["speed"]
        angle, pose = -share * np.pi / 3, np.eye(4)
        if camera is TURNS:
            pose[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        else:
            pose[2, 3] = 2 * 1.5 * share
        numbers = pose.ravel() if columns > 19 else np.linalg.inv(pose)[:3].ravel()
        lens = [camera["fx"], camera["fy"], 0.5, 0.5, 0, 0]
        lines.append(" ".join(repr(float(n)) for n in [*([frame] if columns % 2 else []), *lens, *numbers]))
    return "\n".join(lines)


@pytest.mark.comfy
def test_clip_vision_sees_the_whole_picture_squeezed_as_transformers_would(theirs: dict[str, torch.Tensor]) -> None:
    from transformers import CLIPImageProcessor

    processor = CLIPImageProcessor(size={"height": 224, "width": 224}, do_center_crop=False, resample=3)
    picture = Image.fromarray((inputs()["picture"][0] * 255).round().to(torch.uint8).numpy())
    wanted = torch.tensor(np.asarray(processor(picture, return_tensors="np")["pixel_values"]))
    error = (theirs["clip_vision"] - wanted).abs()
    step = 1 / 255 / 0.26  # one of 255 levels, after division by the standard deviation
    print(f"largest difference {float(error.max()) / step:.2f} levels, mean {float(error.mean()) / step:.4f}")  # noqa: T201
    assert float(error.max()) < 1.1 * step
    cropped = CLIPImageProcessor(size={"shortest_edge": 224}, resample=3)(picture, return_tensors="np")["pixel_values"]
    assert float((theirs["clip_vision"] - torch.tensor(np.asarray(cropped))).abs().max()) > 10 * step


@pytest.mark.soak  # what CI holds to ComfyUI's node; diffusers takes three seconds to import
@pytest.mark.lasts(4)
def test_vace_equals_the_diffusers_pipeline() -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler, WanVACEPipeline

    given = inputs()
    vae = tiny_vae(WAN21_LATENTS)
    transformer = type("Transformer", (torch.nn.Module,), {"config": type("Config", (), {"patch_size": (1, 2, 2)})})()
    scheduler = FlowMatchEulerDiscreteScheduler()
    pipe = WanVACEPipeline(tokenizer=None, text_encoder=None, vae=vae, scheduler=scheduler)
    pipe.transformer = transformer
    video = given["control"].permute(3, 0, 1, 2)[None] * 2 - 1
    mask = given["mask"][None, None].expand(-1, 3, -1, -1, -1)
    with torch.no_grad():
        latents = pipe.prepare_video_latents(video, mask, [[]], device=torch.device("cpu"))
    theirs = torch.cat([latents[0], pipe.prepare_masks(mask, [[]])[0]])
    ours = vace_tensor(given["control"], given["mask"], DiffusersCodec(vae, WAN21_LATENTS).encode)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    reactive_everywhere = vace_tensor(given["control"], None, DiffusersCodec(vae, WAN21_LATENTS).encode)
    assert float((ours - reactive_everywhere)[:32].abs().max()) > 0.01
