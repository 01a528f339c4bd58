"""The bench of concepts that nobody chose: `python benchmarks/learning/bench.py`, a JSON line a finished cell.

A cell is a recipe at a learning rate, a drawn concept, a seed and a number of steps: it trains the tiny Wan on the
concept's dataset, samples clips and lets judges say what they show. Finished cells are skipped, so the same command
resumes on any machine; processes on one machine share the work.

    .venv/bin/python benchmarks/learning/bench.py --choose        # seeds of concepts, until there are twenty and twenty
    .venv/bin/python benchmarks/learning/bench.py --recipes ours ComfyUI --concepts 6 --rates own
    .venv/bin/python benchmarks/learning/bench.py --recipes ours --steps 100 200 400 800
    .venv/bin/python benchmarks/learning/bench.py --plan --processes 16 --minutes 7
    .venv/bin/python benchmarks/learning/bench.py --judge         # the judge on drawn clips and near misses
    .venv/bin/python benchmarks/learning/bench.py --again         # a finished cell once more: equal to the last digit?
    .venv/bin/python benchmarks/learning/bench.py --write-docs    # the page and its picture, from the results alone

`--unseen` runs the twenty concepts kept for the end, and marks every line of theirs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("", "benchmarks", "scripts", "tests", "tests/tiny")]

from learning.bench_candidates import recipe_of
from learning.bench_file import AGAIN, CELL, CHOICE, FAILED, JUDGE, STEPS, DuplicateError, Line, ResultFile, key_of
from learning.bench_many import Wanted, encode_at_once, planned, run_many
from learning.bench_recipes import RECIPES, BenchRecipe

if TYPE_CHECKING:
    from learning.bench_cell import BenchStudy

RESULTS = ROOT / "benchmarks" / "results" / "learning_bench_CPU_2026-11.jsonl"
PAGE, PICTURE = RESULTS.with_suffix(".md"), RESULTS.with_suffix(".svg")
CONCEPTS = 20
"""of each kind"""
CHOOSING, UNSEEN = 1_000, 2_000
"""first seed tried for a concept to choose recipes on, and for one that is run once, after all choices are made"""
SEEDS_OF_JUDGE = 9_000
"""first scene of the measurement of the judge; its choice of concepts used others"""
EQUAL = ("clips", "shape", "path", "colour", "size", "speed", "all", "each", "eval_before", "eval_after", "weights")
"""what must be the same when a cell is run again"""


def main(arguments: list[str]) -> int:
    asked = options().parse_args(arguments)
    results = ResultFile(asked.results)
    if asked.write_docs:
        from learning.bench_report import page, picture

        asked.results.with_suffix(".md").write_text(page(results), encoding="utf-8")
        asked.results.with_suffix(".svg").write_text(picture(results), encoding="utf-8")
        return 0
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # every cell runs on the CPU
    import torch

    torch.set_num_threads(asked.threads)
    if asked.judge:
        return measure_judge(results, asked)
    from learning.bench_cell import BenchStudy

    study = BenchStudy(asked.work, asked.comfyui, asked.trainer or asked.comfyui, asked.python, asked.base)
    if asked.base != "t2v" and not results.lines(CHOICE):  # the concepts are the same
        for line in ResultFile(RESULTS).lines(CHOICE):
            results.append(line)
    if asked.choose:
        return choose(study, results, asked)
    if asked.again:
        return run_again(study, results, asked)
    concepts = chosen(results, asked.unseen)[: asked.concepts]
    study.read_captions(concepts)
    cells = unfinished(results, asked)
    if asked.plan:
        cells = planned(results, chosen(results, False), asked.comfyui_too, concepts if asked.unseen else ())
    encode_at_once(study, concepts, asked.processes)
    about = machine(asked.threads)
    run_many(study, results, asked.work, cells, about, processes=asked.processes, minutes=asked.minutes)
    return 0


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", metavar="NAME", default=list(RECIPES))
    parser.add_argument(
        "--rates", nargs="+", default=["own"], help="learning rates, or own (what its files set), or all (its five)"
    )
    parser.add_argument("--concepts", type=int, default=CONCEPTS, help="how many, from the first on")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", nargs="+", type=int, default=[400])
    parser.add_argument("--unseen", action="store_true", help="the concepts kept for the end, instead of the others")
    parser.add_argument("--while-training", action="store_true", help="judge at four shares of each training")
    parser.add_argument("--base", default="t2v", help="a demo model (t2v, i2v) or a file; with --results of its own")
    parser.add_argument("--again", action="store_true", help="train the first of these cells again, compare its line")
    parser.add_argument("--choose", action="store_true", help="try seeds until there are enough concepts")
    parser.add_argument("--judge", action="store_true", help="measure the judge on drawn clips and near misses")
    parser.add_argument("--plan", action="store_true", help="the cells of bench_plan.py, by the results so far")
    parser.add_argument("--comfyui-too", action="store_true", help="with --plan: run ComfyUI's trainer too")
    parser.add_argument("--processes", type=int, default=1, help="each on one core")
    parser.add_argument("--minutes", type=float, default=0.0, help="no cell begins later; 0 = no limit")
    parser.add_argument("--threads", type=int, default=1, help="other than 1, numbers differ in their last digits")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=ROOT / "demo_output" / "learning_bench", help="encoded clips")
    parser.add_argument(
        "--comfyui",
        type=Path,
        default=Path(os.environ.get("COMFYUI_PATH", ROOT / ".cache" / "comfyui")),
        help="tree whose text encoder reads captions, in this Python",
    )
    parser.add_argument("--trainer", type=Path, help="tree whose trainer the recipe ComfyUI is; usually --comfyui")
    parser.add_argument("--python", default=sys.executable, help="a Python that runs the trainer's tree")
    parser.add_argument("--write-docs", action="store_true", help=f"write {PAGE.name} and {PICTURE.name}")
    return parser


def rates_of(recipe: BenchRecipe, asked: list[str]) -> list[float]:
    if asked == ["all"]:
        return list(recipe.rates)
    return [recipe.own_rate if rate == "own" else float(rate) for rate in asked]


def chosen(results: ResultFile, unseen: bool) -> list[int]:
    """Seeds of the usable concepts, in order."""
    usable = [line["concept"] for line in results.lines(CHOICE) if line["usable"]]
    return sorted(seed for seed in usable if is_unseen(seed) == unseen)[:CONCEPTS]


def is_unseen(seed: int) -> bool:
    return seed >= UNSEEN


def choose(study: BenchStudy, results: ResultFile, asked: argparse.Namespace) -> int:
    """Appends a line per tried seed: whether it draws a concept that the judge sees, also through the model's VAE."""
    from shapeworld.drawn_concepts import drawn_concept, seen_right

    for first in (CHOOSING, UNSEEN):
        for seed in range(first, first + 1_000):
            if len(chosen(results, is_unseen(first))) == CONCEPTS:
                break
            line: Line = {"kind": CHOICE, "concept": seed, "usable": False}
            if results.has(line):
                continue
            with contextlib.suppress(ValueError):  # nothing that fits the seed
                line["usable"] = seen_right(drawn_concept(seed), study.through_vae)
            with contextlib.suppress(DuplicateError):  # another process was sooner, with the same answer
                results.append(line)
            print(seed, line["usable"], flush=True)
    return 0


def wanted(results: ResultFile, asked: argparse.Namespace) -> Iterator[Line]:
    """Yields the key of each cell; the first concepts of every recipe come before the next."""
    concepts = chosen(results, asked.unseen)[: asked.concepts]
    for steps, seed, name in itertools.product(asked.steps, asked.seeds, asked.recipes):
        for rate, concept in itertools.product(rates_of(recipe_of(name), asked.rates), concepts):
            kind = STEPS if asked.while_training else CELL
            cell: Line = {"kind": kind, "recipe": name, "rate": rate, "concept": concept, "seed": seed, "steps": steps}
            yield cell | ({"unseen": True} if asked.unseen else {})


def unfinished(results: ResultFile, asked: argparse.Namespace) -> Wanted:
    """The wanted cells without a line."""

    def left() -> list[Line]:
        known = {
            key_of(line | {"kind": line.get("failed", line["kind"])})
            for line in results.every()
            if line["kind"] in (CELL, STEPS, FAILED)
        }
        return [cell for cell in wanted(results, asked) if key_of(cell) not in known]

    return left


def run_again(study: BenchStudy, results: ResultFile, asked: argparse.Namespace) -> int:
    """Trains the first finished one of the wanted cells again, notes the comparison, and fails where one differs."""
    finished = {key_of(line): line for line in results.lines()}
    for cell in wanted(results, asked):
        key = key_of(cell)
        if key not in finished:
            continue
        before, now = finished[key], study.cell(cell) | machine(asked.threads)
        different = [name for name in EQUAL if now[name] != before[name]]
        results.append(cell | now | {"kind": AGAIN, "different": different, "cpu_before": before["cpu"]})
        print(f"{key}: " + (f"different in {', '.join(different)}" if different else "equal to the last digit"))
        return int(bool(different))
    raise SystemExit("None of these cells is finished. Run one first, without --again.")


def measure_judge(results: ResultFile, asked: argparse.Namespace, scenes: int = 12) -> int:
    """Appends a line per concept: how often the judge was wrong on drawn clips of it and of each near miss."""
    from shapeworld.drawn_concepts import drawn_concept, judgements

    for seed in chosen(results, asked.unseen):
        line: Line = {"kind": JUDGE, "concept": seed}
        if results.has(line):
            continue
        shown, wrong = Counter[str](), Counter[str]()
        for what, right in judgements(drawn_concept(seed), SEEDS_OF_JUDGE, scenes):
            shown[what] += 1
            wrong[what] += not right
        line |= {"shown": dict(shown), "wrong": dict(wrong)}
        results.append(line | ({"unseen": True} if asked.unseen else {}))
        print(seed, sum(wrong.values()), "wrong of", sum(shown.values()), flush=True)
    return 0


def machine(threads: int) -> dict[str, Any]:
    """What may change the last digits: CPU, torch, threads."""
    import torch

    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.is_file() else []
    known = dict(line.split(":", 1) for line in lines if ":" in line and line.startswith(("model", "cpu family")))
    named = {name.strip(): value.strip() for name, value in known.items()}
    cpu = " ".join(named.get(name, "") for name in ("model name", "cpu family", "model")).strip()
    return {"cpu": cpu or platform.processor(), "torch": torch.__version__, "threads": threads}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
