"""Plans 14B at 1280x720x81 on 32 ranks, on paper: bytes over the wire, seconds and cost of a step. No GPU is needed.

    python benchmarks/world_plan.py --usd 2.50      # writes results/world_plan_<yyyy-mm>.md

The mesh is what a plan chooses (wan_core/plan/world.py). Every figure is predicted from assumptions, which the page
names and options change: the card by its name, links, and the price of a GPU hour.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch

from benchmarks.predicted_steps import Row, job_of
from wan_core.placement import PlacementConfig, free_memory_of_cards
from wan_core.placement.plan import split_blocks
from wan_core.plan.cards import Card, card_named
from wan_core.plan.workload import Workload
from wan_core.plan.world import MeshPlan, World, choose_mesh, mesh_line

RESULTS = ROOT / "benchmarks" / "results"
CLIPS = (32, 16, 8)
"""of an optimizer step: a clip, a half and a quarter for each of 32 ranks"""
SHOWN = 4
"""meshes of each number of clips"""


def job_on_paper(folder: Path, card: Card) -> Workload:
    """Returns 14B in bf16, rank 32, clips of 1280x720x81, on a card that this machine need not have."""
    job = job_of(Row(card.name, "wan2.1-t2v-14B", (1280, 720, 81), 32, "", "", ""), folder)
    model = job.model.with_placement(PlacementConfig(devices="cpu"))  # of this machine none is meant
    layers = job.file.variant.shape.num_layers
    return replace(job, model=model, placement=split_blocks([torch.device("cuda", 0)], layers, "auto"))


def row(plan: MeshPlan, clips: int, world: World, usd: float) -> str:
    cost = world.ranks * usd * plan.seconds * 1000 / 3600
    gigabytes = [f"{part / 1e9:.1f}" for part in (plan.gathered, plan.exchanged, plan.averaged, plan.sent)]
    cells = [str(clips), str(plan.mesh), str(plan.passes), f"{plan.peak / 2**30:.1f}", *gigabytes]
    cells += [f"{plan.seconds:.1f}", f"{cost:,.0f}"] if not plan.why_not else ["does not fit", ""]
    return f"| {' | '.join(cells)} |"


def page(job: Workload, card: Card, worlds: Sequence[World], usd: float) -> str:
    (free,) = free_memory_of_cards([card.gibibytes]).devices.values()
    speeds = f"{card.flops_per_s / 1e12:.0f} TFLOP/s, {card.bytes_per_s / 1e12:.2f} TB/s"
    lines = [
        "# 32 ranks on paper",
        "",
        "Written by `python benchmarks/world_plan.py`: Wan 2.1 14B in bf16, 1280x720x81, rank 32, batch 1, every block",
        "checkpointed. Nothing here was measured: no such cluster was at hand. Assumptions:",
        "",
        f"- {card.name}: {speeds}, {1e6 * card.kernel_s:.1f} us a kernel (the shares of a maker's peaks that an H200",
        f"  reaches), {free / 2**30:.0f} GiB for the run, ${usd:.2f} an hour a GPU. Encoding and saves cost more.",
        "- Links each way and rank: those of the tables. Inside a machine NVLink, between machines one network card of",
        "  400 or 200 Gbit/s for each GPU; 300 of NVLink's 450 GB/s are taken to be reached, and all of the network.",
        "- Blocks are gathered in both passes, behind computing; the exchange of tokens (all-to-all) and the average",
        "  of the adapters' gradients in float32 (ring) hide behind nothing. No rank waits for another.",
        "- What memory left over could keep instead of computing it again is not used.",
        "",
        "GB are what one rank sends in a step; cost is of 1,000 steps.",
    ]
    for world in worlds:
        lines += [
            "",
            f"## {world.ranks // world.a_machine} machines of {world.a_machine} {card.name}, "
            f"{world.inside / 1e9:.0f} GB/s inside, {world.between / 1e9:.0f} GB/s between",
            "",
            "| clips a step | mesh | micro-batches | GiB a card | weights GB | tokens GB | gradients GB | sent GB | "
            "s a step | $ |",
            f"|{' --- |' * 10}",
        ]
        chosen: list[str] = []
        for clips in CLIPS:
            plans = choose_mesh(job, card, free, world, clips)
            lines += [row(plan, clips, world, usd) for plan in plans[:SHOWN]]
            chosen.append(f"- {clips} clips: {mesh_line(plans, card, world)}")
        lines += ["", *chosen]
    return "\n".join([*lines, ""])


def main() -> int:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--card", default="H100", help="by its name")
    parser.add_argument("--usd", type=float, default=2.5, help="of a GPU hour")
    parser.add_argument("--inside", type=float, default=300, help="GB/s of a rank to others of its machine, each way")
    options = parser.parse_args()
    card = card_named(options.card)
    if card is None:
        parser.error(f"--card {options.card[:40]} is in no table")
    worlds = [World(32, 8, 1e9 * options.inside, between) for between in (50e9, 25e9)]
    with tempfile.TemporaryDirectory() as folder:
        text = page(job_on_paper(Path(folder), card), card, worlds, options.usd)
    (RESULTS / f"world_plan_{time.strftime('%Y-%m')}.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
