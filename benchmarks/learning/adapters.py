"""Which kind of adapter learns best, and forgets least? `python benchmarks/learning/adapters.py`: a JSON line a trial.

Every kind trains on the same eight clips of a concept for equally many steps of one clip, at several learning rates;
judges score clips of the concept, and of captions of the base model. Trials in the results are skipped, so the same
command resumes, and several processes can share one file (see benchmarks/learning/recipes.py).

    .venv/bin/python benchmarks/learning/adapters.py --kinds LoRA LoKr --rates 2e-3 4e-3
    .venv/bin/python benchmarks/learning/adapters.py --write-docs
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("", "benchmarks", "scripts", "tests", "tests/tiny")]

from learning.recipes import CONCEPTS, add_result, read_results

RESULTS = ROOT / "benchmarks" / "results" / "learning_adapters_CPU_2026-11.jsonl"
PAGE = RESULTS.with_suffix(".md")
CLIPS = OLD = 12
KINDS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "DoRA": {"kind": "DoRA"},
    "LoKr": {"kind": "LoKr"},
    "LoKr, factor 4": {"kind": "LoKr", "lokr_factor": 4},
    "LoKr, factor 4, whole": {"kind": "LoKr", "lokr_factor": 4, "rank": 1024},
    "LoHa": {"kind": "LoHa"},
}
"""kind -> settings of LoraConfig"""
HOW_TO_READ = f"""\
Numbers below a concept are clips of {CLIPS} that show its shape on its path in its colour, one number per seed; "old
captions" are clips whose colour, shape and direction are right, after training on the concept alone. "none" is the
model without an adapter. Twelve clips of one training vary by 3 either way, and two trainings of the same recipe by
more: over the 36 clips of a row with one seed, shares nearer than about 22 points say nothing.
"""


def main(arguments: list[str]) -> int:
    asked = options().parse_args(arguments)
    if asked.write_docs:
        PAGE.write_text(page(read_results(asked.results)), encoding="utf-8")
        return 0
    import torch

    torch.set_num_threads(1)
    trials = [
        {"kind": kind, "concept": concept, "rate": rate, "seed": seed}
        for seed in asked.seeds
        for rate in asked.rates
        for concept in asked.concepts
        for kind in asked.kinds
    ]
    run_missing(
        [{"kind": "none", "concept": one, "rate": 0.0, "seed": 0} for one in asked.concepts] + trials, asked, run
    )
    return 0


def run_missing(
    trials: list[dict[str, Any]],
    asked: argparse.Namespace,
    run: Callable[[dict[str, Any], argparse.Namespace], dict[str, Any]],
) -> None:
    """Runs each trial without a line in the results, and appends its line."""
    for trial in trials:
        known = read_results(asked.results)
        if not any(all(line.get(key) == value for key, value in trial.items()) for line in known):
            add_result(asked.results, trial | run(trial, asked))


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", metavar="KIND", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rates", nargs="+", type=float, default=[2e-3, 4e-3, 8e-3], help="learning rates")
    add_options_of_trials(parser, RESULTS, PAGE)
    return parser


def add_options_of_trials(parser: argparse.ArgumentParser, results: Path, page: Path) -> None:
    """Adds the options of studies on several concepts."""
    parser.add_argument("--concepts", nargs="+", default=list(CONCEPTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--work", type=Path, default=ROOT / "demo_output" / "learning_recipes", help="encoded clips")
    parser.add_argument("--write-docs", action="store_true", help=f"write {page.name}, train nothing")


def run(trial: dict[str, Any], asked: argparse.Namespace) -> dict[str, Any]:
    """Trains one adapter, and scores clips of its concept and of captions of the base model."""
    return outcome(trial, asked, adapter=KINDS.get(trial["kind"]))


def outcome(
    trial: dict[str, Any],
    asked: argparse.Namespace,
    *,
    adapter: dict[str, Any] | None,
    training: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the judges' scores after a training on `trial["concept"]`; of the base model without an `adapter`.

    `adapter` and `training`: settings of LoraConfig and TrainConfig that differ from every trial's.
    """
    from learning.study import Study, Trial, studied
    from shapeworld.comfy_graphs import MODELS
    from shapeworld.files import balanced_words
    from shapeworld.learning import word_score

    from wan_core.lora import LoraConfig, adapter_parameters
    from wan_core.train import TrainConfig

    class Adapted(Trial):
        def lora_config(self) -> LoraConfig:
            return dataclasses.replace(super().lora_config(), **(adapter or {}))

        def train_config(self) -> TrainConfig:
            return dataclasses.replace(super().train_config(), **(training or {}))

    study = Study(asked.work, Path(os.environ.get("COMFYUI_PATH", ROOT / ".cache" / "comfyui")))
    concept, began, facts, values = studied(trial["concept"]), time.monotonic(), dict[str, Any](), 0
    if adapter is None:
        experts = [study.model(MODELS["t2v"].files[0], None).train(False)]
    else:
        settings = Adapted(
            concept=trial["concept"],
            learning_rate=trial["rate"],
            seed=trial["seed"],
            timestep_sampling="shift",
            shift=3.0,
            lr_scheduler="cosine",
            held_out=4,
        )
        experts, facts = study.train(settings, concept)
        values = sum(value.numel() for value in adapter_parameters(experts[0]).values())
    trained = time.monotonic() - began
    words = balanced_words(OLD, seed=0)
    old = study.sampled(experts, [one.caption for one in words])
    kept = word_score(words, [[clip] for clip in old], [concept])
    return {
        **study.scores(experts, concept, CLIPS),
        "old_judged": OLD,
        "old": kept.all.right,
        "values": values,
        "train_s": round(trained, 1),
        **facts,
    }


def page(lines: list[dict[str, Any]]) -> str:
    """benchmarks/results/learning_adapters_CPU_2026-11.md"""
    from shapeworld.scores import markdown_table

    def of(kind: str, rate: float, concept: str) -> list[dict[str, Any]]:
        return [x for x in lines if (x["kind"], x["rate"], x["concept"]) == (kind, rate, concept)]

    rows: list[tuple[str, ...]] = []
    whole: dict[tuple[str, float], tuple[int, int, int]] = {}
    for kind, rate in sorted(
        {(x["kind"], x["rate"]) for x in lines}, key=lambda one: ([*KINDS, "none"].index(one[0]), one[1])
    ):
        found = [x for concept in CONCEPTS for x in of(kind, rate, concept)]
        cells = [" ".join(str(x["all"]) for x in of(kind, rate, concept)) for concept in CONCEPTS]
        learnt, old = sum(x["all"] for x in found), sum(x["old"] for x in found)
        judged = sum(x["clips_judged"] for x in found)
        whole[kind, rate] = learnt, old, judged
        share = f"{learnt} of {judged} ({100 * learnt / judged:.0f}%)"
        said = f"{old} of {judged} ({100 * old / judged:.0f}%)"
        rows.append((kind, f"{rate:g}" if rate else "", *cells, share, said, str(found[0]["values"] or "")))
    head = ("adapter", "learning rate", *CONCEPTS, "concept", "old captions", "values trained")
    return f"""# Which kind of adapter learns best

Written by `python benchmarks/learning/adapters.py --write-docs` from the {len(lines)} lines of
[benchmarks/results/{RESULTS.name}]({RESULTS.name}), a trial each; no figure in the table is typed
by hand. A trial trains the tiny Wan on the eight clips of one concept and nothing else: 400 steps of one clip, rank 8,
shift 3, a learning rate that falls along a cosine, float32. Then {CLIPS} clips of the concept and {OLD} of captions the
model knew before are sampled (20 steps of euler, cfg 2.5, shift 3) and judged without a network.

{markdown_table(head, rows)}

{HOW_TO_READ}"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
