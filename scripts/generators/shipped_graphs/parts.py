"""Parts of a shipped graph: nodes and links by key, and the six nodes of every training graph."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

UMT5 = "umt5_xxl_fp8_e4m3fn_scaled.safetensors"
QWEN_VL = "qwen3vl_4b_fp8_scaled.safetensors"
VAE_21 = "wan_2.1_vae.safetensors"
T2V_1_3B = "wan2.1_t2v_1.3B_fp16.safetensors"
I2V_HIGH = "wan2.2_i2v_high_noise_14B_fp16.safetensors"
I2V_LOW = "wan2.2_i2v_low_noise_14B_fp16.safetensors"
ANIMATE_14B = "wan2.2_animate_14B_bf16.safetensors"
TI2V_5B = "wan2.2_ti2v_5B_fp16.safetensors"
VAE_22 = "wan2.2_vae.safetensors"
T2V_HIGH = "wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors"
T2V_LOW = "wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors"
BERNINI_HIGH = "wan2.2_bernini_r_high_noise_fp8_scaled.safetensors"
BERNINI_LOW = "wan2.2_bernini_r_low_noise_fp8_scaled.safetensors"


@dataclass(frozen=True)
class Link:
    """An output of a node, by the key of the node in the graph."""

    node: str
    slot: int = 0


@dataclass
class Node:
    """A node: its class, values other than the defaults, and its position."""

    kind: str
    inputs: dict[str, Any] = field(default_factory=dict)
    at: tuple[int, int] = (0, 0)
    """left and top edge of the body, in pixels; the title is above it"""
    size: tuple[int, int] = (340, 120)
    title: str = ""
    """replaces the node's name, where a graph has two of a class"""
    folded: bool = False
    """whether it is collapsed"""


@dataclass
class Graph:
    """A shipped graph; nodes by key in the order of their ids."""

    name: str
    note: str
    """Markdown; lines of one paragraph or list item become one line"""
    nodes: dict[str, Node]
    downloads: bool = True
    """whether missing model files get a download address"""
    app: tuple[tuple[str, str], ...] = ()
    more_notes: tuple[tuple[str, tuple[int, int, int, int]], ...] = ()
    """further notes: Markdown, and left and top edge, width and height"""
    """(node, widget) of each input of the app that the page makes of it; its output is the training"""


APP = (
    ("dataset", "folder"),
    ("dataset", "trigger_word"),
    ("dataset", "wan_trainer_panel"),
    ("train", "run_name"),
    ("train", "wan_trainer_panel"),
)
"""inputs of a training as an app, among them the card of the dataset and the panel (web/js/lib/page/app_mode.mjs)"""
AS_APP = """**As an app**: newer versions of ComfyUI show folder, trigger word, clips with captions, name and panel
alone: *Enter app mode*, in the menu at the top left."""
"""paragraph of the note of a graph with an app"""
BEST_STEP = """**Best step**: of 20 files or more, *Wan Dataset Settings* holds out a few for validation, and a star
marks the saved step with the lowest validation loss. Set its `held_out_ratio` to 0 to train on all files."""
"""paragraph of a note"""
TITLE = 30
NOTE = (0, TITLE, 400, 800)
"""left and top edge, width and height of the note. It is at the origin: Nodes 2.0 of older pages stretches graphs from
there"""
GAP = 40
"""pixels between two nodes"""
ROOM = {
    "LoadWanModel": 280,
    "Fp8Quantize": 220,
    "SplitAcrossGPUs": 690,
    "WanVideoDataset": 910,
    "WanDatasetSettings": 880,
    "VAELoader": 120,
    "CLIPLoader": 170,
    "CLIPVisionLoader": 120,
    "CacheLatents": 215,
    "WanClipFrames": 270,
    "WanSaveCaptions": 910,
    "TextGenerate": 430,
    "WanPreviewSettings": 760,
    "LoadImage": 385,
    "TrainLoRA": 1370,
    "ValidateVideo": 800,
    "UNETLoader": 160,
    "ApplyWanLoRA": 230,
    "CLIPTextEncode": 220,
    "EmptyHunyuanLatentVideo": 210,
    "ModelSamplingSD3": 110,
    "KSamplerAdvanced": 500,
    "VAEDecode": 120,
    "CreateVideo": 150,
    "SaveVideo": 480,
}
"""node class -> height in pixels with all its cards and its title, in both node renderers, as measured by
tests/browser/test_layouts.py and rounded up"""


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
    keeps_some: bool = True,
) -> dict[str, Node]:
    """Returns the six nodes of every training graph, without positions (`placed`).

    `between`: a node between LoadWanModel and TrainLoRA; `picture`: the start of previews; `keeps_some`: a seventh
    node, "kept", that holds out some clips.
    """
    between = between or {}
    files = {"diffusion_model": model, **({"low_noise_model": low_noise_model} if low_noise_model != "none" else {})}
    source = list(between)[-1] if between else "model"
    links = {"model": Link(source), "cache": Link("cache"), "vae": Link("vae")}
    nodes = {
        "model": Node("LoadWanModel", files, size=(360, 170)),
        **between,
        "dataset": Node("WanVideoDataset", {"model": Link("model"), **dataset}, size=(350, 300)),
        "vae": Node("VAELoader", {"vae_name": vae}, size=(360, 60)),
        "clip": Node("CLIPLoader", {"clip_name": clip, "type": "wan"}, size=(360, 110)),
        "cache": Node(
            "CacheLatents", {"dataset": Link("dataset"), "vae": Link("vae"), "clip": Link("clip")}, size=(350, 170)
        ),
    }
    if picture:
        nodes["picture"] = Node("LoadImage", {}, size=(360, 330))
        preview = {**(preview or {}), "start_image": Link("picture")}
    if preview is not None:
        nodes["preview"] = Node("WanPreviewSettings", {"clip": Link("clip"), **preview}, size=(350, 310))
        links["validation"] = Link("preview")
    nodes["train"] = Node("TrainLoRA", {**links, **train}, size=(400, 470))
    if keeps_some:
        nodes["kept"] = Node("WanDatasetSettings", size=(360, 200), folded=True)
        nodes["dataset"].inputs["settings"] = Link("kept")
    return nodes


def placed(nodes: dict[str, Node], *columns: str, tops: tuple[int, ...] = ()) -> dict[str, Node]:
    """Returns the nodes in columns from left to right, such as "model vae clip", with room for their cards.

    A node that grows with its data is the last one of its column. `tops` moves columns down.
    """
    left, at = NOTE[2] + GAP, {}
    for column, top in zip(columns, (*tops, *(0 for _ in columns)), strict=False):
        keys = column.split()
        for key in keys:
            at[key] = (left, top + TITLE)
            top += ROOM[nodes[key].kind] + GAP
        left += max(nodes[key].size[0] for key in keys) + GAP
    return {key: replace(node, at=at[key]) for key, node in nodes.items()}
