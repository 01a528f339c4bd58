"""Whole training jobs on random weights: what a step takes in time and memory, under the settings users have."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from random_run import SHAPES, TEXT_ROWS, Size, random_run, write_random_weights

from wan_core.errors import Stopped, WanTrainerError
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import TEXT_LENGTH, WanTransformer, check_compile
from wan_core.plan import report_run
from wan_core.precision import PrecisionPolicy, QuantizeConfig
from wan_core.session.train_job import run_job
from wan_core.train import FlopCount, TrainConfig

from .case import Bench, Case, Figures, Needs
from .machine import dense_peak

RANK = 32
AS_SET: dict[str, Any] = {
    "memory": "manual",
    "checkpointing_policy": "full",
    "offload_activations": "off",
    "blocks_to_swap": 0,
}
"""What a job takes of measures that it may choose by itself: none but those a case names."""
TINY_SIZE = Size(64, 64, 5)
_GIB = 2**30


@dataclass(frozen=True)
class Job:
    """One run: shape, clip and what differs from the settings of a new run."""

    shape: str
    size: Size
    steps: int
    settings: tuple[tuple[str, Any], ...] = ()
    """of TrainConfig"""
    quantize: str = ""
    base_precision: str = "as in file"
    preset: str = "balanced"
    matmul: str = "compute"
    rank: int = RANK
    published: tuple[tuple[str, Any], ...] = ()
    """what somebody else published of the same work: seconds a step, peak GiB, their card and way"""

    @property
    def tiny(self) -> Job:
        """The same settings where only the code is tried."""
        return replace(self, shape="tiny", size=TINY_SIZE, steps=2)


def memory(_: Bench) -> list[Case]:
    """Ten different configurations, two steps each: predicted peak against the measured one."""
    small, image, square = Size(480, 480, 17), Size(1024, 1024, 1), Size(832, 480, 49)
    off = (("gradient_checkpointing", False),)
    jobs = {
        "1.3B 832x480x49": Job("1.3B", square, 2),
        "1.3B 480x480x17 without checkpointing": Job("1.3B", small, 2, off),
        "1.3B 832x480x49 keeping attention": Job("1.3B", square, 2, (("checkpointing_policy", "attn_output"),)),
        "1.3B 832x480x49 float32, reference precision": Job(
            "1.3B", square, 2, base_precision="fp32", preset="reference"
        ),
        "5B 832x480x49": Job("5B", square, 2),
        "5B 832x480x49, 4 blocks unchecked": Job("5B", square, 2, (("unchecked_blocks", 4),)),
        "14B-12 832x480x81": Job("14B-12", Size(832, 480, 81), 2),
        "14B-12 832x480x49 fp8": Job("14B-12", square, 2, quantize="fp8_e4m3fn"),
        "14B-12 832x480x49 int8, fast precision": Job("14B-12", square, 2, quantize="int8", preset="fast"),
        "14B 1024x1024x1": Job("14B", image, 2),
    }
    return [_case("memory", name, job, about_s=60 if job.shape == "14B" else 20) for name, job in jobs.items()]


def speed(_: Bench) -> list[Case]:
    jobs = {
        "1.3B 832x480x49": Job("1.3B", Size(832, 480, 49), 10),
        "5B 832x480x49": Job("5B", Size(832, 480, 49), 10),
        "5B 1280x704x121": Job("5B", Size(1280, 704, 121), 5),
        "14B 832x480x49": Job("14B", Size(832, 480, 49), 5),
        "14B 832x480x49 fp8": Job("14B", Size(832, 480, 49), 4, quantize="fp8_e4m3fn"),
        "14B 832x480x81": Job("14B", Size(832, 480, 81), 4),
    }
    return [_case("speed", name, job, about_s=80 if job.shape == "14B" else 40) for name, job in jobs.items()]


def switches(_: Bench) -> list[Case]:
    """One switch each, on twelve blocks of the 14B width: the first is what the others are held against."""
    alone: dict[str, dict[str, Any]] = {
        "full checkpointing alone": {},
        "without checkpointing": {"gradient_checkpointing": False},
        "keeping attention": {"checkpointing_policy": "attn_output"},
        "keeping every matrix product": {"checkpointing_policy": "matmul_without_batch"},
        "every matrix product in host memory": {
            "checkpointing_policy": "offload_matmul_without_batch",
            "offload_activations": "on",
        },
        "4 blocks unchecked": {"unchecked_blocks": 4},
        "block inputs in host memory": {"offload_activations": "on"},
        "6 blocks streamed": {"blocks_to_swap": 6},
        "both": {"offload_activations": "on", "blocks_to_swap": 6},
        "compiled blocks": {"compile": True},
    }
    size = Size(832, 480, 49)
    jobs = {name: Job("14B-12", size, 7, tuple(settings.items())) for name, settings in alone.items()}
    jobs["fp8 weights"] = Job("14B-12", size, 7, quantize="fp8_e4m3fn")
    jobs["fp8 weights, products in fp8"] = Job("14B-12", size, 7, quantize="fp8_e4m3fn", matmul="fp8")
    jobs["int8 weights"] = Job("14B-12", size, 7, quantize="int8")
    jobs["int8 weights, products in int8"] = Job("14B-12", size, 7, quantize="int8", matmul="int8")
    return [
        _case("switches", name, job, about_s=120 if name == "compiled blocks" else 30) for name, job in jobs.items()
    ]


def published(_: Bench) -> list[Case]:
    """The work of which others published figures, in the order of what is worth most where time is short.

    18,900 tokens of SimpleTuner's "480-pixel area", rank 16. Its weights lie in host memory (RamTorch), in every row.
    """
    small, square = Size(480, 480, 81), Size(832, 480, 49)
    simpletuner = {"their_card": "H100 80 GB", "their_way": "SimpleTuner bc8e6ab, bf16, RamTorch, every block"}
    large = tuple({"their_s": 7.162, "their_gib": 16.28, **simpletuner}.items())
    little = tuple({"their_s": 2.099, "their_gib": 4.73, **simpletuner}.items())
    whole = tuple({"their_s": 1.407, "their_gib": 71.90, **simpletuner, "their_way": "no checkpointing"}.items())
    two_cards = {"their_s": 44.73, "their_gib": None, "their_card": "RTX 5090", "their_way": "DiffSynth PR #1436, fp8"}
    streamed, chosen = (("blocks_to_swap", 40),), (("memory", "auto"), ("checkpointing_policy", "auto"))
    auto = (*chosen, ("offload_activations", "auto"), ("blocks_to_swap", -1))
    jobs = {
        "1.3B 480x480x81": Job("1.3B", small, 6, rank=16, published=little),
        "14B 480x480x81": Job("14B", small, 4, rank=16, published=large),
        "14B 480x480x81, 40 blocks in host memory": Job("14B", small, 4, streamed, rank=16, published=large),
        "14B 480x480x81, as a run arranges itself": Job("14B", small, 4, auto, rank=16, published=large),
        "14B 480x480x81, all of it in host memory": Job(
            "14B", small, 4, (*streamed, ("offload_activations", "on")), rank=16, published=large
        ),
        "14B 832x480x49 fp8": Job("14B", square, 4, quantize="fp8_e4m3fn", published=tuple(two_cards.items())),
        "1.3B 480x480x81, 30 blocks in host memory": Job(
            "1.3B", small, 6, (("blocks_to_swap", 30),), rank=16, published=little
        ),
        "1.3B 480x480x81, no checkpointing": Job(
            "1.3B", small, 6, (("gradient_checkpointing", False),), rank=16, published=whole
        ),
        "1.3B 480x480x81, fp8": Job("1.3B", small, 6, rank=16, quantize="fp8_e4m3fn", published=little),
        "1.3B 480x480x81, int8": Job("1.3B", small, 6, rank=16, quantize="int8", published=little),
    }
    return [_case("published", name, job, about_s=75 if job.shape == "14B" else 25) for name, job in jobs.items()]


def _case(part: str, name: str, job: Job, about_s: float) -> Case:
    return Case(part, name, partial(_measure, job), about_s, needs_gpu=False)


def _measure(job: Job, bench: Bench) -> Figures:
    """Run a job to its end; what its steps took."""
    if not bench.cuda and not bench.tiny:
        raise Needs("needs one CUDA GPU")
    job = job.tiny if bench.tiny else job
    train, shape = _settings(job), SHAPES[job.shape]
    if train.compile:
        can_compile(bench)
    model = ModelPlan(
        base_file="",
        base_precision=job.base_precision,
        precision=PrecisionPolicy(preset=job.preset, matmul=job.matmul),
        quantize=QuantizeConfig(scheme=job.quantize) if job.quantize else None,
    )
    base = weights_file(bench, job.shape)
    folder = Path(tempfile.mkdtemp(dir=bench.work))
    try:
        directory, roots = random_run(folder, base, shape, job.size, model, LoraConfig(rank=job.rank), train)
        plan = report_run(directory, roots)
        for device, needs in plan["devices"].items():
            if needs["peak_bytes"] > needs["total_bytes"]:
                gib = f"{needs['peak_bytes'] / _GIB:.1f} GiB, {device} has {needs['total_bytes'] / _GIB:.1f}"
                raise Needs(f"needs {gib} by its prediction")
        run_job(directory, roots, emit=lambda _: None, control=_Never())
        lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _figures(job, bench, train, [json.loads(line) for line in lines], plan)


def can_compile(bench: Bench) -> None:
    """Raises Needs where blocks cannot be compiled."""
    try:
        check_compile(bench.device)
    except WanTrainerError as refusal:
        raise Needs(f"needs what torch.compile takes: {refusal}") from refusal


def _settings(job: Job) -> TrainConfig:
    wanted = AS_SET | {"preview_every_n_steps": 0, "eval_items": 0, "save_every_n_steps": job.steps}
    return TrainConfig(**(wanted | {"steps": job.steps} | dict(job.settings)))


def weights_file(bench: Bench, name: str) -> Path:
    """Returns the random weights of a shape, written on the first call."""
    folder = bench.work / "weights"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.safetensors"
    if not path.is_file():
        with torch.device("meta"):
            wanted = 2 * sum(p.numel() for p in WanTransformer(SHAPES[name]).parameters())
        if (free := shutil.disk_usage(folder).free) < 1.05 * wanted:
            raise Needs(
                f"needs {wanted / 1e9:.1f} GB of disk for random weights, free are {free / 1e9:.1f}: set --work"
            )
        beside = path.with_suffix(".part")
        write_random_weights(beside, SHAPES[name])
        beside.replace(path)
    return path


class _Never:
    """A control by which nobody asks for anything."""

    def stop_reason(self) -> str:
        return ""

    def take(self, command: str) -> bool:
        return False

    def wait_decoded(self, sample_id: str, timeout_s: float) -> None:
        raise Stopped("nobody decodes here")


def _figures(job: Job, bench: Bench, train: TrainConfig, lines: list[dict[str, Any]], plan: dict[str, Any]) -> Figures:
    steps = [line for line in lines if line["event"] == "step"]
    settled = [step["seconds"] for step in steps[min(2, len(steps) - 1) :]]
    took = statistics.median(settled)
    chosen = plan["checkpointing_policy"] if train.checkpointing_policy == "auto" else train.checkpointing_policy
    useful, hardware = flop(job, replace(train, checkpointing_policy=chosen))
    figures: Figures = {
        "tokens": job.size.tokens(SHAPES[job.shape]),
        "seconds": [round(step["seconds"], 4) for step in steps],
        "median_s": took,
        "useful_tflop": useful / 1e12,
        "hardware_tflop": hardware / 1e12,
        "predicted_bytes": sum(needs["peak_bytes"] for needs in plan["devices"].values()),
        "predicted_host_bytes": plan["host"]["bytes"],
        "checkpointing_policy": plan["checkpointing_policy"],
        "measures": plan["measures"],
        "predicted_s": plan["step_seconds"],
        "measured_bytes": None,
        "reserved_bytes": None,
        "losses": [step["loss"] for step in steps],
        **dict(job.published),
        "ok": all(step["loss"] == step["loss"] for step in steps) and len(steps) == job.steps,
    }
    if not bench.cuda:
        return figures
    held = [m for name, m in steps[-1]["memory"].items() if name.startswith("cuda")]
    peak = dense_peak(torch.cuda.get_device_name(0))
    return figures | {
        "measured_bytes": sum(m["peak"] for m in held),
        "reserved_bytes": sum(m["reserved"] for m in held),
        "hfu_tflops": hardware / took / 1e12,
        "mfu_tflops": useful / took / 1e12,
        "hfu": hardware / took / 1e12 / peak if peak else None,
        "mfu": useful / took / 1e12 / peak if peak else None,
    }


def flop(job: Job, train: TrainConfig) -> tuple[float, float]:
    """Returns the useful operations of a step, and those the hardware does: again for checkpointing, and in kernels.

    A flash kernel computes the scores once more in its backward pass. Policies keep what they name.
    """
    shape = SHAPES[job.shape]
    with torch.device("meta"):
        model = WanTransformer(shape)
    model.read_texts(TEXT_LENGTH)
    inject_lora(model, LoraConfig(rank=job.rank), seed=0)
    latent = torch.Size((1, *job.size.latent(shape)))
    once = FlopCount(model).of(latent, time_rows=1, image_rows=0, text_rows=TEXT_ROWS)
    tokens = job.size.tokens(shape)
    to_itself = 4.0 * tokens * tokens * shape.dim * shape.num_layers
    attention = to_itself + 4.0 * tokens * TEXT_LENGTH * shape.dim * shape.num_layers
    # Nobody reads what a block's last linear makes, so no policy keeps it; its adapter's first product runs again.
    last_adapter = 2.0 * tokens * job.rank * shape.ffn_dim * shape.num_layers
    again = {
        "full": once.recomputed,
        "attn_output": once.recomputed - to_itself,
        "matmul_without_batch": attention + last_adapter,
        "offload_matmul_without_batch": attention + last_adapter,
    }[train.checkpointing_policy]
    checked = (1 - min(train.unchecked_blocks, shape.num_layers) / shape.num_layers) * train.gradient_checkpointing
    return once.useful, once.useful + again * checked + attention / 2
