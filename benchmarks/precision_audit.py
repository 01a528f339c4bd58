"""Error of each precision switch on random weights of real width, or on the trained demo models.

    python benchmarks/precision_audit.py --shape 1.3B-12 --size 96x96x5 --timesteps 1
    COMFYUI_PATH=... python benchmarks/precision_audit.py --demo wan_demo_t2v.safetensors

The first goes through the worker that ComfyUI starts and downloads nothing; random weights rank the switches, but say
little about how large an error is on a trained model. The second queues the PrecisionAudit node in a real ComfyUI on
drawn clips. Writes precision_audit_<name>_<hardware>_<yyyy-mm>.json and .md to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from result_files import RESULTS, hardware, write_result
from train_step import ROOT, SHAPES, Size, make_job

from wan_core.audit import AuditReport, read_report


def main() -> int:
    options = parse()
    folder = Path(tempfile.mkdtemp(dir=options.work))
    try:
        directory = audit_demo(folder, options) if options.demo else audit_random(folder, options)
        report = read_report(directory)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    name = Path(options.demo).stem if options.demo else f"{options.shape}_{options.size}"
    save(report, name, options.out)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--demo", default="", metavar="FILE", help="a file of tests/assets/demo instead of random weights"
    )
    parser.add_argument("--clips", type=int, default=1, help="drawn clips the demo model is measured on")
    parser.add_argument("--shape", choices=list(SHAPES), default="1.3B-12", help="1.3B-4: four blocks of the 1.3B")
    parser.add_argument("--size", default="176x128x9", help="width x height x frames")
    parser.add_argument("--timesteps", type=int, default=3)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--precision", default="balanced", help="balanced, reference or fast")
    parser.add_argument("--base-precision", default="as in file")
    parser.add_argument("--quantize", default="", help="fp8_e4m3fn or int8")
    parser.add_argument("--split", action="store_true", help="split blocks over all GPUs")
    parser.add_argument("--no-alone", action="store_true", help="leave out float32 with each part lowered alone")
    parser.add_argument("--work", type=Path, help="folder for the random weights; default: the system's")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.set_defaults(steps=1, no_checkpointing=False)  # of the training job the audit reads, which never trains
    return parser.parse_args()


def audit_random(folder: Path, options: argparse.Namespace) -> Path:
    """Runs the worker on random weights and a random latent. Returns the run directory."""
    directory, roots_file = make_job(folder, options, Size.of(options.size))
    command = [sys.executable, "-X", "utf8", str(ROOT / "wan_core" / "launch.py"), "audit", str(directory)]
    command += ["--roots", str(roots_file), "--timesteps", str(options.timesteps)]
    command += [] if options.no_alone else ["--alone"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The worker ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return directory


def audit_demo(folder: Path, options: argparse.Namespace) -> Path:
    """Queues the node on a demo model and its clips. Returns the folder of the report."""
    sys.path[:0] = [str(ROOT / part) for part in ("scripts", "tests", "tests/tiny")]
    from comfy_server import ComfyServer, make_base
    from shapeworld.comfy_graphs import Model, Recipe, training_graph
    from shapeworld.files import write_world
    from shapeworld.learning import SERVER_FLAGS, fill_models
    from world import TINY_PACK

    model = Model(name="demo", files=(options.demo,), experts=("auto",))
    base = make_base(folder, [TINY_PACK])
    fill_models(base, model)
    write_world(base / "input" / "world", options.clips, 1)
    graph = training_graph(model, 0, Recipe(precision_policy=options.precision), "none", "world")
    wanted = {"model": ["model", 0], "cache": ["cache", 0], "clips": options.clips, "timesteps": options.timesteps}
    graph = {name: node for name, node in graph.items() if node["class_type"] not in ("TrainLoRA", "WanTrainSettings")}
    graph["audit"] = {"class_type": "PrecisionAudit", "inputs": {**wanted, "alone": not options.no_alone}}
    tree = Path(os.environ.get("COMFYUI_PATH") or ROOT / ".cache" / "comfyui")
    with ComfyServer(base, comfyui=tree, flags=list(SERVER_FLAGS)) as comfy:
        comfy.run(graph, timeout=3600)
    return next((base / "output" / "wan_trainer" / "_audits").iterdir())


def save(report: AuditReport, name: str, out: Path) -> None:
    """Writes the report as JSON and as a page."""
    options = (a for a in sys.argv[1:] if not Path(a).is_absolute() and a not in ("--out", "--work"))
    settings = f"Settings: `{' '.join(options)}`; {hardware()}, torch {report.torch}"
    note = (
        ""
        if torch.cuda.is_available()
        else "Seconds are no benchmark: CPU kernels, on a machine that did other work.\n\n"
    )
    page = f"# Precision audit\n\n{settings}\n\n{note}```\n{report.table()}\n```\n"
    write_result(f"precision_audit_{name}", report.to_dict(), page, out=out)


if __name__ == "__main__":
    sys.exit(main())
