"""The part of a generation graph that makes the first latent: core's node of the model, and what loads its inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..families import CHANNELS, FIRST_LATENT, family_called

Link = tuple[str, int]
"""key of a node, and its output"""
_SIZE = "Size and length"


@dataclass
class GraphNode:
    """A node of a generation graph."""

    kind: str
    column: int
    inputs: dict[str, Any]
    """links, and widget values in the order of the node"""
    title: str = ""
    folded: bool = False


@dataclass(frozen=True)
class InputNode:
    """Core's node that adds the inputs of a model to both prompts."""

    kind: str
    image: str = ""
    """its input for an image; "" if it needs none"""
    videos: tuple[str, ...] = ()
    """its inputs for videos, named after what they show"""
    sees: bool = True
    """True if it also takes the image through CLIP vision, where the model reads that"""
    sound: bool = False
    camera: bool = False
    widgets: dict[str, Any] = field(default_factory=dict[str, Any])
    """its widgets after width, height, length and batch size"""


_NODES = {
    "scail": InputNode(
        "WanSCAILToVideo",
        "reference_image",
        ("pose_video",),
        widgets={
            "pose_strength": 1.0,
            "pose_start": 0.0,
            "pose_end": 1.0,
            "video_frame_offset": 0,
            "previous_frame_count": 5,
            "replacement_mode": False,
        },
    ),
    "animate": InputNode(
        "WanAnimateToVideo",
        "reference_image",
        ("pose_video", "face_video"),
        widgets={"continue_motion_max_frames": 5, "video_frame_offset": 0},
    ),
    "camera": InputNode("WanCameraImageToVideo", "start_image", camera=True),
    "humo": InputNode("WanHuMoImageToVideo", "ref_image", sees=False, sound=True),
}
"""task -> its node"""
_BERNINI = InputNode("BerniniConditioning", videos=("source_video",), sees=False, widgets={"ref_max_size": 848})
_TITLES = {
    "pose_video": "Load Video (poses)",
    "face_video": "Load Video (face)",
    "source_video": "Load Video (source)",
}
READY = ("t2v", "i2v", "ti2v", *_NODES)
"""tasks with a graph"""


def input_node(variant: str, *, context: bool = False) -> InputNode | None:
    """Returns the node of a variant's name, or None if it reads text alone. `context`: trained as Bernini-R."""
    found = family_called(variant)
    if context:
        return _BERNINI
    if found and found[0].starts_from == CHANNELS:
        return InputNode("WanImageToVideo", "start_image")
    return _NODES.get(found[0].task) if found else None


def add_start(
    out: dict[str, GraphNode], variant: str, size: tuple[int, int, int], picture: str, *, context: bool
) -> Link:
    """Adds the node of the first latent to `out`, and those of its inputs; returns the link to the latent.

    `size`: width, height, frames; `picture`: file in ComfyUI's input folder, or "".
    """
    node, found = input_node(variant, context=context), family_called(variant)
    sizes: dict[str, Any] = {**dict(zip(("width", "height", "length"), size, strict=True)), "batch_size": 1}
    if picture:
        out["picture"] = GraphNode("LoadImage", 1, {"image": picture})
    if node is None:
        links: dict[str, Any] = {"start_image": ("picture", 0)} if picture else {}
        if found and found[0].starts_from == FIRST_LATENT:
            out["start"] = GraphNode("Wan22ImageToVideoLatent", 1, {"vae": ("vae", 0), **links, **sizes}, _SIZE)
        else:
            out["start"] = GraphNode("EmptyHunyuanLatentVideo", 1, sizes, _SIZE)
        return ("start", 0)
    links = {"positive": ("positive", 0), "negative": ("negative", 0), "vae": ("vae", 0)}
    if node.sees and found and (found[1].clip if found[1] else variant.startswith(found[0].versions[0])):
        out["clip_vision"] = GraphNode("CLIPVisionLoader", 0, {"clip_name": "clip_vision_h.safetensors"})
        look = {"clip_vision": ("clip_vision", 0), "image": ("picture", 0), "crop": "none"}
        out["seen"] = GraphNode("CLIPVisionEncode", 1, look)
        links["clip_vision_output"] = ("seen", 0)
    if node.image:
        links[node.image] = ("picture", 0)
    for name in node.videos:
        out[name] = GraphNode("LoadVideo", 0, {"file": ""}, _TITLES[name])
        out[f"{name}_frames"] = GraphNode("GetVideoComponents", 0, {"video": (name, 0)}, folded=True)
        links[name] = (f"{name}_frames", 0)
    if node.sound:
        out["encoder"] = GraphNode("AudioEncoderLoader", 0, {"audio_encoder_name": "whisper_large_v3_fp16.safetensors"})
        out["sound"] = GraphNode("LoadAudio", 0, {"audio": ""})
        heard = {"audio_encoder": ("encoder", 0), "audio": ("sound", 0)}
        out["heard"] = GraphNode("AudioEncoderEncode", 1, heard)
        links["audio_encoder_output"] = ("heard", 0)
    if node.camera:
        lens = {"speed": 1.0, "fx": 0.5, "fy": 0.5, "cx": 0.5, "cy": 0.5}
        path = {"camera_pose": "Zoom In", **{name: sizes[name] for name in ("width", "height", "length")}, **lens}
        out["path"] = GraphNode("WanCameraEmbedding", 1, path)
        links["camera_conditions"] = ("path", 0)
    out["start"] = GraphNode(node.kind, 1, {**links, **sizes, **node.widgets}, _SIZE)
    return ("start", 2)
