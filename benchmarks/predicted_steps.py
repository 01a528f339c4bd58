"""Predicts the seconds of the steps that others publish, next to their figure and to the roofline. No GPU is needed.

    python benchmarks/predicted_steps.py        # writes results/predicted_steps_<yyyy-mm>.md

A step as the row describes it (its precision, its checkpointing), and the same job as the planner arranges it on an
empty card. The roofline: FLOP at the peak and nothing else. `wan_core/plan/step_time.py` has the model of a step,
`wan_core/plan/cards.py` the constants of a card.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch

from benchmarks.result_files import write_page
from tests.support.headers import write_empty_model
from wan_core.files import Roots
from wan_core.load import ModelPlan, inspect_model
from wan_core.lora import LoraConfig
from wan_core.placement import PlacementConfig, StepShape, free_memory_of_cards, step_traffic
from wan_core.placement.plan import split_blocks
from wan_core.plan import Workload, plan_memory
from wan_core.plan.cards import Card, card_named
from wan_core.precision import QuantizeConfig
from wan_core.train import TrainConfig

CHECKPOINTED = TrainConfig(memory="manual", checkpointing_policy="full")
UNCHECKED = TrainConfig(memory="manual", gradient_checkpointing=False)


class Row(NamedTuple):
    """A published step."""

    card: str
    template: str
    size: tuple[int, int, int]
    rank: int
    published: str
    source: str
    scheme: str = ""
    train: TrainConfig = CHECKPOINTED
    batch: int = 1


_SMALL = (480, 480, 81)
_ST = "SimpleTuner SEGMENTED_CHECKPOINTING, weights in host memory"
_OURS = "ours, benchmarks/results/gpu_check_H200_2026-11.md, before kernels were fused"
_QUICK = "SimpleTuner quickstart, frames not stated"
ROWS = (
    Row("H100", "wan2.1-t2v-14B", _SMALL, 16, "7.162", _ST),
    Row("L40S", "wan2.1-t2v-14B", _SMALL, 16, "21.77", _ST),
    Row("H200", "wan2.1-t2v-14B", _SMALL, 16, "5.703", _OURS),
    Row("H200", "wan2.2-i2v-A14B-expert", (832, 480, 81), 64, "9.8-10.0", "SVI #49, size not certain, with encoders"),
    Row(
        "RTX 5090",
        "wan2.2-i2v-A14B-expert",
        (832, 480, 49),
        32,
        "44.73",
        "DiffSynth #1436, with encoders",
        "fp8_e4m3fn",
    ),
    Row("RTX 4090", "wan2.2-i2v-A14B-expert", (832, 480, 49), 32, "none found", "-", "fp8_e4m3fn"),
    Row("RTX 4070 Ti SUPER", "wan2.1-t2v-14B", (512, 512, 33), 32, "none found", "-", "fp8_e4m3fn"),
    Row("RTX A6000", "wan2.2-i2v-A14B-expert", (832, 480, 61), 32, "120-180", "diffusion-pipe #152, 63 frames"),
    Row("RTX 4090", "wan2.2-ti2v-5B", (1280, 704, 121), 32, "none found", "-"),
    Row("RTX 4090", "wan2.2-ti2v-5B", (1280, 704, 37), 32, "none found", "-"),
    Row("A100", "wan2.1-t2v-1.3B", (832, 480, 81), 16, "8.30", "DiffSynth #435, size not stated"),
    Row("H100", "wan2.1-t2v-1.3B", _SMALL, 16, "2.099", _ST),
    Row("L40S", "wan2.1-t2v-1.3B", _SMALL, 16, "4.459", _ST),
    Row("H100", "wan2.1-t2v-1.3B", _SMALL, 16, "1.407", "SimpleTuner, no checkpointing", train=UNCHECKED),
    Row("H100", "wan2.1-t2v-1.3B", _SMALL, 16, "2.607", "SimpleTuner, fp8-torchao", "fp8_e4m3fn"),
    Row("L40S", "wan2.1-t2v-1.3B", _SMALL, 16, "4.888", "SimpleTuner, fp8-torchao", "fp8_e4m3fn"),
    Row("H100", "wan2.1-t2v-1.3B", _SMALL, 16, "2.790", "SimpleTuner, int8-sdnq-hadamard", "int8"),
    Row("L40S", "wan2.1-t2v-1.3B", _SMALL, 16, "4.989", "SimpleTuner, int8-sdnq-hadamard", "int8"),
    Row("H200", "wan2.1-t2v-1.3B", _SMALL, 16, "1.189", _OURS),
    Row("RTX 4090", "wan2.1-t2v-1.3B", (832, 480, 33), 16, "2", _QUICK),
    Row("RTX 4090", "wan2.1-t2v-1.3B", (832, 480, 33), 16, "11", _QUICK, batch=4),
)


def job_of(row: Row, folder: Path) -> Workload:
    """Returns the job of a row, from a header alone, on one card."""
    file = write_empty_model(folder / f"{row.template}.safetensors", row.template)
    plan = ModelPlan(
        base_file=f"diffusion_models:{file.name}",
        base_precision="as in file" if row.scheme else "bf16",
        quantize=QuantizeConfig(scheme=row.scheme) if row.scheme else None,
        placement=PlacementConfig(devices="cpu"),
    )
    roots = Roots({"diffusion_models": (str(folder),)})
    found = inspect_model(plan, roots)
    (width, height, frames), space = row.size, found.variant.latents
    step = StepShape(
        batch_size=row.batch,
        latent_frames=space.latent_frames(frames),
        latent_height=height // space.spatial_stride,
        latent_width=width // space.spatial_stride,
    )
    layers = found.variant.shape.num_layers
    placement = split_blocks([torch.device("cuda", 0)], layers, "auto", [0])
    lora = LoraConfig(rank=row.rank)
    return Workload(model=plan, roots=roots, file=found, lora=lora, train=row.train, step=step, placement=placement)


def line(row: Row, folder: Path) -> str:
    """Returns a row of the table."""
    card = card_named(row.card)
    assert isinstance(card, Card)
    job, room = job_of(row, folder), free_memory_of_cards([card.gibibytes])
    asked = plan_memory(job, room, card)
    planned = plan_memory(replace(job, train=TrainConfig()), room, card)
    shape, measures = job.shape(), asked.measures
    work = step_traffic(
        *(shape.shape, shape.numerics, job.step, shape.as_loaded or shape.adapt),
        recomputing=shape.recomputing,
        chunk_tokens=measures.chunk_tokens,
    ).total
    flop, moved, kernels = work.flop.total(), work.bytes_beside, work.kernels.total()
    model = row.template.removeprefix("wan") + (f", {row.scheme}" if row.scheme else ", bf16")
    width, height, frames = row.size
    cells = [
        card.name,
        model,
        f"{width}x{height}x{frames}, rank {row.rank}" + (f", batch {row.batch}" if row.batch > 1 else ""),
        f"{job.step.tokens:,}",
        f"{measures.chunk_tokens:,}" if measures.chunk_tokens else "all",
        f"{flop / 1e12:,.0f} T",
        f"{moved / 1e12:.2f} TB",
        f"{kernels:,}",
        f"{flop / card.bf16:.2f}",
        f"{asked.seconds(card):.2f}",
        f"{planned.seconds(card):.2f}" if planned.fits else "does not fit",
        row.published,
        row.source,
    ]
    return f"| {' | '.join(cells)} |"


def page(folder: Path) -> str:
    """Returns the results page."""
    names = dict.fromkeys(row.card for row in ROWS)
    constants = [
        f"| {card.name} | {card.flops_per_s / 1e12:.0f} TFLOP/s of {card.bf16 / 1e12:.0f} | "
        f"{card.bytes_per_s / 1e12:.2f} TB/s of {card.bandwidth / 1e12:.2f} | {card.kernel_s * 1e6:.1f} us | "
        f"{'measured' if card.measured else 'the shares of the H200, assumed'} |"
        for name in names
        if (card := card_named(name)) is not None
    ]
    head = (
        "card",
        "model",
        "size",
        "tokens",
        "in a chunk",
        "FLOP",
        "bytes beside products and attention",
        "kernels",
        "roofline s",
        "predicted s",
        "as planned s",
        "published s",
        "by",
    )
    return "\n".join(
        [
            "# Predicted steps",
            "",
            "Written by `python benchmarks/predicted_steps.py`. Nothing here was measured, except where the published",
            "figure is ours. Predicted: as the row is described (every block checkpointed unless it says otherwise,",
            "weights on the card, chunks as planned, no encoder). As planned: with the measures the planner takes",
            "on an empty card. Roofline: the FLOP of that step at the peak of the card, and nothing else.",
            "",
            f"| {' | '.join(head)} |",
            f"|{' --- |' * len(head)}",
            *(line(row, folder) for row in ROWS),
            "",
            "## Constants",
            "",
            "seconds = FLOP / reached FLOP/s + bytes / reached bytes/s + kernels x seconds a kernel. Fitted to six",
            "steps measured on one H200 (each within 1.4 %); other cards are assumed to reach the same shares of",
            "their peaks. Copies from host memory: 25 GB/s each way, assumed; they count where they take longer.",
            "",
            "| card | products and attention | other kernels | each kernel | from |",
            "| --- | --- | --- | --- | --- |",
            *constants,
            "",
        ]
    )


if __name__ == "__main__":
    write_page("predicted_steps", page)
