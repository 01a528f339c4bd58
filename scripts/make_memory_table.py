"""Writes the table of docs/memory.md, card x model x frames, as the planner prints it: from headers, without a GPU.

.venv/bin/python scripts/make_memory_table.py            # takes a minute or two
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.headers import write_empty_model  # noqa: E402
from wan_core.files import Roots  # noqa: E402
from wan_core.load import ModelPlan  # noqa: E402
from wan_core.lora import LoraConfig  # noqa: E402
from wan_core.precision import QuantizeConfig  # noqa: E402
from wan_core.run import plan_settings  # noqa: E402
from wan_core.train import TrainConfig  # noqa: E402

PAGE = ROOT / "docs" / "memory.md"
CARDS = (12, 16, 24, 32, 48, 80)
FRAMES = (33, 49, 81)
MODELS = {
    "Wan 2.1 T2V-1.3B": ("wan2.1-t2v-1.3B", "wan2.1_t2v_1.3B_bf16.safetensors", ""),
    "Wan 2.2 A14B expert, fp8": ("wan2.2-t2v-A14B-expert", "wan2.2_t2v_high_noise_14B_bf16.safetensors", "fp8_e4m3fn"),
    "Wan 2.2 A14B expert, bf16": ("wan2.2-t2v-A14B-expert", "wan2.2_t2v_high_noise_14B_bf16.safetensors", ""),
}
_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)


def row(folder: Path, model: str, frames: int) -> str:
    """Returns the line of one model and length: on each card the GiB it takes, and with which measures."""
    template, file, scheme = MODELS[model]
    if not (folder / file).exists():
        write_empty_model(folder / file, template)
    plan = ModelPlan(base_file=f"diffusion_models:{file}", quantize=QuantizeConfig(scheme=scheme) if scheme else None)
    roots = Roots({"diffusion_models": (str(folder),)})
    cells = []
    for card in CARDS:
        size = f"832x480x{frames}"
        found = plan_settings(plan, roots, LoraConfig(rank=32), TrainConfig(), size, [card])
        cells.append(_cell(found) if found["fits"] else "-")
    return f"| {model} | {frames} | " + " | ".join(cells) + " |"


def _cell(found: dict[str, Any]) -> str:
    peak = found["devices"]["cuda:0"]["peak_bytes"] / 2**30
    measures = found["measures"]
    marks = "a" if found["checkpointing_policy"] == "attn_output" else ""
    marks += "*" if measures["offload_inputs"] else ""
    swapped = f" {measures['blocks_to_swap']}" if measures["blocks_to_swap"] else ""
    return f"{peak:.1f}{marks}{swapped}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(Path(folder), model, frames) for model in MODELS for frames in FRAMES]
    head = "| model | frames | " + " | ".join(f"{card} GB" for card in CARDS) + " |"
    lines = [head, "| --- | --- |" + " --- |" * len(CARDS), *rows]
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_TABLE.sub("\n".join(lines) + "\n", page), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
