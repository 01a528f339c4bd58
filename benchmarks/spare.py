"""What the spare worker saves: the same job with it, without it and through ComfyUI's own trainer, in one server.

    python benchmarks/spare.py --comfyui PATH --rounds 5

PATH: a ComfyUI tree of 0.28 or newer. Jobs are those of beside_comfyui.py: the demo model, eight clips from their
files to a LoRA, 60 steps, everything encoded anew in every job, one thread each. The three take turns, and who begins
moves on by one each round, so a busy machine slows all alike. "to the first step" is from the moment ComfyUI begins
Train Wan LoRA with its clips cached to the line of the first step in the log of the run. Writes one result file to
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import torch
from beside_comfyui import CASES, ROOT, TINY_PACK, core_graph, draw_clips, our_graph
from comfy_server import ComfyServer, make_base
from result_files import write_result
from served import NO_SPARE, used
from shapeworld.comfy_graphs import MODELS
from shapeworld.learning import SERVER_FLAGS, fill_models

PROGRAMS = ("ours", "ours without the spare", "ComfyUI")
CASE, STEPS = CASES[1], 60


@dataclass(frozen=True)
class Job:
    """What one job took."""

    program: str
    round: int
    wall_s: float
    cpu_s: float
    first_step_s: float
    load: float


def run_job(comfy: ComfyServer, program: str, number: int, steps: int = STEPS) -> Job:
    """Draw new clips, train on them, and say what that took."""
    folder = f"clips_{PROGRAMS.index(program)}_{number}"
    draw_clips(comfy.base / "input" / folder, CASE.size, seed=10 * number + PROGRAMS.index(program))
    make = core_graph if program == "ComfyUI" else our_graph
    extra: dict[str, Any] = {"no_spare": True} if "without" in program else {}
    load, before, visits, reached = os.getloadavg()[0], used(psutil.Process(comfy.pid)), 0, 0.0
    with comfy.events() as seen:
        began = time.monotonic()
        prompt = comfy.queue(make(CASE, steps, folder), extra_data=extra)
        while comfy.history(prompt) is None:
            if (count := sum(data.get("node") == "train" for data in seen.of("executing"))) > visits:
                visits, reached = count, time.time()  # the first visit only asks for the clips
            time.sleep(0.02)
        wall = time.monotonic() - began
        comfy.wait(prompt)
    first = 0.0 if program == "ComfyUI" else first_step(comfy.output / "wan_trainer" / folder / "log.txt") - reached
    return Job(program, number, wall, used(psutil.Process(comfy.pid)) - before, first, load)


def first_step(log: Path) -> float:
    """Returns when the first step was logged, as seconds since 1970."""
    line = next(line for line in log.read_text(encoding="utf-8").splitlines() if ": step 1/" in line)
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()


def table(jobs: list[Job]) -> str:
    """Markdown of the medians over the rounds."""
    lines = ["| program | to the first step s | whole job s | its CPU s |", "| --- | --- | --- | --- |"]
    for program in PROGRAMS:
        own = [job for job in jobs if job.program == program]
        cells = [
            statistics.median(values)
            for values in zip(*((j.first_step_s, j.wall_s, j.cpu_s) for j in own), strict=True)
        ]
        first = "-" if program == "ComfyUI" else f"{cells[0]:.1f}"
        lines.append(f"| {program} | {first} | {cells[1]:.1f} | {cells[2]:.1f} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True, help="a tree whose comfy_extras has nodes_train.py")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=ROOT / "demo_output" / "spare")
    asked = parser.parse_args(arguments)
    base = make_base(asked.work.resolve() / time.strftime("%H-%M-%S"), [TINY_PACK])
    fill_models(base, MODELS["t2v"])
    (base / "custom_nodes" / "no_spare.py").write_text(NO_SPARE, encoding="utf-8")
    jobs: list[Job] = []
    with ComfyServer(base, comfyui=asked.comfyui, flags=SERVER_FLAGS, env={"OMP_NUM_THREADS": "1"}) as comfy:
        for program in PROGRAMS:  # what is imported and loaded once is nobody's
            run_job(comfy, program, 0, steps=2)
        for number in range(1, asked.rounds + 1):
            for place in range(len(PROGRAMS)):
                jobs.append(run_job(comfy, PROGRAMS[(number + place) % len(PROGRAMS)], number))
                print(json.dumps(asdict(jobs[-1])), flush=True)
    loads = [job.load for job in jobs]
    about = f"torch {torch.__version__}, load {min(loads):.1f} to {max(loads):.1f}, {asked.rounds} rounds"
    page = f"# What the spare worker saves\n\n{CASE.name}, {STEPS} steps; {about}\n\n{table(jobs)}\n"
    write_result("spare", {"about": about, "jobs": [asdict(job) for job in jobs]}, page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
