"""Which training shift suits each expert of a pair? A JSON line each: `python benchmarks/learning/shifts.py`.

Trains each expert of the tiny pair on the demo's concept once with every shift, in this process; samples every high
noise LoRA with every low noise one, and lets judges classify clips of the concept and of captions of the base model.
Pairs in the results are skipped, so the same command resumes.

    .venv/bin/python benchmarks/learning/shifts.py --high 3 5 12 --low 3 5 12 --seeds 0 1
    .venv/bin/python benchmarks/learning/shifts.py --high 12 --low 12 --low-rates 3e-3 --low-steps 350

--write-docs writes benchmarks/results/learning_shifts_CPU_2026-11.md from the file alone.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("", "benchmarks", "scripts", "tests", "tests/tiny")]

from learning.recipes import add_result, read_results

if TYPE_CHECKING:
    from learning.lessons import Lesson

RESULTS = ROOT / "benchmarks" / "results" / "learning_shifts_CPU_2026-11.jsonl"
PAGE = RESULTS.with_suffix(".md")
CLIPS, SEEDS = 24, 2


def main(arguments: list[str]) -> int:
    asked = options().parse_args(arguments)
    if asked.write_docs:
        from learning.shifts_report import page

        PAGE.write_text(page(read_results(asked.results)), encoding="utf-8")
        return 0
    import torch
    from learning.lessons import PairStudy
    from learning.study import studied

    torch.set_num_threads(asked.threads)
    study = PairStudy(asked.work, Path(os.environ.get("COMFYUI_PATH", ROOT / ".cache" / "comfyui")))
    for concept in asked.concepts:
        study.ready(studied(concept))
        known = [{key: line[key] for key in ("concept", "high", "low")} for line in read_results(asked.results)]
        for high, low in pairs(asked, concept):
            line = {"concept": concept, "high": high and high.told(), "low": low and low.told()}
            if line in known:
                continue
            began = time.monotonic()
            new, old = study.scores(high, low, concept, SEEDS, CLIPS)
            seconds = round(time.monotonic() - began, 1)
            add_result(asked.results, line | {"new": asdict(new), "old": asdict(old), "seconds": seconds})
    return 0


def pairs(asked: argparse.Namespace, concept: str) -> Iterator[tuple[Lesson | None, Lesson | None]]:
    """Yields the lessons of both experts; (None, None), the base models, first."""
    from learning.lessons import Lesson

    yield None, None
    for seed in asked.seeds:
        highs = [
            Lesson(expert="high", shift=shift, learning_rate=rate, steps=asked.high_steps, seed=seed, concept=concept)
            for shift, rate in itertools.product(asked.high, asked.high_rates)
        ]
        lows = [
            Lesson(expert="low", shift=shift, learning_rate=rate, steps=asked.low_steps, seed=seed, concept=concept)
            for shift, rate in itertools.product(asked.low, asked.low_rates)
        ]
        yield from itertools.product(highs, lows)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for expert in ("high", "low"):
        parser.add_argument(f"--{expert}", nargs="+", type=float, default=[3.0, 5.0, 12.0], help="training shifts")
        parser.add_argument(f"--{expert}-rates", nargs="+", type=float, default=[6e-3], help="learning rates")
        parser.add_argument(f"--{expert}-steps", type=int, default=350, help="steps of four clips")
    parser.add_argument("--concepts", nargs="+", default=["hopping_bar"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    add_options_of_lessons(parser, RESULTS, PAGE)
    return parser


def add_options_of_lessons(parser: argparse.ArgumentParser, results: Path, page: Path) -> None:
    """Adds the options of studies on the tiny pair."""
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--work", type=Path, default=ROOT / "demo_output" / "learning_shifts", help="clips and lessons")
    parser.add_argument("--write-docs", action="store_true", help=f"write {page.name}, train nothing")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
