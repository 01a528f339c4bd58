"""Does a LoRA learn as well under every setting that saves memory or time? `python3 benchmarks/learning/variants.py`.

Trains the LoRA of the learning test once per variant through the queue of a real ComfyUI: each precision preset, each
single precision switch, an 8-bit base, a resumed run. Core nodes sample the concept and captions of the base model with
each; judges classify the clips. --write-docs writes the page of results.

    python3 benchmarks/learning/variants.py --steps 300 --only balanced "residual in bf16"
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("", "benchmarks", "scripts", "tests", "tests/tiny")]

import environment
from comfy_server import ComfyError, ComfyServer, make_base
from environment import say

if TYPE_CHECKING:
    from shapeworld.scores import ConceptScore, WordScore

PAGE = ROOT / "benchmarks" / "results" / "learning_variants_CPU_2026-11.md"
SWITCHED = ("residual", "norm", "qk_norm", "time", "modulation", "head", "rope_table", "rope")
WIDENED = ("attention", "adapter")
"""switches that are in the dtype of the linears by default"""

VARIANTS: dict[str, dict[str, Any]] = {
    "balanced": {},
    "reference": {"precision_policy": "reference"},
    "fast": {"precision_policy": "fast"},
    **{f"{part} in bf16": {"switches": (f"{part}=bf16",)} for part in SWITCHED},
    **{f"{part} in fp32": {"switches": (f"{part}=fp32",)} for part in WIDENED},
    "fp8 base": {"quantize": "fp8_e4m3fn"},
    "int8 base": {"quantize": "int8"},
    "resumed twice": {"pieces": 3},
}
"""variant -> fields of Recipe"""


@dataclasses.dataclass(frozen=True)
class Row:
    """The results of one variant."""

    variant: str
    concept: ConceptScore
    old: WordScore
    training_s: float
    loss: float | None


def main() -> int:
    if os.environ.get("WAN_TRAINER_READY"):
        try:
            return measure(sys.argv[1:])
        except ComfyError as problem:
            say(f"\nA variant failed. {problem}")
            return 1
    if {"-h", "--help"} & set(sys.argv[1:]):
        say(str(__doc__))
        return 0
    say("Setting up (a second run starts at once)")
    return environment.reenter_in_venv(environment.prepare(tests=False), Path(__file__).resolve(), sys.argv[1:])


def measure(arguments: list[str]) -> int:
    """Trains and samples every variant, with the virtual environment's Python."""
    from shapeworld import learning
    from shapeworld.comfy_graphs import MODELS, Recipe
    from shapeworld.concept import load_concept
    from world import TINY_PACK

    asked = options().parse_args(arguments)
    if asked.only and asked.write_docs:
        say("--write-docs writes every variant; leave --only out.")
        return 2
    model, concept = MODELS["t2v"], load_concept(learning.CONCEPTS / f"{learning.DEFAULT_CONCEPT}.json")
    if absent := learning.missing_models(model):
        say(absent)
        return 1
    plan = dataclasses.replace(learning.FULL, captions=asked.clips, caption_seeds=1, old_captions=asked.clips)
    words = plan.words()
    old_shots = [learning.Shot(one.caption, learning.FIRST_SEED + number) for number, one in enumerate(words)]
    new_shots = learning.shots_of(concept, asked.clips)
    out = (asked.out or ROOT / "demo_output" / time.strftime("variants_%Y-%m-%d_%H-%M-%S")).resolve()
    base = make_base(out / "comfyui", [TINY_PACK])
    learning.fill_models(base, model)
    rows: list[Row] = []
    tree = Path(os.environ["COMFYUI_PATH"])
    with ComfyServer(base, comfyui=tree, python=sys.executable, flags=learning.SERVER_FLAGS) as comfy:

        def judged(name: str, loras: list[str]) -> tuple[ConceptScore, WordScore]:
            new = learning.sample(comfy, model, new_shots, f"{name}_new", loras)
            old = learning.sample(comfy, model, old_shots, f"{name}_old", loras)
            return learning.concept_score(concept, new), learning.word_score(words, old, [concept])

        # Drawn once: a pixel that rounds differently changes the clip's digest, by which clips are ordered.
        folders = learning.draw_dataset(base, concept, Recipe())
        rows.append(Row("no LoRA", *judged("none", []), 0.0, None))
        say(line(rows[-1]))
        for number, (name, changes) in enumerate(VARIANTS.items()):
            if asked.only and name not in asked.only:
                continue
            recipe = Recipe(**{"steps": asked.steps, "eval_items": 4, **changes})
            began = time.monotonic()
            run = learning.train(comfy, model, concept, recipe, lambda _text: None, folders)
            seconds = time.monotonic() - began
            scores = judged(str(number), learning.loras_of(run))
            rows.append(Row(name, *scores, seconds, run["eval_loss_last"]))
            say(line(rows[-1]))
            report(rows, asked, out)
    return 0


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps per variant")
    parser.add_argument("--clips", type=int, default=24, help="clips of the concept, and as many old captions")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=VARIANTS, help="some of the variants")
    parser.add_argument("--out", type=Path, help="folder for result.json and ComfyUI's files")
    parser.add_argument(
        "--write-docs", action="store_true", help="write benchmarks/results/learning_variants_CPU_2026-11.md"
    )
    return parser


def line(row: Row) -> str:
    return f"{row.variant}: concept {row.concept.all}, old captions {row.old.all}, {row.training_s:.0f} s"


def report(rows: list[Row], asked: argparse.Namespace, out: Path) -> None:
    """Writes the results so far, so that a stopped run keeps its finished variants."""
    found = [dataclasses.asdict(row) for row in rows]
    text = json.dumps({"steps": asked.steps, "clips": asked.clips, "rows": found}, indent=1) + "\n"
    (out / "result.json").write_text(text, encoding="utf-8")
    if asked.write_docs:
        PAGE.write_text(page(rows, asked.steps, asked.clips), encoding="utf-8")


def page(rows: list[Row], steps: int, clips: int) -> str:
    """benchmarks/results/learning_variants_CPU_2026-11.md"""
    from shapeworld.scores import markdown_table

    head = ("variant", "concept", "its shape", "its path", "old captions", "evaluation loss", "seconds")
    cells = [
        (
            row.variant,
            row.concept.all,
            row.concept.shape.right,
            row.concept.path.right,
            row.old.all,
            "" if row.loss is None else f"{row.loss:.4f}",
            f"{row.training_s:.0f}",
        )
        for row in rows
    ]
    of = rows[-1].concept.all.of
    chance = 1.96 * (of * 0.8 * 0.2) ** 0.5  # 95 % of samples at a true share of 80 %
    return f"""# What settings cost in quality

Written by `python3 benchmarks/learning/variants.py --steps {steps} --clips {clips} --write-docs`: the LoRA of the
[learning test](learning_test_CPU_2026-11.md), trained once per variant for {steps} steps through the queue of a
real ComfyUI on a CPU, sampled with the same seeds by core nodes, judged without a network. Everything else is
as in the row "balanced".

{markdown_table(head, cells)}

"concept": clips that show the new shape on its path in its colour; "old captions": clips of the old world whose colour,
shape and direction are right; "evaluation loss": on fixed clips and noise, computed under the variant itself.
At a true share of 80 %, {of} clips vary by {chance:.0f} either way by chance alone: smaller gaps say nothing.
"""


if __name__ == "__main__":
    sys.exit(main())
