"""Writes the shipped graphs: one description each -> workflows/NAME.json (canvas) and workflows/api/NAME.json (API).

    python3 scripts/make_workflows.py          # writes both forms
    python3 scripts/make_workflows.py --check  # exit code 1 when a file on disk is not what would be written

Widget positions come from tests/nodes/schemas.json, so a graph can never disagree with the nodes. Standard library
only. Pictures of the graphs: tests/browser/make_pictures.py.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = ROOT / "workflows"
HUB = "https://huggingface.co/Comfy-Org/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files"
HUB_22 = "https://huggingface.co/Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files"

UMT5 = "umt5_xxl_fp8_e4m3fn_scaled.safetensors"
VAE_21 = "wan_2.1_vae.safetensors"
T2V_1_3B = "wan2.1_t2v_1.3B_fp16.safetensors"
T2V_14B = "wan2.1_t2v_14B_fp16.safetensors"
I2V_HIGH = "wan2.2_i2v_high_noise_14B_fp16.safetensors"
TI2V_5B = "wan2.2_ti2v_5B_fp16.safetensors"
VAE_22 = "wan2.2_vae.safetensors"

SOCKET_ONLY = {"MODEL", "VAE", "CLIP", "CLIP_VISION", "IMAGE"}
CORE: dict[str, Any] = {
    "VAELoader": {
        "display_name": "Load VAE",
        "inputs": [{"name": "vae_name", "type": "COMBO", "default": ""}],
        "outputs": [{"name": "VAE", "type": "VAE"}],
    },
    "CLIPLoader": {
        "display_name": "Load CLIP",
        "inputs": [
            {"name": "clip_name", "type": "COMBO", "default": ""},
            {"name": "type", "type": "COMBO", "default": "wan"},
            {"name": "device", "type": "COMBO", "default": "default"},
        ],
        "outputs": [{"name": "CLIP", "type": "CLIP"}],
    },
    "LoadImage": {
        "display_name": "Load Image",
        "inputs": [{"name": "image", "type": "COMBO", "default": "example.png"}],
        "outputs": [{"name": "IMAGE", "type": "IMAGE"}, {"name": "MASK", "type": "MASK"}],
    },
}
FOLDERS = {
    "diffusion_model": "diffusion_models",
    "vae_name": "vae",
    "clip_name": "text_encoders",
}
"""widgets that name a file users may lack -> the models folder it belongs into"""


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
    source = list(between)[-1] if between else "model"
    links = {"model": Link(source), "cache": Link("cache"), "vae": Link("vae")}
    left, second, third, fourth, _ = COLUMNS
    nodes = {
        "model": Node("LoadWanModel", {"diffusion_model": model}, (left, -160 if between else -30), (410, 210)),
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


STILLS = Graph(
    "01_wan21_t2v_1.3B_stills",
    """## Train a LoRA on pictures (Wan 2.1, 1.3B)

**Files**, below ComfyUI's `models` folder:

- `diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors`
- `vae/wan_2.1_vae.safetensors`
- `text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors`

**Steps**

1. Make a folder in ComfyUI's `input` folder. Put 10 to 30 pictures there, and beside each `name.png` a
`name.txt` that says what is to be seen.
2. Press **R**, then choose the folder in *Wan Video Dataset*. No `.txt` files? Fill in `trigger_word`.
3. Press **Run**. Previews play in *Train Wan LoRA*; the LoRA appears in `loras/wan_trainer`.

Cancel saves and stops; Run again goes on where it stopped.

**Memory**: training takes about 4 GB of the GPU (predicted). Before it, ComfyUI loads the text encoder once,
to read the captions.""",
    training(dataset={"num_frames": 1, "width": 832, "height": 480}, train={"run_name": "my_stills_lora"}),
)

CLIPS = Graph(
    "02_wan21_t2v_1.3B_clips",
    """## Train a LoRA on clips (Wan 2.1, 1.3B)

**Files**, below ComfyUI's `models` folder:

- `diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors`
- `vae/wan_2.1_vae.safetensors`
- `text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors`

**Steps**

1. Make a folder in ComfyUI's `input` folder. Put clips of 2 seconds or more there, and beside each `name.mp4`
a `name.txt` that says what happens.
2. Press **R**, then choose the folder in *Wan Video Dataset*. Its report says which frames are used and what
was left out.
3. Press **Run**. Clips and captions are encoded once; later runs reuse them. Previews play in *Train Wan
LoRA*; the LoRA appears in `loras/wan_trainer`.

**Memory**: training takes about 8 GB of the GPU (predicted). Less: fewer `num_frames` (17, 21, 25 ...), or a
smaller `width` and `height`.""",
    training(dataset={"num_frames": 33, "width": 832, "height": 480}, train={"run_name": "my_clips_lora"}),
)

I2V = Graph(
    "04_wan22_i2v_A14B_motion",
    """## Teach an image-to-video model a motion (Wan 2.2 A14B)

**Files**, below ComfyUI's `models` folder:

- `diffusion_models/wan2.2_i2v_high_noise_14B_fp16.safetensors` (the low-noise file is a second run)
- `vae/wan_2.1_vae.safetensors`
- `text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors`

**What is new here**: the model is given the first frame of each clip, so the LoRA learns what happens next. The
cache keeps these frames beside the clips. Previews start from the picture in *Load Image*; without it they start
from your first clip.

**Steps**

1. Put clips of 2 seconds or more of the motion into a folder of ComfyUI's `input` folder, each with a `.txt` beside
it that names the motion. Choose the folder in *Wan Video Dataset*.
2. Choose a picture in *Load Image*, and write what should happen to it into `prompts`.
3. Press **Run**. For the low-noise model choose its file in *Load Wan Model*, another `run_name`, and run again: motion
is mostly the high-noise model's, detail the other's.

**Wan 2.1 image-to-video**: choose its file and connect *Load CLIP Vision* (`clip_vision_h`) to `clip_vision` of
*Cache Latents* and *Wan Preview Settings*.""",
    training(
        model=I2V_HIGH,
        dataset={"num_frames": 33, "width": 832, "height": 480},
        preview={"prompts": ""},
        picture=True,
        train={"run_name": "my_motion_high_noise"},
        between={"quantize": Node("Fp8Quantize", {"model": Link("model")}, (COLUMNS[1], -130), (350, 140))},
    ),
)

TI2V = Graph(
    "05_wan22_ti2v_5B",
    """## Train a LoRA for the 5B model (Wan 2.2 TI2V)

**Files**, below ComfyUI's `models` folder:

- `diffusion_models/wan2.2_ti2v_5B_fp16.safetensors`
- `vae/wan2.2_vae.safetensors` (this model has a VAE of its own)
- `text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors`

**What is new here**: 24 frames per second, sizes in multiples of 32, and one model for both text-to-video and
image-to-video. Half of the clips train the one, half the other; `first_frame_conditioning_p` of *Wan Train Settings*
changes that.

**Steps**: choose the folder with your clips in *Wan Video Dataset*, then press **Run**. How such a folder
looks: see the template for clips. Previews are text-to-video; connect a *Load Image* to `start_image` of *Wan Preview
Settings* to see image-to-video.""",
    training(
        model=TI2V_5B,
        vae=VAE_22,
        dataset={"num_frames": 49, "width": 1280, "height": 704},
        preview={"prompts": ""},
        train={"run_name": "my_5b_lora"},
    ),
)

TWO_GPUS = Graph(
    "06_two_gpus_fp8",
    """## A 14B model on two GPUs, in fp8 (Wan 2.1)

**Files**, below ComfyUI's `models` folder:

- `diffusion_models/wan2.1_t2v_14B_fp16.safetensors`
- `vae/wan_2.1_vae.safetensors`
- `text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors`

**What is new here**: *Fp8 / Int8 Quantize* halves the memory of the frozen model. *Split Across GPUs* puts
half of its blocks on each card. The LoRA itself stays in full precision.

**Steps**: choose the folder with your clips in *Wan Video Dataset*, then press **Run**. How such a folder
looks: see the template for clips.

More than two cards, or cards of unequal size: write block numbers such as `14,28` into `split_at`.

**Memory**: about 19 GB on each card (predicted) for 33 frames of 832x480.""",
    training(
        model=T2V_14B,
        dataset={"num_frames": 33, "width": 832, "height": 480},
        train={"run_name": "my_14b_lora"},
        between={
            "quantize": Node("Fp8Quantize", {"model": Link("model")}, (COLUMNS[1], -130), (350, 140)),
            "split": Node(
                "SplitAcrossGPUs", {"model": Link("quantize"), "mode": "split blocks"}, (COLUMNS[2], -130), (350, 110)
            ),
        },
    ),
)

SMOKE = Graph(
    "08_smoke_test",
    """## Is everything installed?

Trains a tiny random model for 20 steps on the CPU, renders clips with and without the LoRA, and takes about a
minute.

**Files**: tiny ones, which `python3 scripts/test.py` in this pack's folder makes. `python3 scripts/demo.py` runs
this graph by itself, with files that are trained and a tiny text encoder in place of *Load CLIP*.

- `diffusion_models/wan_tiny_t2v.safetensors`
- `vae/wan_tiny_vae.safetensors`
- `input/clips`: three short clips

**With real files**: choose a 1.3B model, its VAE and text encoder in the three loaders and your own folder in
*Wan Video Dataset*. It is then a quick check of the whole way, on your GPU.

**Memory**: under 1 GB with the tiny files.""",
    {
        **training(
            model="wan_tiny_t2v.safetensors",
            vae="wan_tiny_vae.safetensors",
            dataset={"folder": "clips", "num_frames": 9, "width": 64, "height": 64},
            preview={
                "prompts": "a man talks in a driving car",
                "negative_prompt": "blurry, low quality",
                "sampling": "custom",
                "steps": 4,
                "cfg": 1.0,
                "shift": 8.0,
            },
            train={
                "run_name": "smoke_test",
                "steps": 20,
                "learning_rate": 0.01,
                "rank": 4,
                "save_every_n_steps": 10,
                "preview_every_n_steps": 20,
            },
        ),
        "validate": Node("ValidateVideo", {"run": Link("train"), "vae": Link("vae")}, (COLUMNS[4], -80), (380, 220)),
    },
    downloads=False,
)

GRAPHS = (STILLS, CLIPS, I2V, TI2V, TWO_GPUS, SMOKE)


def schemas() -> dict[str, Any]:
    """Ours as pinned, and the few core nodes the graphs use."""
    pinned = json.loads((ROOT / "tests" / "nodes" / "schemas.json").read_text(encoding="utf-8"))
    return {**pinned, **CORE}


def is_socket(entry: dict[str, Any]) -> bool:
    return entry["type"].startswith("WAN_") or entry["type"] in SOCKET_ONLY


def api_form(graph: Graph, known: dict[str, Any]) -> dict[str, Any]:
    """What POST /prompt takes. Every widget is written out, so that the file says what will happen."""
    ids = {key: str(number) for number, key in enumerate(graph.nodes, 1)}
    out = {}
    for key, node in graph.nodes.items():
        inputs = {}
        for entry in known[node.kind]["inputs"]:
            value = node.inputs.get(entry["name"], entry.get("default"))
            if isinstance(value, Link):
                inputs[entry["name"]] = [ids[value.node], value.slot]
            elif not is_socket(entry):
                inputs[entry["name"]] = value
        title = known[node.kind].get("display_name", node.kind)
        out[ids[key]] = {"class_type": node.kind, "inputs": inputs, "_meta": {"title": title}}
    return out


def canvas_form(graph: Graph, known: dict[str, Any], version: str) -> dict[str, Any]:
    """What the canvas loads: LiteGraph JSON with positional widget values."""
    ids = {key: number for number, key in enumerate(graph.nodes, 1)}
    links: list[list[Any]] = []
    nodes = []
    for key, node in graph.nodes.items():
        schema = known[node.kind]
        sockets = []
        for entry in schema["inputs"]:
            if not is_socket(entry):
                continue
            link = node.inputs.get(entry["name"])
            if isinstance(link, Link):
                links.append([len(links) + 1, ids[link.node], link.slot, ids[key], len(sockets), entry["type"]])
            sockets.append(
                {
                    "name": entry["name"],
                    "type": entry["type"],
                    "link": len(links) if isinstance(link, Link) else None,
                }
            )
        widgets = [e for e in schema["inputs"] if not is_socket(e)]
        nodes.append(
            {
                "id": ids[key],
                "type": node.kind,
                "pos": list(node.at),
                "size": list(node.size),
                "flags": {},
                "order": ids[key] - 1,
                "mode": 0,
                "inputs": sockets,
                "outputs": [{"name": o["name"], "type": o["type"], "links": []} for o in schema["outputs"]],
                "properties": properties(graph, node, widgets, version),
                "widgets_values": [node.inputs.get(e["name"], e.get("default")) for e in widgets],
            }
        )
    for number, source, slot, *_ in links:
        nodes[source - 1]["outputs"][slot]["links"].append(number)
    nodes.append(note_node(graph, len(nodes) + 1))
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"wan-trainer/{graph.name}")),
        "revision": 0,
        "last_node_id": len(nodes),
        "last_link_id": len(links),
        "nodes": nodes,
        "links": links,
        "groups": [],
        "config": {},
        "extra": {},
        "version": 0.4,
    }


def properties(graph: Graph, node: Node, widgets: list[dict[str, Any]], version: str) -> dict[str, Any]:
    """Where the node comes from, and where its model file can be had."""
    core = node.kind in CORE
    found: dict[str, Any] = {"Node name for S&R": node.kind}
    found |= {"cnr_id": "comfy-core", "ver": "0.3.75"} if core else {"cnr_id": "wan-trainer", "ver": version}
    models = [
        {
            "name": node.inputs[e["name"]],
            "url": f"{_hub(node.inputs[e['name']])}/{FOLDERS[e['name']]}/{node.inputs[e['name']]}",
            "directory": FOLDERS[e["name"]],
        }
        for e in widgets
        if graph.downloads and e["name"] in FOLDERS
    ]
    return {**found, "models": models} if models else found


def _hub(file_name: str) -> str:
    """Where a model file is published."""
    return HUB_22 if file_name.startswith("wan2.2") else HUB


def note_node(graph: Graph, number: int) -> dict[str, Any]:
    left, width, height = NOTE
    top = next(iter(graph.nodes.values())).at[1]
    return {
        "id": number,
        "type": "MarkdownNote",
        "title": "Read me",
        "pos": [left, top],
        "size": [width, height],
        "flags": {},
        "order": number - 1,
        "mode": 0,
        "inputs": [],
        "outputs": [],
        "properties": {},
        "widgets_values": [re.sub(r"(?<=\S)\n(?!\n|- |\d+\. )", " ", graph.note)],
    }


def files() -> dict[Path, str]:
    """Every file and its content."""
    known = schemas()
    found = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found, "pyproject.toml has no version"
    out = {}
    for graph in GRAPHS:
        forms = {
            WORKFLOWS / f"{graph.name}.json": canvas_form(graph, known, found[1]),
            WORKFLOWS / "api" / f"{graph.name}.json": api_form(graph, known),
        }
        out |= {path: json.dumps(data, indent=2, ensure_ascii=False) + "\n" for path, data in forms.items()}
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when something would change")
    options = parser.parse_args()
    wrong = [p for p, text in files().items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    for path in wrong:
        print(("not up to date: " if options.check else "writes ") + path.relative_to(ROOT).as_posix())
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files()[path], encoding="utf-8", newline="\n")
    return 1 if wrong and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
