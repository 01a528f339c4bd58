"""ComfyUI's own dataset and training nodes connected to ours in one server, each graph run once.

    python benchmarks/core_nodes.py --comfyui PATH

PATH: a ComfyUI tree of 0.33 or newer. Three graphs on eight clips of the demo: a core list of VIDEOs and captions as
our dataset, and its LoRA through core's saver, loader and loss graph; core latents and conditioning, in buckets, as our
cache; and core's trainer continuing from our file. Exit code 1 where a graph fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in (".", "benchmarks", "scripts", "tests", "tests/tiny")]

from beside_comfyui import CASES, FRAMES, PIXELS, core_graph, draw_clips, our_graph
from comfy_server import ComfyError, ComfyServer, make_base
from safetensors import safe_open
from shapeworld.comfy_graphs import MODELS, Graph
from shapeworld.learning import fill_models
from world import TINY_PACK

CASE = CASES[0]
STEPS = 4


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="a Python that runs that tree and this pack")
    parser.add_argument("--work", type=Path, default=ROOT / "demo_output" / "core_nodes")
    asked = parser.parse_args(arguments)
    base = make_base(asked.work.resolve() / time.strftime("%H-%M-%S"), [TINY_PACK])
    fill_models(base, MODELS["t2v"])
    draw_clips(base / "input" / "clips", PIXELS, seed=0)
    with ComfyServer(base, comfyui=asked.comfyui, python=asked.python) as comfy:
        failed = [name for name in GRAPHS if not passed(comfy, name)]
    print(f"{len(GRAPHS) - len(failed)} of {len(GRAPHS)}")
    return 1 if failed else 0


def passed(comfy: ComfyServer, name: str) -> bool:
    """Queues a graph and prints its result."""
    try:
        entry = comfy.run(GRAPHS[name](comfy.base), timeout=600)
    except (ComfyError, OSError) as problem:
        print(f"{name}: {str(problem).splitlines()[0]}")
        return False
    texts = [text for shown in entry["outputs"].values() for text in shown.get("text", [])]
    found = [line for text in texts for line in str(text).splitlines() if "latents:" in line or "items" in line]
    files = sorted((comfy.output / "loras").glob("*.safetensors"))
    counts = [f"{file.name} {len(list(safe_open(file, 'pt').keys()))} tensors" for file in files]
    print(f"{name}: done; {'; '.join(found + counts)}")
    return True


def videos(_base: Path) -> Graph:
    """Returns the graph from VIDEOs and captions of a folder to core's saver, loader and loss graph."""
    graph = our_graph(CASE, STEPS, "clips")
    graph["list"] = _node("LoadVideoTextDataSetFromFolder", folder="clips")
    graph["cut"] = _node("VideoFrameSample", video=["list", 0], num_frames=FRAMES, strategy="head", seed=0)
    sizes = {"width": PIXELS, "height": PIXELS, "num_frames": FRAMES}
    graph["data"] = _node("WanDatasetFromImages", model=["model", 0], images=["cut", 0], captions=["list", 1], **sizes)
    graph["train"]["inputs"]["run_name"] = "videos"
    graph["unet"] = _node("UNETLoader", unet_name=CASE.file, weight_dtype="default")
    graph["save"] = _node("SaveLoRA", lora=["train", LORA], prefix="loras/ours", steps=STEPS)
    graph["loss"] = _node("LossGraphNode", loss=["train", LOSS], filename_prefix="loss")
    graph["loader"] = _node(
        "LoraModelLoader", model=["unet", 0], lora=["train", LORA], strength_model=1.0, bypass=False
    )
    graph["sampler"] = _node(
        "KSampler", model=["loader", 0], seed=0, steps=2, cfg=1.0, sampler_name="euler", scheduler="simple",
        positive=["text", 0], negative=["text", 0], latent_image=["empty", 0], denoise=1.0,
    )  # fmt: skip
    graph["text"] = _node("CLIPTextEncode", clip=["clip", 0], text="a bar")
    graph["empty"] = _node("EmptyHunyuanLatentVideo", width=PIXELS, height=PIXELS, length=FRAMES, batch_size=1)
    graph["shown"] = _node("PreviewAny", source=["sampler", 0])
    graph["report"] = _node("PreviewAny", source=["cache", 1])
    return graph


def buckets(_base: Path) -> Graph:
    """Returns the graph from core latents and conditioning, grouped by size, to our cache."""
    core, graph = core_graph(CASE, STEPS, "clips"), our_graph(CASE, STEPS, "clips")
    del graph["data"]
    graph |= {name: core[name] for name in ("data", "cut", "frames", "encoded")}
    graph["buckets"] = _node("ResolutionBucket", latents=["encoded", 0], conditioning=["encoded", 1])
    graph["cache"] = _node(
        "WanCacheFromLatents",
        model=["model", 0], latents=["buckets", 0], conditioning=["buckets", 1], clip=["clip", 0],
    )  # fmt: skip
    graph["train"]["inputs"]["run_name"] = "buckets"
    graph["report"] = _node("PreviewAny", source=["cache", 1])
    return graph


def goes_on(base: Path) -> Graph:
    """Returns the graph of core's trainer on the file that core's saver wrote of our LoRA."""
    (file,) = (base / "output" / "loras").glob("ours_*.safetensors")
    file.rename(base / "models" / "loras" / file.name)
    graph = core_graph(CASE, STEPS, "clips")
    graph["train"]["inputs"]["existing_lora"] = file.name
    return graph


def _node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


LORA, LOSS = 1, 2
GRAPHS = {
    "VIDEOs and captions -> our dataset -> our LoRA -> core's saver, loader, loss graph": videos,
    "core latents in buckets -> our cache -> our trainer": buckets,
    "our LoRA -> core's saver -> core's trainer": goes_on,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
