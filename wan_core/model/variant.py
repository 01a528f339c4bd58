"""The table of Wan variants, and finding a file's variant from its header alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import CheckpointError
from .header import CheckpointHeader, TensorInfo, damaged
from .keys import canonical_names
from .latents import WAN21_LATENTS, WAN22_LATENTS, LatentSpace
from .shape import WanShape

__all__ = ["TRAINABLE", "WanVariant", "detect_variant"]

TRAINABLE = ("t2v",)
"""Tasks the engine trains today; the others are recognised, named and refused."""


@dataclass(frozen=True, kw_only=True)
class WanVariant:
    """What a file is: its task, its sizes, and the numbers that go with them (Wan2.1 / Wan2.2 configs)."""

    name: str
    task: str
    """t2v, i2v, flf2v, ti2v, vace, s2v, animate, camera, control, dancer, humo"""
    shape: WanShape
    latents: LatentSpace
    fps: float
    size_multiple: int
    """pixels per token edge: VAE stride times patch 2"""
    boundary: float | None = None
    """sigma between the experts of an A14B pair; None when the file is not one of a pair"""
    expert: str | None = None
    """high_noise or low_noise, as far as the file name says"""
    candidates: tuple[str, ...] = ()
    """other variants with exactly these keys and shapes"""

    @property
    def trainable(self) -> bool:
        return self.task in TRAINABLE

    def sigma_range(self) -> tuple[float, float]:
        """Noise levels this model is trained and sampled on."""
        if self.boundary is None or self.expert is None:
            return (0.0, 1.0)
        return (self.boundary, 1.0) if self.expert == "high_noise" else (0.0, self.boundary)


_SPECIAL_MARKS = (
    ("vace_patch_embedding.weight", "vace"),
    ("control_adapter.conv.weight", "camera"),
    ("casual_audio_encoder.encoder.final_linear.weight", "s2v"),
    ("audio_proj.audio_proj_glob_1.layer.bias", "humo"),
    ("face_adapter.fuser_blocks.0.k_norm.weight", "animate"),
    ("img_emb_refimage.proj.0.bias", "dancer"),
)
_SIZES = {1536: "1.3B", 3072: "5B", 5120: "14B"}


def detect_variant(header: CheckpointHeader, *, override: str = "auto") -> WanVariant:
    """The variant of a file from keys and shapes; where they cannot tell, the file name hints and `override` decides.

    Raises CheckpointError naming what the file is instead when it is not a Wan diffusion model.
    """
    names = canonical_names(header.tensors)
    tensors = {names[name]: info for name, info in header.tensors.items()}
    file_name = header.path.name
    if "head.modulation" not in tensors or "patch_embedding.weight" not in tensors:
        raise CheckpointError(
            f"{file_name} is {_what_else(tensors)}, not a Wan diffusion model. {_where_to_put(tensors)}"
        )
    shape = _shape_of(tensors, file_name)
    task = _task_of(tensors, shape)
    return _named(task, shape, file_name, override)


def _shape_of(tensors: Mapping[str, TensorInfo], file_name: str) -> WanShape:
    def side(name: str, ndim: int, index: int) -> int:
        sizes = tensors[name].shape
        if len(sizes) != ndim or 0 in sizes:
            raise damaged(file_name)
        return sizes[index]

    try:
        dim = side("head.modulation", 3, 2)
        layers = {int(m[1]) for name in tensors if (m := re.match(r"blocks\.(\d{1,4})\.", name))}
        if layers != set(range(len(layers))):
            raise CheckpointError(f"{file_name} lacks transformer blocks ({len(layers)} found). Download it again.")
        return WanShape(
            dim=dim,
            ffn_dim=side("blocks.0.ffn.0.weight", 2, 0),
            num_heads=max(dim // 128, 1),
            num_layers=len(layers),
            in_channels=side("patch_embedding.weight", 5, 1),
            out_channels=side("head.head.weight", 2, 0) // 4,
            text_dim=side("text_embedding.0.weight", 2, 1),
            freq_dim=side("time_embedding.0.weight", 2, 1),
        )
    except KeyError as error:
        raise CheckpointError(f"{file_name} lacks the weight {error.args[0]}. Download it again.") from error


def _task_of(tensors: Mapping[str, TensorInfo], shape: WanShape) -> str:
    for mark, task in _SPECIAL_MARKS:
        if mark in tensors:
            return task
    with_image = "img_emb.proj.0.bias" in tensors or "blocks.0.cross_attn.k_img.weight" in tensors
    if "img_emb.emb_pos" in tensors:
        return "flf2v"
    if with_image:
        return "i2v" if shape.in_channels == 36 else "control"
    if shape.in_channels == 36:
        return "i2v"
    if shape.out_channels == 48:
        return "ti2v"
    return "t2v" if shape.in_channels == 16 else "control"


def _named(task: str, shape: WanShape, file_name: str, override: str) -> WanVariant:
    size = _SIZES.get(shape.dim, f"{shape.dim} wide")
    hint = file_name.lower().replace("-", "_")
    expert = next((e for e in ("high_noise", "low_noise") if e in hint), None)
    candidates: tuple[str, ...] = ()
    name = f"2.1 {task.upper()}-{size}"
    if task == "ti2v":
        name = f"2.2 TI2V-{size}"
    elif task == "t2v" and size == "14B":
        candidates = ("2.1 T2V-14B", "2.2 T2V-A14B high noise", "2.2 T2V-A14B low noise")
        name = f"2.2 T2V-A14B {expert.replace('_', ' ')}" if expert else candidates[0]
    elif task == "t2v" and expert and shape.dim not in _SIZES:
        # No published size: a pair in miniature, such as the demo models. Its files say what each one is.
        name = f"2.2 T2V-{size} {expert.replace('_', ' ')}"
    if override != "auto":
        known = candidates or (name,)
        if override not in known:
            raise CheckpointError(
                f'{file_name} cannot be "{override}": its shapes say {" or ".join(known)}. Set variant to auto.'
            )
        name = override
    paired = name.endswith(" noise")
    return WanVariant(
        name=name,
        task=task,
        shape=shape,
        latents=WAN22_LATENTS if shape.out_channels == 48 else WAN21_LATENTS,
        fps=24.0 if task == "ti2v" else 16.0,
        size_multiple=32 if shape.out_channels == 48 else 16,
        boundary=0.875 if paired else None,
        expert=("high_noise" if "high" in name else "low_noise") if paired else None,
        candidates=tuple(c for c in candidates if c != name),
    )


_OTHER_FILES = (
    (r"(^|\.)decoder\.(middle|head|conv)|^decoder\.", "a VAE", "It belongs into models/vae and the VAELoader node."),
    (r"lora_(A|B|up|down)\.|lora_unet_|\.lokr_|\.hada_", "a LoRA", "It belongs into models/loras."),
    (
        r"^(shared|encoder\.block\.\d+|token_embedding)\.",
        "a text encoder",
        "It belongs into models/text_encoders and CLIPLoader (type wan).",
    ),
    (r"^(visual|vision_model)\.", "a CLIP vision model", "It belongs into models/clip_vision."),
    (r"double_blocks|single_blocks", "a Flux or Hunyuan model", "Choose a Wan 2.1 or 2.2 diffusion model."),
    (r"input_blocks\.|down_blocks\.", "a Stable Diffusion model", "Choose a Wan 2.1 or 2.2 diffusion model."),
)


def _recognise(tensors: Mapping[str, TensorInfo]) -> tuple[str, str]:
    for pattern, what, where in _OTHER_FILES:
        if any(re.search(pattern, name) for name in tensors):
            return what, where
    return "something else", "Choose a Wan 2.1 or 2.2 diffusion model (.safetensors)."


def _what_else(tensors: Mapping[str, TensorInfo]) -> str:
    return _recognise(tensors)[0]


def _where_to_put(tensors: Mapping[str, TensorInfo]) -> str:
    return _recognise(tensors)[1]
