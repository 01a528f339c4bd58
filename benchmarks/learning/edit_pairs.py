"""An edit taught from pairs to a tiny Bernini-R: the shape of a reference image takes the path of a source video.

    python benchmarks/learning/edit_pairs.py --comfyui PATH --python PYTHON_OF_COMFYUI

PATH: a ComfyUI tree of 0.33 or newer, which has BerniniConditioning. First the demo model is trained on until it reads
context (kept in --base); then a LoRA is trained through the queue on pairs of the world's own shapes, and core nodes
sample with and without it: pairs of the same kind, pairs whose reference is a shape that no pair showed but the base
knows, and one concept whose outline, colour and path no pair showed and no setting was chosen by. Prints what judges
find and writes result.json and a contact sheet.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("", "scripts", "tests", "tests/tiny")]

import numpy as np
from comfy_server import ComfyServer, make_base
from PIL import Image
from shapeworld import learning
from shapeworld.comfy_graphs import CLIP, VAE, Graph, Model, Recipe, Sampling, training_graph
from shapeworld.concept import load_concept
from shapeworld.draw import SHAPES
from shapeworld.edits import CAPTION, Edit, concept_edit, drawn_edit, train_base, write_edits, write_questions
from shapeworld.files import Frames, drawn
from shapeworld.scenes import CAPTIONS, Words
from shapeworld.scores import ConceptScore, WordScore
from shapeworld.sheet import Strip, contact_sheet, save_sheet
from shapeworld.training.texts import encode_texts
from shapeworld.training.transformer import compact_texts
from world import TINY_PACK

MODEL = Model("bernini", ("wan_demo_bernini.safetensors",))
SAMPLING = Sampling(steps=10, cfg=1.0)
UNSHOWN = "ring"
"""the shape of the world that no pair shows"""
ASKED_FROM = 10_000
"""seeds of the pairs that are asked for; those trained on count from 0"""


def main(arguments: list[str]) -> int:
    asked = options().parse_args(arguments)
    if not asked.base.is_file():
        texts = compact_texts(encode_texts(asked.comfyui, [*CAPTIONS, "", CAPTION]))
        train_base(learning.models_folder(), texts, asked.base)
    out = (asked.out or ROOT / "demo_output" / time.strftime("edit_pairs_%Y-%m-%d_%H-%M-%S")).resolve()
    base = make_base(out / "comfyui", [TINY_PACK])
    learning.fill_models(base, Model("", ()))
    (base / "models" / "diffusion_models" / MODEL.files[0]).write_bytes(asked.base.read_bytes())
    concept = load_concept(learning.CONCEPTS / f"{asked.concept}.json")
    shown = [shape for shape in SHAPES if shape != UNSHOWN]
    numbers = range(ASKED_FROM, ASKED_FROM + asked.clips)
    sets = {"world": [drawn_edit(number, shown) for number in numbers]}
    sets[UNSHOWN] = [drawn_edit(number, [UNSHOWN]) for number in numbers]
    sets[concept.name] = [concept_edit(concept, number) for number in range(asked.clips)]
    write_edits(base / "input" / "pairs", [drawn_edit(number, shown) for number in range(asked.pairs)])
    folder = base / "input"
    sets = {
        name: write_questions(folder / f"{name}_sources", folder / f"{name}_references", edits)
        for name, edits in sets.items()
    }
    recipe = Recipe(
        steps=asked.steps, rank=asked.rank, learning_rate=asked.learning_rate, concept_repeats=1, prior_clips=0
    )
    clips: dict[str, list[Frames]] = {}
    with ComfyServer(base, comfyui=asked.comfyui, python=asked.python, flags=learning.SERVER_FLAGS) as comfy:
        for name in sets:
            clips[f"{name} before"] = sampled(comfy, name)
        began = time.monotonic()
        run = learning.run_of(comfy.run(training_graph(MODEL, recipe, "edit", "pairs"), timeout=7200))
        seconds = time.monotonic() - began
        for name in sets:
            clips[f"{name} after"] = sampled(comfy, name, learning.loras_of(run)[0])
    scores = {name: score(sets[name.split()[0]], found) for name, found in clips.items()}
    for name, found in scores.items():
        print(f"{name}: " + ", ".join(f"{part} {count['right']}/{count['of']}" for part, count in found.items()))
    said = {**vars(asked), "scores": scores, "seconds": seconds, "losses": [run["loss_first"], run["loss_last"]]}
    (out / "result.json").write_text(json.dumps(said, indent=1, default=str), encoding="utf-8")
    save_sheet(sheet_of(sets, clips), out / "edit_pairs.jpg")
    print(f"{seconds:.0f} s in the queue; {out}")
    return 0


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="a Python that runs that tree and this pack")
    parser.add_argument(
        "--base", type=Path, default=ROOT / "demo_output" / MODEL.files[0], help="made if it is missing"
    )
    parser.add_argument("--concept", default="bouncing_star", help="a file of tests/shapeworld/concepts, held out")
    parser.add_argument("--clips", type=int, default=16, help="sampled of each kind")
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--out", type=Path)
    return parser


def score(edits: Sequence[Edit], clips: Sequence[Frames]) -> dict[str, Any]:
    """Counts what judges find of the wanted shape, colour and path."""
    found = [edit.found_in(frames) for edit, frames in zip(edits, clips, strict=True)]
    kind = WordScore if isinstance(edits[0].shown, Words) else ConceptScore
    return asdict(kind.over(found))


def sampled(comfy: ComfyServer, name: str, lora: str = "") -> list[Frames]:
    """Returns the clips that core nodes make of all sources and references of a set, in order."""
    entry = comfy.run(asking_graph(name, lora), timeout=3600)
    files = comfy.outputs(entry, "save")["images"]
    pictures = [Image.open(comfy.base / one["type"] / one["subfolder"] / one["filename"]) for one in files]
    frames = np.stack([np.asarray(picture.convert("RGB")) for picture in pictures])
    return list(frames.reshape(-1, SAMPLING.frames, *frames.shape[1:]))


def asking_graph(name: str, lora: str) -> Graph:
    """Returns the graph that edits every source of a set by its reference; lists go through it clip by clip."""
    sizes = {"width": SAMPLING.size, "height": SAMPLING.size, "length": SAMPLING.frames, "batch_size": 1}
    graph: Graph = {
        "clip": _node(CLIP),
        "vae": _node("VAELoader", vae_name=VAE),
        "text": _node("CLIPTextEncode", clip=["clip", 0], text=CAPTION),
        "sources": _node("LoadVideoTextDataSetFromFolder", folder=f"{name}_sources"),
        "frames": _node("GetVideoComponents", video=["sources", 0]),
        "references": _node("LoadImageDataSetFromFolder", folder=f"{name}_references"),
        "context": _node(
            "BerniniConditioning", positive=["text", 0], negative=["text", 0], vae=["vae", 0],
            source_video=["frames", 0], **{"reference_images.reference_image_0": ["references", 0]}, **sizes,
        ),
        "unet": _node("UNETLoader", unet_name=MODEL.files[0], weight_dtype="default"),
        "shifted": _node("ModelSamplingSD3", model=["unet", 0], shift=SAMPLING.shift),
        "sample": _node(
            "KSampler", model=["shifted", 0], positive=["context", 0], negative=["context", 1],
            latent_image=["context", 2], seed=learning.FIRST_SEED, steps=SAMPLING.steps, cfg=SAMPLING.cfg,
            sampler_name=SAMPLING.sampler, scheduler=SAMPLING.scheduler, denoise=1.0,
        ),
        "decode": _node("VAEDecode", samples=["sample", 0], vae=["vae", 0]),
        "save": _node("SaveImage", images=["decode", 0], filename_prefix=f"{name}_{'after' if lora else 'before'}"),
    }  # fmt: skip
    if lora:
        graph["lora"] = _node("LoraLoaderModelOnly", model=["unet", 0], lora_name=lora, strength_model=1.0)
        graph["shifted"]["inputs"]["model"] = ["lora", 0]
    return graph


def sheet_of(sets: dict[str, list[Edit]], clips: dict[str, list[Frames]]) -> Image.Image:
    """Returns strips of the first pairs of each set: source, reference, without and with the LoRA."""
    groups = [
        [
            Strip("source", drawn(edit.source)),
            Strip("reference", edit.picture[None]),
            Strip("without", clips[f"{name} before"][number]),
            Strip("with the LoRA", clips[f"{name} after"][number]),
        ]
        for name, edits in sets.items()
        for number, edit in enumerate(edits[:3])
    ]
    return contact_sheet("The shape of the reference takes the path of the source", groups, every=2)


def _node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
