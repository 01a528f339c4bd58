"""Writes the tables of docs/use/memory.md and README.md, card x model x frames, from the planner: headers only, no GPU.

Run make_workflows.py afterwards: the notes of the graphs have these figures too.

.venv/bin/python scripts/generators/make_memory_table.py            # takes a minute
.venv/bin/python scripts/generators/make_memory_table.py --check    # a few cells; 1 where a page differs
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from memory_figures import PAGE, TABLE, figures, readme_table

from tests.support.headers import write_empty_model
from wan_core.files import Roots
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig
from wan_core.plan import report_settings
from wan_core.precision import QuantizeConfig
from wan_core.train import TrainConfig

README = ROOT / "README.md"
CARDS = (12, 16, 24, 32, 48, 80)
RAM_AND_HOURS_OF = 16
"""GB of the card of the last two columns"""
STEPS = 1500
"""steps of a run, as in the templates"""
SPOT_CHECKS = (("Wan 2.1 T2V-1.3B", 33, 16), ("Wan 2.2 A14B expert, fp8", 33, 16))
"""model, frames, card: the card of the last two columns, whose plan is needed for these anyway"""


class Model(NamedTuple):
    """The model of a row: its header, the name of its file, and its settings."""

    template: str
    file: str
    scheme: str = ""
    size: str = "832x480"
    cards: int = 1
    """cards that share the job in the mode that `auto` chooses"""
    frames: tuple[int, ...] = (33, 49, 81)
    rank: int = 32
    batch: int = 1
    """clips of a forward pass"""


_HIGH = "wan2.2_t2v_high_noise_14B_bf16.safetensors"
MODELS = {
    "Wan 2.1 T2V-1.3B": Model("wan2.1-t2v-1.3B", "wan2.1_t2v_1.3B_bf16.safetensors", frames=(1, 33, 49, 81)),
    "Wan 2.1 T2V-1.3B, rank 16, batch 4": Model(
        "wan2.1-t2v-1.3B", "wan2.1_t2v_1.3B_bf16.safetensors", frames=(33, 49), rank=16, batch=4
    ),
    "Wan 2.2 A14B expert, fp8": Model("wan2.2-t2v-A14B-expert", _HIGH, "fp8_e4m3fn"),
    "Wan 2.2 A14B expert, Q4_0": Model("wan2.2-t2v-A14B-expert", _HIGH, "Q4_0"),
    "Wan 2.2 A14B expert, bf16": Model("wan2.2-t2v-A14B-expert", _HIGH),
    "Wan 2.2 I2V-A14B expert, fp8": Model(
        "wan2.2-i2v-A14B-expert", "wan2.2_i2v_high_noise_14B_bf16.safetensors", "fp8_e4m3fn"
    ),
    "Wan 2.2 Animate-14B, fp8": Model(
        "wan2.2-animate-14B", "wan2.2_animate_14B_bf16.safetensors", "fp8_e4m3fn", frames=(33, 49)
    ),
    "Wan 2.2 S2V-14B, fp8": Model("wan2.2-s2v-14B", "wan2.2_s2v_14B_bf16.safetensors", "fp8_e4m3fn", frames=(33, 77)),
    "Wan 2.2 TI2V-5B, 1280x704": Model("wan2.2-ti2v-5B", "wan2.2_ti2v_5B_bf16.safetensors", size="1280x704"),
    "Wan 2.2 I2V-A14B expert, fp8, two cards": Model(
        "wan2.2-i2v-A14B-expert", "wan2.2_i2v_high_noise_14B_bf16.safetensors", "fp8_e4m3fn", cards=2
    ),
}


def cell(name: str, frames: int, card: int) -> str:
    """Returns the GiB of a job on each card, with marks for its measures; a dash where it does not fit."""
    found = planned(name, frames, card)
    return _words(found) if found["fits"] else "-"


def ram_and_hours(name: str, frames: int) -> tuple[str, str]:
    """Returns the host memory in GiB and the hours of a run with a card of RAM_AND_HOURS_OF."""
    found = planned(name, frames, RAM_AND_HOURS_OF)
    if not found["fits"]:
        return "-", "-"
    gib, seconds = found["host"]["bytes"] / 2**30, found["step_seconds"]
    return f"{gib:.0f}", "-" if seconds is None else _hours(seconds * STEPS / 3600)


def _hours(hours: float) -> str:
    return f"{hours:.0f}" if hours >= 10 else f"{hours:.1f}"


@cache
def planned(name: str, frames: int, card: int) -> dict[str, Any]:
    """Returns the plan of a job on cards of so many GB. Cached: a cell, the RAM and the hours use the same plan."""
    model = MODELS[name]
    quantize = QuantizeConfig(scheme=model.scheme) if model.scheme else None
    plan = ModelPlan(base_file=f"diffusion_models:{model.file}", quantize=quantize)
    size, cards = f"{model.size}x{frames}", [card] * model.cards
    with tempfile.TemporaryDirectory() as folder:
        write_empty_model(Path(folder) / model.file, model.template)
        roots = Roots({"diffusion_models": (folder,)})
        return report_settings(
            plan, roots, LoraConfig(rank=model.rank), TrainConfig(batch_size=model.batch), size, cards, "auto"
        )


def _words(found: dict[str, Any]) -> str:
    peak = max(needs["peak_bytes"] for needs in found["devices"].values()) / 2**30
    measures = found["measures"]
    marks = {"attn_output": "a", "offload_attn_output": "r"}.get(found["checkpointing_policy"], "")
    marks += "*" if measures["offload_inputs"] else ""
    swapped = f" {measures['blocks_to_swap']}" if measures["blocks_to_swap"] else ""
    return f"{peak:.1f}{marks}{swapped}"


def wrong() -> list[str]:
    """Returns the cells, of a few, in which the pages differ from the planner."""
    page = PAGE.read_text(encoding="utf-8")
    rows = {tuple(part.strip() for part in line.split("|")[1:3]): line.split("|")[3:-1] for line in page.splitlines()}
    found = []
    for name, frames, card in SPOT_CHECKS:
        said = [text.strip() for text in rows[name, str(frames)]]
        ram, hours = ram_and_hours(name, frames)
        place = CARDS.index(card)
        for what, told, now in (
            (f"{card} GB", said[place], cell(name, frames, card)),
            ("RAM", said[len(CARDS)], ram),
            ("hours", said[len(CARDS) + 1], hours),
        ):
            if told != now:
                found.append(f"docs/use/memory.md: {name}, {frames} frames, {what}: {told}, planned {now}")
    if readme_table() not in README.read_text(encoding="utf-8"):
        found.append("README.md: its table is not that of docs/use/memory.md")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; a few cells only")
    if parser.parse_args().check:
        found = wrong()
        print("\n".join(found) or f"{len(SPOT_CHECKS)} cells of {sum(map(len, figures().values()))} rows are right.")
        return 1 if found else 0
    rows = [
        f"| {name} | {frames} | "
        + " | ".join((*(cell(name, frames, card) for card in CARDS), *ram_and_hours(name, frames)))
        + " |"
        for name, model in MODELS.items()
        for frames in model.frames
    ]
    head = "| model | frames | " + " | ".join(f"{card} GB" for card in CARDS) + " | RAM | hours |"
    lines = [head, "| --- | --- |" + " --- |" * (len(CARDS) + 2), *rows]
    for file, table in ((PAGE, lambda: "\n".join(lines) + "\n"), (README, readme_table)):
        text = TABLE.sub(lambda _found, table=table: table(), file.read_text(encoding="utf-8"))
        file.write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
