"""Which training recipe learns best? Trials in this process, a JSON line each: `python benchmarks/learning/recipes.py`.

Trains the tiny Wan on the eight clips of a concept, samples twelve clips, and lets judges classify them. Every trial
has equally many steps of one clip; recipes differ in the sampling and weighting of noise levels, the LoRA's scale and
layers, and the learning rate. Trials in the results are skipped, so the same command resumes, and several processes can
share one file.

    .venv/bin/python benchmarks/learning/recipes.py --recipes "shift 3" "uniform 8" --rates 1e-3 2e-3 --seeds 0 1 2
    .venv/bin/python benchmarks/learning/recipes.py --part 1/2    # beside another with --part 2/2

benchmarks/comfyui_trainer.py adds the lines of ComfyUI's own trainer; --write-docs writes the page beside the
results from
the file alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("", "benchmarks", "scripts", "tests", "tests/tiny")]

if TYPE_CHECKING:
    from learning.study import Trial

RESULTS = ROOT / "benchmarks" / "results" / "learning_recipes_CPU_2026-11.jsonl"
CONCEPTS = ("hopping_bar", "circling_diamond", "bouncing_heart")
CLIPS = 12


def _drawn(sampling: str, *shifts: float) -> dict[str, dict[str, Any]]:
    return {f"{sampling} {shift:g}": {"timestep_sampling": sampling, "shift": shift} for shift in shifts}


RECIPES: dict[str, dict[str, Any]] = {
    **_drawn("shift", 1, 2, 3, 5, 8, 12),
    **_drawn("uniform", 1, 3, 5, 8, 12),
    **{
        f"shift 3, cosine, TREAD {share:g}": {
            "timestep_sampling": "shift",
            "shift": 3.0,
            "lr_scheduler": "cosine",
            "tread_routes": f"{share:g}: 1..-2",
        }
        for share in (0.25, 0.5, 0.75)
    },
    "shift 3, wide": {"timestep_sampling": "shift", "shift": 3.0, "sigmoid_scale": 1.6},
    "shift 5, wide": {"timestep_sampling": "shift", "shift": 5.0, "sigmoid_scale": 1.6},
    "shift 3, alpha 1": {"timestep_sampling": "shift", "shift": 3.0, "alpha": 1.0},
    "uniform 5, alpha 1": {"timestep_sampling": "uniform", "shift": 5.0, "alpha": 1.0},
    "uniform 8, alpha 1": {"timestep_sampling": "uniform", "shift": 8.0, "alpha": 1.0},
    "uniform 8, x0": {"timestep_sampling": "uniform", "shift": 8.0, "weighting": "x0"},
    "uniform 3, x0": {"timestep_sampling": "uniform", "shift": 3.0, "weighting": "x0"},
    "shift 3, x0": {"timestep_sampling": "shift", "shift": 3.0, "weighting": "x0"},
    "uniform 3, sigma": {"timestep_sampling": "uniform", "shift": 3.0, "weighting": "sigma"},
    **{
        f"shift {shift}, cosine": {"timestep_sampling": "shift", "shift": float(shift), "lr_scheduler": "cosine"}
        for shift in (3, 5, 8)
    },
    **{
        f"shift 3, {scheduler}": {"timestep_sampling": "shift", "shift": 3.0, "lr_scheduler": scheduler}
        for scheduler in ("wsd", "rex", "linear")
    },
    **{
        f"shift 3, {targets}": {"timestep_sampling": "shift", "shift": 3.0, "targets": targets}
        for targets in ("attention", "self attention", "self attention and ffn")
    },
}
"""recipe -> fields of Trial"""


def main(arguments: list[str]) -> int:
    asked = options().parse_args(arguments)
    if asked.write_docs:
        from learning.recipes_report import page

        RESULTS.with_suffix(".md").write_text(page(read_results(asked.results)), encoding="utf-8")
        return 0
    import torch
    from learning.study import Study

    study = Study(asked.work, Path(os.environ.get("COMFYUI_PATH", ROOT / ".cache" / "comfyui")))
    trials = list(demo_trials(asked) if asked.demo else wanted(asked))
    part, parts = (int(number) for number in asked.part.split("/"))
    for name, trial in trials:
        torch.set_num_threads(int(name.split()[-2]) if asked.demo else 1)
        if zlib.crc32(repr(trial).encode()) % parts != part - 1:
            continue
        line = {"recipe": name, **dataclasses.asdict(trial)}
        # Lines of the results may be older than a setting.
        usual = {field.name: field.default for field in dataclasses.fields(trial)}
        if any(
            all((usual | known)[key] == value for key, value in line.items()) for known in read_results(asked.results)
        ):
            continue
        add_result(asked.results, line | study.run(trial, CLIPS, templates=asked.model == "pair"))
    return 0


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", metavar="NAME", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3, 2e-3, 4e-3, 8e-3], help="learning rates")
    parser.add_argument("--concepts", nargs="+", default=list(CONCEPTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--model", default="t2v", choices=("t2v", "pair"))
    parser.add_argument("--steps", type=int, default=400, help="of every expert")
    parser.add_argument("--part", default="1/1", help="2/4: the second quarter of the trials")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=ROOT / "demo_output" / "learning_recipes", help="encoded clips")
    parser.add_argument(
        "--demo", nargs="+", type=int, metavar="THREADS", help="only the demo's recipe, on so many threads"
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="write benchmarks/results/learning_recipes_CPU_2026-11.md, train nothing",
    )
    return parser


def wanted(asked: argparse.Namespace) -> Iterator[tuple[str, Trial]]:
    """Yields (name of the recipe, trial) of the grid."""
    from learning.study import Trial

    for seed in asked.seeds:
        for concept in asked.concepts:
            for name in asked.recipes:
                for rate in asked.rates:
                    yield (
                        name,
                        Trial(
                            concept=concept,
                            model=asked.model,
                            learning_rate=rate,
                            seed=seed,
                            steps=asked.steps,
                            held_out=4,
                            **RECIPES[name],
                        ),
                    )


def demo_trials(asked: argparse.Namespace) -> Iterator[tuple[str, Trial]]:
    """Yields the demo's training on each number of threads."""
    from learning.study import Trial
    from shapeworld.comfy_graphs import Recipe

    recipe = Recipe()
    kept = ("learning_rate", "timestep_sampling", "steps", "batch_size", "rank", "alpha", "lr_scheduler")
    values = {name: getattr(recipe, name) for name in (*kept, "lr_warmup_steps", "clips", "prior_clips")}
    for threads in asked.demo:
        for seed in asked.seeds:
            trial = Trial(
                concept=CONCEPTS[0], shift=3.0, repeats=recipe.concept_repeats, held_out=4, seed=seed, **values
            )
            yield f"the demo, {threads} threads", trial


def read_results(file: Path) -> list[dict[str, Any]]:
    """Every finished trial."""
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def add_result(file: Path, line: dict[str, Any]) -> None:
    """Appends one line in a single write, so that several processes can append."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab", buffering=0) as lines:
        lines.write((json.dumps(line) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
