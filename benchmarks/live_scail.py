"""SCAIL from a ComfyUI's own node to a prediction, here and there: conditioning, model, LoRA.

    PYTHON benchmarks/live_scail.py TREE

PYTHON and TREE: the interpreter and the tree of a ComfyUI that has WanSCAILToVideo (0.33). A tiny SCAIL and SCAIL-2 are
written to files; what the node makes of random pictures, poses and masks is read as Wan Cache from Latents reads it.
Prints the largest difference of the velocities in float32, plain and with a LoRA, and the keys its loader passes by.
"""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "tiny"), str(ROOT)]

import torch
from pack_loader import load_pack
from safetensors.torch import save_file
from torch import Tensor

from tests.support.golden import fill_at_random
from wan_core.checkpoint import detect_variant, read_header
from wan_core.dataset.conditioning import driven_tensors, stack_conditions
from wan_core.lora import LoraConfig, exported, inject_lora
from wan_core.model import LatentSpace, WanShape, WanTransformer

SHAPE = WanShape(
    dim=128, ffn_dim=256, num_heads=1, num_layers=2, in_channels=20, image_dim=1280, pose_stream_channels=20
)
SHAPES = {"scail": SHAPE, "scail2": WanShape(**SHAPE.to_dict() | {"identity_channels": 28})}
WIDTH, HEIGHT, FRAMES = 96, 64, 9
SIGMA = 0.3


class PlainVae:
    """Encodes by averages: a stand-in whose latents follow from the pixels."""

    def encode(self, pixels: Tensor) -> Tensor:
        """(F, H, W, 3) -> (1, 16, F', H / 8, W / 8)."""
        four = torch.cat([pixels[:1].expand(4, -1, -1, -1), pixels[1:]]).unflatten(0, (-1, 4)).mean(1)
        small = torch.nn.functional.avg_pool2d(four.movedim(-1, 1), 8)
        return torch.cat([small.repeat(1, 5, 1, 1), small[:, :1]], 1).movedim(1, 0)[None].clone()


class Tokens(dict[str, Tensor]):
    """As CLIP_VISION_OUTPUT: by attribute and by name."""

    def __getattr__(self, name: str) -> Tensor:
        return self[name]


def colours(frames: int, generator: torch.Generator, *, white: bool) -> Tensor:
    """Masks (F, H, W, 3) of the node's colours, in blocks of 16 pixels; `white`: where it is black."""
    blocks = torch.randint(0, 2, (frames, 3, HEIGHT // 16, WIDTH // 16), generator=generator).float()
    blocks[(blocks.sum(1, keepdim=True) % 3 == 0).expand_as(blocks)] = float(white)
    return torch.nn.functional.interpolate(blocks, scale_factor=16).movedim(1, -1)


def conditioned(node: Any, *, replaces: bool, masks: bool, count: int) -> tuple[Any, dict[str, Any]]:
    """Returns the CONDITIONING of WanSCAILToVideo for `count` references, and what it was given."""
    generator = torch.Generator().manual_seed(5)

    def pixels(frames: int) -> Tensor:
        return torch.rand(frames, HEIGHT, WIDTH, 3, generator=generator)

    text = torch.zeros(1, 512, 4096)
    text[:, :6] = torch.randn(1, 6, 4096, generator=generator)
    given: dict[str, Any] = {
        "positive": [[text, {"pooled_output": None}]],
        "negative": [[text, {"pooled_output": None}]],
        "pose_video": pixels(FRAMES),
        "reference_image": pixels(count),
        "clip_vision_output": Tokens(penultimate_hidden_states=torch.randn(1, 257, 1280, generator=generator)),
    }
    if masks:
        given["pose_video_mask"] = colours(FRAMES, generator, white=replaces)
        given["reference_image_mask"] = colours(count, generator, white=not replaces)
    numbers = {"width": WIDTH, "height": HEIGHT, "length": FRAMES, "batch_size": 1, "video_frame_offset": 0}
    strengths = {"pose_strength": 1.0, "pose_start": 0.0, "pose_end": 1.0, "previous_frame_count": 5}
    return node.execute(vae=PlainVae(), replacement_mode=replaces, **given, **numbers, **strengths).result[0], given


def from_files(given: dict[str, Any], space: LatentSpace) -> dict[str, Tensor]:
    """Returns what the dataset makes of files with the same pixels."""
    masks = (given["reference_image_mask"], given["pose_video_mask"]) if "pose_video_mask" in given else None
    encode = PlainVae().encode
    return driven_tensors(
        given["reference_image"], given["pose_video"], masks, lambda pixels: space.normalise(encode(pixels)[0])
    )


def their_velocity(patcher: Any, conditioning: Any, latent: Tensor) -> Tensor:
    """Returns the velocity as a sampling step of ComfyUI computes it; `latent` (1, 16, F, h, w) normalised."""
    importlib.import_module("comfy.model_management").load_models_gpu([patcher])
    model, (text, values) = patcher.model, conditioning[0]
    conds = model.extra_conds(noise=latent, device=latent.device, cross_attn=text, **values)
    given = {name: cond.process_cond(batch_size=1, area=None).cond for name, cond in conds.items()}
    sigma = torch.tensor([SIGMA])
    denoised = model.apply_model(latent, sigma, **given)
    return (latent - denoised) / SIGMA


def main(tree: str) -> None:
    folder = Path(tempfile.mkdtemp())
    pack = load_pack(Path(tree), folder)
    bridge = importlib.import_module(f"{pack.__name__}.nodes.bridge.core_tensors")
    sd, utils, nodes_scail = map(importlib.import_module, ("comfy.sd", "comfy.utils", "comfy_extras.nodes_scail"))
    for name, shape in SHAPES.items():
        ours = WanTransformer(shape)
        fill_at_random(ours, torch.Generator().manual_seed(1))
        file = folder / f"{name}.safetensors"
        save_file(ours.state_dict(), file)
        variant = detect_variant(read_header(file))
        assert variant.family.task == name
        patcher = sd.load_diffusion_model(str(file), {"dtype": torch.float32})
        print(f"{name}: ComfyUI loads {type(patcher.model).__name__}, here {variant.name}")
        modes = [(False, 1), (False, 2), *([(True, 1), (True, 2)] if shape.identity_channels else [])]
        cases = {}
        for replaces, count in modes:
            made, pixels = conditioned(
                nodes_scail.WanSCAILToVideo, replaces=replaces, masks=shape.identity_channels > 0, count=count
            )
            raw = torch.randn(1, 16, 3, HEIGHT // 8, WIDTH // 8, generator=torch.Generator().manual_seed(9))
            (clip,) = bridge.read_clips([{"samples": raw}], [made], variant)
            given, latent = stack_conditions([clip.condition]), clip.latent[None]
            if count == 1:
                encoded = from_files(pixels, variant.latents)
                apart = max(float((encoded[name] - clip.condition[name]).abs().max()) for name in encoded)
                print(f"  replaces {replaces}: {len(encoded)} tensors from files, {apart:.1e} from the node's")
            text = torch.zeros(1, 512, 4096)
            text[:, : len(clip.text)] = clip.text
            cases[replaces, count] = made, latent, (latent, torch.tensor([SIGMA * 1000]), text, given)
        plain = {}
        for case, (made, latent, inputs) in cases.items():
            with torch.no_grad():
                mine, other = ours(*inputs), their_velocity(patcher, made, latent)
            plain[case] = other
            off, most = (mine - other).abs().max(), other.abs().max()
            print(f"  replaces {case[0]}, {case[1]} references: {off:.1e} of {most:.2f}")
        inject_lora(ours, LoraConfig(rank=4), seed=0)
        for key, value in ours.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(value, std=0.1, generator=torch.Generator().manual_seed(3))
        lora = folder / "lora.safetensors"
        save_file({f"diffusion_model.{key}": value.contiguous() for key, value in exported(ours).items()}, lora)
        unread: list[str] = []
        logging.getLogger().addHandler(_Collects(unread))
        patcher, _ = sd.load_lora_for_models(patcher, None, utils.load_torch_file(str(lora)), 1.0, 0.0)
        print(f"  LoRA: {len(unread)} keys not loaded, {len(patcher.patches)} weights patched")
        for case, (made, latent, inputs) in cases.items():
            with torch.no_grad():
                mine, other = ours(*inputs), their_velocity(patcher, made, latent)
            moved = (other - plain[case]).abs().max()
            print(f"  with LoRA: {(mine - other).abs().max():.1e}, it changes {moved:.2f}")


class _Collects(logging.Handler):
    """Keeps what is said about keys that are not loaded."""

    def __init__(self, kept: list[str]) -> None:
        super().__init__()
        self.kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        if "not loaded" in record.getMessage():
            self.kept.append(record.getMessage())


if __name__ == "__main__":
    main(sys.argv[1])
