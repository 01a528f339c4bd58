"""What one card can show of several: a world of one rank over NCCL, and a split model on two halves of the card.

    python benchmarks/one_card_split.py                # 90 s at most; results/one_card_split_<card>_<yyyy-mm>
    python benchmarks/one_card_split.py --tiny --out D # on a CPU, over gloo: does it run at all

No network, no files: weights are random and drawn where they lie. Each part is a process of its own. Exit code 1 where
one fails or a figure is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for sums that are the same each time

import torch
from card.case import Bench
from card.half_cards import half_cards
from card.one_rank import one_rank
from measure import DONE, Figures, run_apart
from result_files import RESULTS, write_result

LIMITS_S = {"one_rank": 40.0, "half_cards": 50.0}
PARTS: dict[str, Callable[[Bench], Figures]] = {"one_rank": one_rank, "half_cards": half_cards}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--tiny", action="store_true", help="tiny shapes on the CPU, over gloo")
    parser.add_argument("--only", choices=list(PARTS))
    options = parser.parse_args()
    if options.tiny:
        torch.set_num_threads(1)
    found: dict[str, Any] = {"torch": torch.__version__, "tiny": options.tiny}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), tiny=options.tiny, cuda=not options.tiny)
        for name, part in PARTS.items():
            if options.only not in (None, name):
                continue
            outcome = run_apart("fork", partial(part, bench), 240 if options.tiny else LIMITS_S[name])
            found[name] = outcome.figures | {"status": outcome.status, "said": outcome.said, "took_s": outcome.seconds}
            print(f"{name}: {outcome.status} in {outcome.seconds:.1f} s {outcome.said}", flush=True)
    write_result("one_card_split" + "_tiny" * options.tiny, found, page(found), out=options.out)
    return int(any(found[name]["status"] != DONE for name in PARTS if name in found))


def page(found: dict[str, Any]) -> str:
    lines = [
        "# One card as two, and as one rank",
        "",
        f"Written by `python benchmarks/one_card_split.py`, torch {found['torch']}.",
    ]
    if found["tiny"]:
        lines.append("Tiny shapes on a CPU: the seconds mean nothing.")
    for name, of_part in (("one_rank", ranks_page), ("half_cards", halves_page)):
        if name in found:
            lines += ["", *(of_part(found[name]) if "ok" in found[name] else [f"{name}: {found[name]['said']}"])]
    return "\n".join(lines) + "\n"


def ranks_page(found: dict[str, Any]) -> list[str]:
    """Returns the lines of the world of one rank."""
    lines = [
        f"## A world of one rank over {found['backend']} {found['nccl']}".rstrip(),
        "",
        "Losses and gradient norms of three steps beside those of a run without ranks (relative).",
        "",
        "| placement | furthest | calls of torch.distributed |",
        "| --- | --- | --- |",
    ]
    for name, way in found["ways"].items():
        calls = ", ".join(f"{count} {call}" for call, count in way["calls"].items())
        lines.append(f"| {name} | {way['furthest']:.1e} | {calls} |")
    for name, way in found["to_itself"].items():
        far = way.get("said") or f"{way['furthest']:.1e} from plain copies"
        lines.append(f"| {name}, half of the tokens sent to itself | {far} | batch_isend_irecv |")
    gathered = found["gathered"]
    same = "equal" if gathered["equal"] else "NOT EQUAL"
    return [*lines, f"| {gathered['bytes'] / 1e9:.2f} GB gathered, as a block of FSDP2 | {same} | all_gather |"]


def halves_page(found: dict[str, Any]) -> list[str]:
    """Returns the lines of the split model."""
    lines = [
        f"## Two stages: {found['halves']}",
        "",
        f"{found['layers']} blocks of the 14B model, {found['tokens']} tokens, one thread and stream a stage. Seconds",
        "by events on both streams. Predicted: the event model with each stage's times while the other one waits.",
        "Predicted, both busy: with the times of this step, in which both stages share memory and power.",
    ]
    for way in ("unchecked", "checkpointed"):
        of_way = found[way]
        lines += [
            "",
            f"Blocks {way}. Stages take "
            + " and ".join(f"{a:.4f} + {b:.4f} s" for a, b in of_way["stages_s"])
            + f" (forward, backward). Gradients are {of_way['gradients_far']:.1e} from those of the "
            f"model in one piece, which are {of_way['unsplit_again_far']:.1e} from themselves.",
            "",
            "| micro-batches | in turn s (predicted) | at once s | predicted | measured / predicted | predicted, both "
            "busy | measured / that | gain | predicted gain | host issues in s |",
            f"|{' --- |' * 10}",
        ]
        for row in of_way["rows"]:
            cells = [
                str(row["micro_batches"]),
                f"{row['in_turn_s']:.3f} ({row['in_turn_predicted_s']:.3f})",
                f"{row['measured_s']:.3f}",
                f"{row['predicted_s']:.3f}",
                f"{row['measured_s'] / row['predicted_s']:.3f}",
                f"{row['predicted_of_busy_s']:.3f}",
                f"{row['measured_s'] / row['predicted_of_busy_s']:.3f}",
                f"{row['in_turn_s'] / row['measured_s']:.2f}",
                f"{row['in_turn_predicted_s'] / row['predicted_s']:.2f}",
                f"{row['issued_s']:.3f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
        four = of_way["rows"][1]
        lines += [
            "",
            "Four micro-batches, measured and by the model:",
            "",
            "```",
            four["drawn"],
            four["drawn_model"],
            "```",
        ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
