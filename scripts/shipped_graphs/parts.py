"""What a shipped graph is made of: nodes by key, links by key, and the six nodes every training graph shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

UMT5 = "umt5_xxl_fp8_e4m3fn_scaled.safetensors"
VAE_21 = "wan_2.1_vae.safetensors"
T2V_1_3B = "wan2.1_t2v_1.3B_fp16.safetensors"
T2V_14B = "wan2.1_t2v_14B_fp16.safetensors"
I2V_HIGH = "wan2.2_i2v_high_noise_14B_fp16.safetensors"
TI2V_5B = "wan2.2_ti2v_5B_fp16.safetensors"
VAE_22 = "wan2.2_vae.safetensors"
T2V_HIGH = "wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors"
T2V_LOW = "wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors"


@dataclass(frozen=True)
class Link:
    """An output of a node, by the key of the node in the graph."""

    node: str
    slot: int = 0


@dataclass
class Node:
    """A node: its class, what differs from the defaults, and where it stands."""

    kind: str
    inputs: dict[str, Any] = field(default_factory=dict)
    at: tuple[int, int] = (0, 0)
    """left and top edge of the body, in pixels; the title stands above it"""
    size: tuple[int, int] = (340, 120)
    title: str = ""
    """instead of the node's own name, where a graph has two of a kind"""


@dataclass
class Graph:
    """A shipped graph; nodes by key in the order of their ids."""

    name: str
    note: str
    """Markdown; lines of one paragraph or list item become one line"""
    nodes: dict[str, Node]
    downloads: bool = True
    """name where missing model files come from"""


COLUMNS = (0, 470, 880, 1290, 1770)
NOTE = (-520, 460, 500)
"""left, width, height; its top is level with the first node"""


def training(
    *,
    model: str = T2V_1_3B,
    low_noise_model: str = "none",
    vae: str = VAE_21,
    clip: str = UMT5,
    dataset: dict[str, Any],
    train: dict[str, Any],
    between: dict[str, Node] | None = None,
    preview: dict[str, Any] | None = None,
    picture: bool = False,
) -> dict[str, Node]:
    """The six nodes every training graph shares. `between` stands between LoadWanModel and TrainLoRA; previews start
    from a `picture`.

    Loaders stand left; what makes use of them stands so that no link runs behind a node: the model's link above all,
    the VAE's between it and the encoders, the dataset (which grows by its contact sheet) below.
    """
    between = between or {}
    files = {"diffusion_model": model, **({"low_noise_model": low_noise_model} if low_noise_model != "none" else {})}
    source = list(between)[-1] if between else "model"
    links = {"model": Link(source), "cache": Link("cache"), "vae": Link("vae")}
    left, second, third, fourth, _ = COLUMNS
    nodes = {
        "model": Node("LoadWanModel", files, (left, -160 if between else -30), (410, 210)),
        **between,
        "dataset": Node(
            "WanVideoDataset", {"model": Link("model"), **dataset}, (second, 620 if preview else 500), (350, 300)
        ),
        "vae": Node("VAELoader", {"vae_name": vae}, (left, 230), (410, 60)),
        "clip": Node("CLIPLoader", {"clip_name": clip, "type": "wan"}, (left, 340), (410, 110)),
        "cache": Node(
            "CacheLatents",
            {"dataset": Link("dataset"), "vae": Link("vae"), "clip": Link("clip")},
            (third, 290),
            (350, 170),
        ),
    }
    if picture:
        nodes["picture"] = Node("LoadImage", {}, (left, 530), (410, 330))
        preview = {**(preview or {}), "start_image": Link("picture")}
    if preview is not None:
        nodes["preview"] = Node("WanPreviewSettings", {"clip": Link("clip"), **preview}, (third, 530), (350, 430))
        links["validation"] = Link("preview")
    nodes["train"] = Node("TrainLoRA", {**links, **train}, (fourth, 110), (420, 470))
    return nodes
