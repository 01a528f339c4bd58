"""Which optimizer learns best, and forgets least? `python benchmarks/learning/optimizers.py`: a JSON line a trial.

Every optimizer trains a LoRA on the same eight clips of a concept for equally many steps of one clip, at several
learning rates of its own; judges score clips of the concept, and of captions of the base model. Trials in the results
are skipped, so the same command resumes.

    .venv/bin/python benchmarks/learning/optimizers.py --optimizers adamw lion
    .venv/bin/python benchmarks/learning/optimizers.py --write-docs
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("", "benchmarks", "scripts", "tests", "tests/tiny")]

from learning.adapters import CLIPS, HOW_TO_READ, OLD, add_options_of_trials, outcome, run_missing
from learning.recipes import CONCEPTS, read_results

RESULTS = ROOT / "benchmarks" / "results" / "learning_optimizers_CPU_2026-11.jsonl"
PAGE = RESULTS.with_suffix(".md")
RATES: dict[str, tuple[float, ...]] = {
    "adamw": (4e-3, 2e-3, 8e-3),
    "lion": (1e-3, 5e-4, 2e-3),
    "muon": (4e-3, 2e-3, 8e-3),
    "prodigy": (1.0, 0.5, 2.0),
    "schedule_free": (4e-3, 2e-3, 8e-3),
    "came": (4e-3, 2e-3, 8e-3),
}
"""learning rates of each, the most likely first"""
SETTINGS: dict[str, dict[str, Any]] = {"schedule_free": {"lr_scheduler": "constant"}}
"""further settings of an optimizer"""


def main(arguments: list[str]) -> int:
    asked = options().parse_args(arguments)
    if asked.write_docs:
        PAGE.write_text(page(read_results(asked.results)), encoding="utf-8")
        return 0
    import torch

    torch.set_num_threads(1)
    trials = [{"optimizer": "none", "concept": one, "rate": 0.0, "seed": 0} for one in asked.concepts] + [
        {"optimizer": optimizer, "concept": concept, "rate": RATES[optimizer][place], "seed": seed}
        for seed in asked.seeds
        for place in asked.places
        for concept in asked.concepts
        for optimizer in asked.optimizers
    ]
    run_missing(trials, asked, run)
    return 0


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizers", nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument(
        "--places", nargs="+", type=int, choices=range(3), default=[0, 1, 2], help="of the optimizer's learning rates"
    )
    add_options_of_trials(parser, RESULTS, PAGE)
    return parser


def run(trial: dict[str, Any], asked: argparse.Namespace) -> dict[str, Any]:
    """Trains with one optimizer, and scores clips of its concept and of captions of the base model."""
    name = trial["optimizer"]
    if name == "none":
        return outcome(trial, asked, adapter=None)
    return outcome(trial, asked, adapter={}, training={"optimizer": name} | SETTINGS.get(name, {}))


def page(lines: list[dict[str, Any]]) -> str:
    """benchmarks/results/learning_optimizers_CPU_2026-11.md"""
    from shapeworld.scores import markdown_table

    rows: list[tuple[str, ...]] = []
    kinds = {(x["optimizer"], x["rate"]) for x in lines}
    for name, rate in sorted(kinds, key=lambda one: ([*RATES, "none"].index(one[0]), one[1])):
        row = [x for x in lines if (x["optimizer"], x["rate"]) == (name, rate)]
        by_concept = [[str(x["all"]) for x in row if x["concept"] == concept] for concept in CONCEPTS]
        learnt, judged = sum(x["all"] for x in row), sum(x["clips_judged"] for x in row)
        old, judged_old = sum(x["old"] for x in row), sum(x["old_judged"] for x in row)
        rows.append(
            (
                name,
                f"{rate:g}" if rate else "",
                *(" ".join(one) for one in by_concept),
                f"{learnt} of {judged} ({100 * learnt / judged:.0f}%)",
                f"{old} of {judged_old} ({100 * old / judged_old:.0f}%)",
            )
        )
    head = ("optimizer", "learning rate", *CONCEPTS, "concept", "old captions")
    return f"""# Which optimizer learns best

Written by `python benchmarks/learning/optimizers.py --write-docs` from the {len(lines)} lines of
[benchmarks/results/{RESULTS.name}]({RESULTS.name}), a trial each; no figure in the table is typed
by hand. A trial trains a LoRA of rank 8 in the tiny Wan on the eight clips of one concept and nothing else: 400 steps
of one clip, shift 3, a learning rate that falls along a cosine (schedule_free: constant), float32. Then {CLIPS} clips
of the concept and {OLD} of captions the model knew before are sampled (20 steps of euler, cfg 2.5, shift 3) and judged
without a network. These learning rates are high because the model is tiny; only their ratios can be carried over.

{markdown_table(head, rows)}

{HOW_TO_READ}"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
