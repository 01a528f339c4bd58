"""What do targets of base predictions keep? A JSON line each: `python benchmarks/learning/targets.py PART`.

Parts, on the tiny text-to-video model of the demo and the judges of tests/shapeworld:

preserve   a concept beside the old captions: no preservation, clips of the old world, a class word
sliders    one property moved by pairs of prompts alone, judged at strengths from -1 to 1
distilled  a tiny model distilled to 4 steps at cfg 1 (a LoRA on the demo's, trained on its sampled paths), then a
           concept on it: plain, with guidance_target, with a training adapter, and on the plain base
bits       a concept on the base as in its file, in int8 and in 4 bits, judged on the base as in its file

    .venv/bin/python benchmarks/learning/targets.py preserve --rows word --seeds 0
    .venv/bin/python benchmarks/learning/targets.py preserve sliders distilled bits --processes 16

Lines that are in the results already are skipped. --processes starts one process for each row and seed; they share the
results and the distilled model. --write-docs writes the page from the results alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("", "benchmarks", "scripts", "tests", "tests/tiny")]

import torch
from learning.recipes import add_result, read_results
from learning.study import studied
from learning.targets_study import (
    ADAPTER,
    CLASSES,
    CLIPS,
    COLOUR,
    CONCEPT,
    FEW,
    MANY,
    NEGATIVE,
    OLD,
    POSITIVE,
    SPEED,
    STEPS,
    TargetStudy,
    trial_of,
)
from shapeworld.judge import judge, matches
from shapeworld.scenes import all_words
from shapeworld.scores import WordScore

from wan_core.lora import set_strength

RESULTS = ROOT / "benchmarks" / "results" / "learning_targets_CPU_2026-11.jsonl"
PAGE = RESULTS.with_suffix(".md")
BASE, PLAIN_BASE = "base", "plain base"
SLIDER = f"{COLOUR} to {NEGATIVE} or {POSITIVE}"
STRENGTHS = (-1.0, -0.5, 0.0, 0.5, 1.0)

# Twice the steps where half the clips are of the old world, so that the concept is seen as often as in the other rows.
BESIDE_OLD: dict[str, Any] = {"prior_clips": 96, "repeats": 12, "steps": 2 * STEPS}
LONGER = 400
"""steps of the concept in the rows of preserve: what preserves also slows the learning"""
PRESERVE: dict[str, dict[str, Any]] = {
    "none": {"steps": LONGER},
    "word": {"steps": LONGER, "class_word": CLASSES["word"]},
    "clips": BESIDE_OLD | {"steps": 2 * LONGER, "prior_preservation": 5.0},
}
DISTILLED: dict[str, dict[str, Any]] = {
    "plain": {"under": SPEED},
    "guidance_target 2.5": {"under": SPEED, "guidance_target": 2.5},
    "training adapter": {"under": f"{SPEED}+{ADAPTER}"},
    "on the plain base": {},
}
AS_IN_FILE = "as in file"
BITS = {"bf16": "", "int8": "int8", "Q4_0": "Q4_0"}
ROWS = {
    "preserve": (BASE, *PRESERVE),
    "sliders": (SLIDER,),
    "distilled": (PLAIN_BASE, BASE, *DISTILLED),
    "bits": tuple(BITS),
}
"""part -> its rows"""
ONCE = (BASE, PLAIN_BASE)
"""rows without a training, of seed 0 only"""


def preserve(study: TargetStudy, asked: argparse.Namespace, row: str, seed: int) -> None:
    line = {"part": "preserve", "row": row, "seed": seed}
    trial = trial_of(seed, **PRESERVE.get(row, {}))
    add(asked, line, lambda: study.scores(None if row == BASE else study.taught(trial), trial.rank, "", MANY))


def distilled(study: TargetStudy, asked: argparse.Namespace, row: str, seed: int) -> None:
    """Scores a row at 4 steps without guidance; the plain base and the plain LoRA at 12 guided steps too."""
    few = [("4 steps, cfg 1", FEW)]
    samplings = dict([("12 steps, cfg 2.5", MANY), *few] if row in (PLAIN_BASE, "plain") else few)
    lines = [{"part": "distilled", "row": row, "seed": seed, "sampling": said} for said in samplings]
    if all(is_known(asked, line) for line in lines):
        return
    lora, trial, trained = None, trial_of(seed, **BESIDE_OLD | DISTILLED.get(row, {})), {}
    if row != PLAIN_BASE:
        study.distil()
    if row not in ONCE:
        began = time.monotonic()
        lora = study.taught(trial)
        trained = {"train_s": round(time.monotonic() - began, 1)}
    under = "" if row == PLAIN_BASE else SPEED
    for line in lines:
        sampling = samplings[line["sampling"]]
        add(asked, line, lambda sampling=sampling: trained | study.scores(lora, trial.rank, under, sampling))


def bits(study: TargetStudy, asked: argparse.Namespace, row: str, seed: int) -> None:
    trial = trial_of(seed, bits=BITS[row], base_precision=AS_IN_FILE)
    add(
        asked,
        {"part": "bits", "row": row, "seed": seed},
        lambda: study.scores(study.taught(trial), trial.rank, "", MANY),
    )


def sliders(study: TargetStudy, asked: argparse.Namespace, row: str, seed: int) -> None:
    """A slider of colour: COLOUR, which lies between, becomes POSITIVE or NEGATIVE, with its shape and direction."""
    words = [one for one in all_words() if one.colour == COLOUR]
    lines = [{"part": "sliders", "row": row, "seed": seed, "strength": strength} for strength in STRENGTHS]
    if all(is_known(asked, line) for line in lines):
        return
    model = study.slid(seed, words)
    for line in lines:
        set_strength(model, line["strength"])
        seen = [judge(clip, []) for clip in study.shown(model, [one.caption for one in words], MANY)]
        colours = {name: sum(one.colour == name for one in seen) for name in (NEGATIVE, COLOUR, POSITIVE)}
        kept = [matches(one, said) for one, said in zip(seen, words, strict=True)]
        old = asdict(WordScore.over(kept))
        new = {"all": {"right": colours[POSITIVE], "of": len(words)}}
        add(asked, line, lambda colours=colours, old=old, new=new: {"colours": colours, "new": new, "old": old})


def is_known(asked: argparse.Namespace, line: dict[str, Any]) -> bool:
    return line in [{key: known.get(key) for key in line} for known in read_results(asked.results)]


def add(asked: argparse.Namespace, line: dict[str, Any], measure: Any) -> None:
    """Adds a line with what `measure()` returns, unless the results have it."""
    if is_known(asked, line):
        return
    began = time.monotonic()
    found = line | measure()
    add_result(asked.results, found | {"seconds": round(time.monotonic() - began, 1)})
    print(line, found["new"]["all"], found["old"]["all"], flush=True)


PARTS: dict[str, Callable[[TargetStudy, argparse.Namespace, str, int], None]] = {
    "preserve": preserve,
    "sliders": sliders,
    "bits": bits,
    "distilled": distilled,
}


def wanted(asked: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Returns part, row and seed of each piece of work: first the one that distils, last those that wait for it."""
    found = [
        (part, row, seed)
        for part in asked.parts
        for seed in asked.seeds
        for row in ROWS[part]
        if (not asked.rows or row in asked.rows) and (row not in ONCE or seed == asked.seeds[0])
    ]
    found = [(part, row, 0 if row in ONCE else seed) for part, row, seed in found]
    return sorted(found, key=lambda one: (one[0] == "distilled") * (-1 if one[1] == BASE else 1))


def in_processes(asked: argparse.Namespace) -> int:
    """Runs every piece of work in a process of its own, `asked.processes` at once; returns the failed ones."""
    own = ["--threads", str(asked.threads), "--results", str(asked.results), "--work", str(asked.work)]

    def one(work: tuple[str, str, int]) -> int:
        part, row, seed = work
        command = [sys.executable, __file__, part, "--rows", row, "--seeds", str(seed), *own]
        return subprocess.run(command, check=False).returncode

    with ThreadPoolExecutor(asked.processes) as pool:
        return sum(code != 0 for code in pool.map(one, wanted(asked)))


def _seen(line: dict[str, Any]) -> str:
    """What a row is for: clips of the new concept, or of each colour."""
    if "colours" in line:
        return " ".join(f"{count} {colour}" for colour, count in line["colours"].items() if count) or "none of them"
    return str(line["new"]["all"]["right"])


def _kept(line: dict[str, Any]) -> str:
    """Old captions that are kept; of a slider, shapes and directions."""
    old = line["old"]
    return f"{old['shape']['right']} + {old['direction']['right']}" if "colours" in line else str(old["all"]["right"])


def page(lines: list[dict[str, Any]]) -> str:
    """Returns the page of the results, a table for each part."""
    text = [
        "# What targets of base predictions keep",
        "",
        "Written by `python benchmarks/learning/targets.py --write-docs`.",
    ]
    text += [
        f"{CLIPS} clips of the concept and {len(OLD)} old captions for each seed; no figure is typed by hand. A slider",
        "is judged on the 16 captions of its colour: clips of each colour, and clips that keep shape + direction.",
    ]
    for part in PARTS:
        text += [
            "",
            f"## {part}",
            "",
            "| row | sampled | new, by seed | old captions, by seed |",
            "| --- | --- | --- | --- |",
        ]
        rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for line in sorted((one for one in lines if one["part"] == part), key=lambda one: one["seed"]):
            rows.setdefault((line["row"], str(line.get("sampling", line.get("strength", "")))), []).append(line)
        for (row, how), found in rows.items():
            new = ", ".join(_seen(one) for one in found)
            old = ", ".join(_kept(one) for one in found)
            text.append(f"| {row} | {how} | {new} | {old} |")
    return "\n".join(text) + "\n"


def main(arguments: list[str]) -> int:
    asked = options().parse_args(arguments)
    if asked.write_docs:
        PAGE.write_text(page(read_results(asked.results)), encoding="utf-8")
        return 0
    torch.set_num_threads(asked.threads)
    study = TargetStudy(asked.work, Path(os.environ.get("COMFYUI_PATH", ROOT / ".cache" / "comfyui")))
    study.ready(studied(CONCEPT))
    if asked.processes > 1:
        return in_processes(asked)
    for part, row, seed in wanted(asked):
        PARTS[part](study, asked, row, seed)
    return 0


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="some of the rows; their names are in ROWS")
    parser.add_argument("--processes", type=int, default=1, help="at once, each of one row and seed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--write-docs", action="store_true", help=f"write {PAGE.name}, train nothing")
    parser.add_argument("--work", type=Path, default=ROOT / "demo_output" / "learning_targets", help="clips and LoRAs")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
