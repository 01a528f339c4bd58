"""Seconds per step and peak memory of real-size training, through the same worker that ComfyUI starts.

    python benchmarks/train_step.py --shape 1.3B --size 832x480x49 --steps 5

Weights and latents are random: speed and memory do not depend on them, and nothing has to be downloaded. Writes one
result file per run to benchmarks/results/. HFU includes the recomputation of activation checkpointing, MFU does not
(`wan_core/train/flops.py`). `--against diffusers,diffsynth` compares a mid-size model with other programs
(against_peers.py).
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import against_peers
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from measure import SHAPES, Size
from random_run import TEXT_ROWS, random_run, write_random_weights
from result_files import RESULTS, hardware

from wan_core.files import Roots
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import TEXT_LENGTH, WanTransformer
from wan_core.placement import PlacementConfig
from wan_core.plan import report_run
from wan_core.precision import PrecisionPolicy, QuantizeConfig
from wan_core.train import FlopCount, StepFlops, TrainConfig


def main() -> int:
    options = parse()
    if options.against:
        return against_peers.against_peers(options.against.split(","), options.rounds, options.comfyui, options.out)
    size = Size.of(options.size)
    folder = Path(tempfile.mkdtemp(dir=options.work))
    try:
        directory, roots_file = make_job(folder, options, size)
        predicted = report_run(directory, Roots.read(roots_file))
        wall_s = train(directory, roots_file)
        result = read_result(directory, options, predicted, wall_s, size)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = report(result)
    machine = hardware().replace(" ", "-")
    name = f"train_step_{options.shape}_{options.size}{options.tag}_{machine}_{time.strftime('%Y-%m')}.md"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / name).write_text(text, encoding="utf-8")
    print(text)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", choices=list(SHAPES), default="1.3B")
    parser.add_argument("--size", default="832x480x49", help="width x height x frames")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--precision", default="balanced", help="balanced, reference or fast")
    parser.add_argument("--base-precision", default="as in file")
    parser.add_argument("--quantize", default="", help="fp8_e4m3fn or int8")
    parser.add_argument("--split", action="store_true", help="split blocks over all GPUs")
    parser.add_argument("--no-checkpointing", action="store_true")
    parser.add_argument("--tag", default="", help="added to the file name, for example _fp8")
    parser.add_argument("--work", type=Path, help="folder for the random weights; default: the system's")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result file")
    against_peers.arguments(parser)
    return parser.parse_args()


def make_job(folder: Path, options: argparse.Namespace, size: Size) -> tuple[Path, Path]:
    """Creates a run directory with random bf16 weights and one random latent. Returns it and the roots file."""
    shape, base = SHAPES[options.shape], folder / "models" / "base.safetensors"
    base.parent.mkdir()
    write_random_weights(base, shape)
    plan = ModelPlan(
        base_file="",
        base_precision=options.base_precision,
        precision=PrecisionPolicy(preset=options.precision),
        quantize=QuantizeConfig(scheme=options.quantize) if options.quantize else None,
        placement=PlacementConfig(mode="split blocks", devices="all") if options.split else PlacementConfig(),
    )
    settings = TrainConfig(
        steps=options.steps, save_every_n_steps=options.steps, preview_every_n_steps=0, eval_items=0,
        gradient_checkpointing=not options.no_checkpointing,
    )  # fmt: skip
    directory, roots = random_run(folder, base, shape, size, plan, LoraConfig(rank=options.rank), settings)
    roots_file = folder / "roots.json"
    roots.write(roots_file)
    return directory, roots_file


def train(directory: Path, roots_file: Path) -> float:
    """Runs the worker. Returns wall seconds."""
    command = [sys.executable, "-X", "utf8", str(ROOT / "wan_core" / "launch.py"), "train", str(directory)]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--roots", str(roots_file)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"The worker ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return time.monotonic() - began


def read_result(
    directory: Path, options: argparse.Namespace, predicted: dict[str, Any], wall_s: float, size: Size
) -> dict[str, Any]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    settled = [s["seconds"] for s in steps[1:]] or [steps[0]["seconds"]]
    seconds = statistics.median(settled)
    once = flops(options, size)
    hardware_flop = once.useful + (0 if options.no_checkpointing else once.recomputed)
    return {
        "options": {k: str(v) for k, v in vars(options).items() if k not in ("work", "out")},
        "hardware": hardware(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tokens": size.tokens(SHAPES[options.shape]),
        "seconds": [round(s["seconds"], 3) for s in steps],
        "median_s": seconds,
        "tflops_hfu": hardware_flop / seconds / 1e12,
        "tflops_mfu": once.useful / seconds / 1e12,
        "peak_bytes": {name: of_steps["peak"] for name, of_steps in steps[-1]["memory"].items()},
        "reserved_bytes": {name: of_steps["reserved"] for name, of_steps in steps[-1]["memory"].items()},
        "predicted_bytes": {name: d["peak_bytes"] for name, d in predicted["devices"].items()},
        "wall_s": wall_s,
        "losses": [s["loss"] for s in steps],
    }


def flops(options: argparse.Namespace, size: Size) -> StepFlops:
    """Returns the FLOP of one LoRA step, as the worker counts them."""
    shape = SHAPES[options.shape]
    with torch.device("meta"):
        model = WanTransformer(shape)
    model.read_texts(TEXT_LENGTH)
    inject_lora(model, LoraConfig(rank=options.rank), seed=0)
    return FlopCount(model).of(torch.Size((1, *size.latent(shape))), time_rows=1, image_rows=0, text_rows=TEXT_ROWS)


def by_device(values: dict[str, int | None]) -> str:
    known = [f"{name} {value / 2**30:.2f} GiB" for name, value in values.items() if value is not None]
    return ", ".join(known) or "unknown"


def report(result: dict[str, Any]) -> str:
    rows = [
        ("hardware", result["hardware"]),
        ("torch, python", f"{result['torch']}, {result['python']}"),
        ("video tokens", f"{result['tokens']:,}"),
        ("seconds per step, each", ", ".join(map(str, result["seconds"]))),
        ("seconds per step, median without the first", f"{result['median_s']:.3f}"),
        ("TFLOP/s, hardware / model", f"{result['tflops_hfu']:.1f} / {result['tflops_mfu']:.1f}"),
        ("peak memory of a step, measured", by_device(result["peak_bytes"])),
        ("reserved by torch", by_device(result["reserved_bytes"])),
        ("peak memory of a step, predicted", by_device(result["predicted_bytes"])),
        ("worker from start to end", f"{result['wall_s']:.1f} s"),
        ("losses", ", ".join(f"{v:.4f}" for v in result["losses"])),
    ]
    options = " ".join(f"{k}={v}" for k, v in result["options"].items())
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"# One LoRA training step\n\nSettings: {options}\n\n| what | value |\n| --- | --- |\n{table}\n"


if __name__ == "__main__":
    sys.exit(main())
