"""The same job through ComfyUI's own trainer and through ours, in one server: seconds, memory, whole job.

    python benchmarks/beside_comfyui.py --comfyui PATH --rounds 3

PATH: a ComfyUI tree of 0.28 or newer, whose nodes train on clips. Both jobs train the same model on eight clips at
batch 1 and rank 8, from the files to a LoRA, without cache hits. The mid-size model has random weights. Jobs alternate,
so a busy machine slows both alike. Seconds per step are the difference of a long and a short job over the difference of
their steps, without start, encoding and saving. CPU seconds include the server and all its children, on one thread
each. Memory is the peak resident memory of the training process. Writes one result file to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in (".", "benchmarks", "scripts", "tests", "tests/tiny")]

import numpy as np
from comfy_server import ComfyServer, make_base
from random_run import write_random_weights
from result_files import used, write_result
from shapeworld.comfy_graphs import CLIP, MODELS, VAE, Graph
from shapeworld.concept import load_concept
from shapeworld.files import read_clip, write_clip, write_concept
from shapeworld.learning import CONCEPTS, DEFAULT_CONCEPT, SERVER_FLAGS, fill_models
from world import TINY_PACK

from wan_core.model import WanShape

DEMO, MID = MODELS["t2v"].files[0], "mid_size.safetensors"
MID_SHAPE = WanShape(dim=512, ffn_dim=2048, num_heads=4, num_layers=8)
RANK, CLIPS, FRAMES, PIXELS = 8, 8, 9, 64
MIB = 2**20
FLOAT32 = {"base_precision": "fp32"}
CORE_FLOAT32 = {"training_dtype": "fp32", "lora_dtype": "fp32"}
PLAIN_CORE = CORE_FLOAT32 | {"gradient_checkpointing": False}
PLAIN = {"gradient_checkpointing": False, "eval_items": 0}


@dataclass(frozen=True)
class Case:
    """One pair of jobs: the model, the sides of the clips, both numbers of steps, and settings."""

    name: str
    file: str
    size: int
    short: int
    long: int
    core: dict[str, Any] = field(default_factory=dict)
    load: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("demo model, each at its defaults", DEMO, PIXELS, 60, 180),
    Case("demo model, float32, kept", DEMO, PIXELS, 60, 180, PLAIN_CORE, FLOAT32, PLAIN),
    Case("mid-size, each at its defaults", MID, 2 * PIXELS, 10, 40, {}, {}, {"eval_items": 0}),
    Case("mid-size, float32", MID, 2 * PIXELS, 10, 40, CORE_FLOAT32, FLOAT32, {"eval_items": 0}),
)
"""kept: without activation checkpointing in either"""


@dataclass(frozen=True)
class Job:
    """Seconds and memory of one job."""

    case: str
    program: str
    steps: int
    round: int
    wall_s: float
    cpu_s: float
    peak_mib: float
    """resident memory of the training process"""


def core_graph(case: Case, steps: int, folder: str) -> Graph:
    """From the files to a LoRA by core nodes alone."""
    train = {"batch_size": 1, "grad_accumulation_steps": 1, "steps": steps, "learning_rate": 5e-4, "rank": RANK}
    train |= {"optimizer": "AdamW", "loss_function": "MSE", "seed": 0, "training_dtype": "bf16", "lora_dtype": "bf16"}
    train |= {"quantized_backward": False, "algorithm": "LoRA", "gradient_checkpointing": True, "checkpoint_depth": 1}
    train |= {"offloading": False, "existing_lora": "[None]", "bucket_mode": False, "bypass_mode": False}
    cut = {"num_frames": FRAMES, "strategy": "head", "seed": 0}
    links = {"model": ["model", 0], "latents": ["encoded", 0], "positive": ["encoded", 1]}
    made = {"images": ["frames", 0], "vae": ["vae", 0], "clip": ["clip", 0], "texts": ["data", 1]}
    return {
        "model": _node("UNETLoader", unet_name=case.file, weight_dtype="default"),
        "vae": _node("VAELoader", vae_name=VAE),
        "clip": _node(CLIP),
        "data": _node("LoadVideoTextDataSetFromFolder", folder=folder),
        "cut": _node("VideoFrameSample", video=["data", 0], **cut),
        "frames": _node("GetVideoComponents", video=["cut", 0]),
        "encoded": _node("MakeTrainingDataset", **made),
        "train": _node("TrainLoraNode", **links, **(train | case.core)),
        "save": _node("SaveLoRA", lora=["train", 0], prefix=f"loras/{folder}", steps=["train", 2]),
    }


def our_graph(case: Case, steps: int, folder: str) -> Graph:
    """From the files to a LoRA by this pack's nodes."""
    cut = {"width": case.size, "height": case.size, "num_frames": FRAMES}
    links = {"model": ["model", 0], "cache": ["cache", 0], "settings": ["settings", 0]}
    return {
        "model": _node("LoadWanModel", diffusion_model=case.file, **case.load),
        "vae": _node("VAELoader", vae_name=VAE),
        "clip": _node(CLIP),
        "data": _node("WanVideoDataset", model=["model", 0], folder=folder, **cut),
        "cache": _node("CacheLatents", dataset=["data", 0], vae=["vae", 0], clip=["clip", 0]),
        "settings": _node("WanTrainSettings", **case.settings),
        "train": _node("TrainLoRA", **links, run_name=folder, steps=steps, learning_rate=5e-4, rank=RANK, seed=0),
    }


GRAPHS = {"ComfyUI": core_graph, "ours": our_graph}


class Watch:
    """Follows the memory of the server and of everything below it while a job runs."""

    def __init__(self, server: int) -> None:
        self._server, self._ended = psutil.Process(server), threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.peaks: dict[int, float] = {}

    def __enter__(self) -> Watch:
        Path(f"/proc/{self._server.pid}/clear_refs").write_text("5")  # resets the kernel's peak
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(0.02):
            self._look()
        self._look()

    def _look(self) -> None:
        for process in (self._server, *self._server.children(recursive=True)):
            try:
                lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
            except OSError:
                continue
            peak = next((line for line in lines if line.startswith("VmHWM")), None)
            if peak is not None:  # the last value: a forked child has the server's memory until exec
                self.peaks[process.pid] = int(peak.split()[1]) / 1024


def run_job(comfy: ComfyServer, case: Case, program: str, steps: int, number: int) -> Job:
    """Draws new clips and trains on them. Returns seconds and memory."""
    place = CASES.index(case)
    folder = f"clips_{program}_{place}_{steps}_{number}"
    draw_clips(comfy.base / "input" / folder, case.size, seed=1000 * place + 10 * number + (steps == case.long))
    graph = GRAPHS[program](case, steps, folder)
    before, watch = used(psutil.Process(comfy.pid)), Watch(comfy.pid)
    with watch:
        began = time.monotonic()
        comfy.run(graph, timeout=1800)
        wall = time.monotonic() - began
    children = [peak for pid, peak in watch.peaks.items() if pid != comfy.pid]
    peak = watch.peaks[comfy.pid] if program == "ComfyUI" else max(children)
    return Job(case.name, program, steps, number, wall, used(psutil.Process(comfy.pid)) - before, peak)


def draw_clips(folder: Path, size: int, seed: int) -> None:
    """Draws clips of the demo's concept with new captions, so that no entry is a cache hit."""
    concept = load_concept(CONCEPTS / f"{DEFAULT_CONCEPT}.json")
    for number, clip in enumerate(write_concept(folder, concept, CLIPS, seed, FRAMES)):
        clip.with_suffix(".txt").write_text(f"{concept.caption} {seed} {number}\n", encoding="utf-8")
        if size != PIXELS:
            write_clip(clip, np.kron(read_clip(clip), np.ones((1, size // PIXELS, size // PIXELS, 1), np.uint8)))


def tables(jobs: list[Job]) -> str:
    """Returns Markdown of the medians; each ratio is the median over rounds."""
    lines = [
        "| case | program | CPU s / step | s / step | complete job s | its CPU s | peak of the training process, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in CASES:
        found = {
            name: measured([job for job in jobs if (job.case, job.program) == (case.name, name)], case)
            for name in GRAPHS
        }
        for name, rounds in found.items():
            middle = [statistics.median(values) for values in zip(*rounds, strict=True)]
            label = f"{case.name}, {case.short} and {case.long} steps" if name == "ComfyUI" else ""
            lines.append(f"| {label} | {name} | {_cells(middle)} |")
        ratios = [
            [o / c for o, c in zip(ours, core, strict=True)]
            for ours, core in zip(found["ours"], found["ComfyUI"], strict=True)
        ]
        middle = [statistics.median(values) for values in zip(*ratios, strict=True)]
        lines.append(f"| | **ours / ComfyUI** | {' | '.join(f'**{value:.2f}**' for value in middle)} |")
    return "\n".join(lines)


def measured(jobs: list[Job], case: Case) -> list[tuple[float, ...]]:
    """Of each round: CPU seconds and seconds per step, seconds and CPU seconds of the short job, MiB."""
    rounds: list[tuple[float, ...]] = []
    for number in sorted({job.round for job in jobs}):
        short, long = (next(j for j in jobs if (j.round, j.steps) == (number, n)) for n in (case.short, case.long))
        steps = case.long - case.short
        per_step = (long.cpu_s - short.cpu_s) / steps, (long.wall_s - short.wall_s) / steps
        rounds.append((*per_step, short.wall_s, short.cpu_s, max(short.peak_mib, long.peak_mib)))
    return rounds


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True, help="a tree whose comfy_extras has nodes_train.py")
    parser.add_argument("--python", default=sys.executable, help="a Python that runs that tree and this pack")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=ROOT / "demo_output" / "beside_comfyui")
    asked = parser.parse_args(arguments)
    base = make_base(asked.work.resolve() / time.strftime("%H-%M-%S"), [TINY_PACK])
    fill_models(base, MODELS["t2v"])
    write_random_weights(base / "models" / "diffusion_models" / MID, MID_SHAPE)
    jobs: list[Job] = []
    alone = {"OMP_NUM_THREADS": "1"}
    with ComfyServer(base, comfyui=asked.comfyui, python=asked.python, flags=SERVER_FLAGS, env=alone) as comfy:
        for program in GRAPHS:  # warm-up: imports and loads that happen once
            run_job(comfy, CASES[0], program, 2, 0)
        for number in range(1, asked.rounds + 1):
            for case in CASES:
                for steps in (case.short, case.long):
                    for program in GRAPHS:
                        jobs.append(run_job(comfy, case, program, steps, number))
                        print(json.dumps(asdict(jobs[-1])), flush=True)
    write(jobs, asked.comfyui)
    return 0


def write(jobs: list[Job], tree: Path) -> None:
    """Writes the jobs as JSON, and the tables as a page."""
    version = re.search(r'"([\d.]+)"', (tree / "comfyui_version.py").read_text(encoding="utf-8"))
    about = {
        "comfyui": version[1] if version else "",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": [round(value, 1) for value in os.getloadavg()],
    }
    found = {"about": about, "jobs": [asdict(job) for job in jobs]}
    said = ", ".join(f"{key} {value}" for key, value in about.items())
    page = f"# The same job through ComfyUI's trainer and ours\n\n{said}\n\n{tables(jobs)}\n"
    write_result("beside_comfyui", found, page)


def _cells(values: list[float]) -> str:
    cpu, wall, job, job_cpu, mib = values
    return f"{cpu:.3f} | {wall:.3f} | {job:.1f} | {job_cpu:.1f} | {mib:,.0f}"


def _node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
