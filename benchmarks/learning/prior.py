"""What does prior preservation keep, and what does it cost? A JSON line each: `python benchmarks/learning/prior.py`.

Teaches the tiny pair the demo's concept as benchmarks/learning/shifts.py does at shift 12, the old world's clips
trained towards what the base model predicts, with several weights. Lines that are in the results already are
skipped. The pair
as it is, and the lessons without prior preservation, are lines of shifts.

    .venv/bin/python benchmarks/learning/prior.py --weights 1 5 7 10 --seeds 0 1 2

--write-docs writes benchmarks/results/learning_prior_CPU_2026-11.md from both files alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("", "benchmarks", "scripts", "tests", "tests/tiny")]

from learning import shifts
from learning.recipes import add_result, read_results

RESULTS = ROOT / "benchmarks" / "results" / "learning_prior_CPU_2026-11.jsonl"
PAGE = RESULTS.with_suffix(".md")
CONCEPT = "hopping_bar"


def main(arguments: list[str]) -> int:
    asked = options().parse_args(arguments)
    if asked.write_docs:
        from learning.prior_report import page

        PAGE.write_text(page(read_results(asked.results), read_results(shifts.RESULTS)), encoding="utf-8")
        return 0
    import torch
    from learning.lessons import Lesson, PairStudy
    from learning.study import studied

    torch.set_num_threads(asked.threads)
    study = PairStudy(asked.work, Path(os.environ.get("COMFYUI_PATH", ROOT / ".cache" / "comfyui")))
    study.ready(studied(CONCEPT))
    for seed in asked.seeds:
        for weight in asked.weights:
            high, low = (
                Lesson(expert=expert, shift=12.0, seed=seed, concept=CONCEPT, prior_preservation=weight)
                for expert in ("high", "low")
            )
            line = {"concept": CONCEPT, "high": high.told(), "low": low.told()}
            if line in [{key: known[key] for key in line} for known in read_results(asked.results)]:
                continue
            began = time.monotonic()
            new, old = study.scores(high, low, CONCEPT, shifts.SEEDS, shifts.CLIPS)
            seconds = round(time.monotonic() - began, 1)
            add_result(asked.results, line | {"new": asdict(new), "old": asdict(old), "seconds": seconds})
    return 0


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", nargs="+", type=float, default=[1.0, 5.0, 7.0, 10.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    shifts.add_options_of_lessons(parser, RESULTS, PAGE)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
