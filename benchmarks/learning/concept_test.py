"""Does a LoRA learn? Measured through a real ComfyUI: `python3 benchmarks/learning/concept_test.py`.

Samples captions of the demo models' world with core nodes and lets judges say what the clips show; trains a LoRA on
eight clips of a concept the model does not know, through `POST /prompt`; samples again with and without it. Prints a
table, leaves result.json and contact sheets in demo_output, and ends with 1 when a limit is missed.

    python3 benchmarks/learning/concept_test.py --short    one minute, small samples
    python3 benchmarks/learning/concept_test.py --model pair    a high- and a low-noise expert, a LoRA on each
    python3 benchmarks/learning/concept_test.py --prior-preservation 5    the old world is kept, not taught again
    python3 benchmarks/learning/concept_test.py --model i2v    starts from images; a LoRA teaches a motion
    python3 benchmarks/learning/concept_test.py --concept my_concept.json    a concept of your own
    python3 benchmarks/learning/concept_test.py --captions 0 --steps 500       only the LoRA, other settings
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
    from shapeworld.learning import Findings, Plan


def main() -> int:
    if os.environ.get("WAN_TRAINER_READY"):
        try:
            return measure(sys.argv[1:])
        except ComfyError as problem:
            say(f"\nThe learning test failed. {problem}")
            return 1
    if {"-h", "--help"} & set(sys.argv[1:]):
        say(f"{__doc__}\nAll options are listed once the set-up is done: WAN_TRAINER_READY=1, the .venv's Python.")
        return 0
    say("Setting up (a second run starts at once)")
    ready = environment.prepare(tests=False)
    return environment.reenter_in_venv(ready, Path(__file__).resolve(), sys.argv[1:])


def options() -> argparse.ArgumentParser:
    """Options of the run, then every field of Plan and of Recipe."""
    from shapeworld.comfy_graphs import MODELS, Recipe
    from shapeworld.learning import CONCEPTS, DEFAULT_CONCEPT, FULL

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=(*MODELS, "all"), default="t2v")
    parser.add_argument("--concept", type=Path, default=CONCEPTS / f"{DEFAULT_CONCEPT}.json", help="a concept file")
    parser.add_argument("--short", action="store_true", help="fewer clips and steps; limits for small samples")
    parser.add_argument("--out", type=Path, help="folder for result.json, pictures and ComfyUI's files")
    parser.add_argument("--models", type=Path, help="folder of the demo models, instead of tests/assets/demo")
    parser.add_argument(
        "--write-docs", action="store_true", help="write benchmarks/results/learning_test*_CPU_2026-11.md and pictures"
    )
    amounts = parser.add_argument_group("how much is sampled")
    _add_fields(amounts, FULL)
    recipe = parser.add_argument_group("how the LoRA is trained")
    _add_fields(recipe, Recipe())
    return parser


def _add_fields(group: Any, defaults: Any) -> None:
    """Adds one option per field, None by default."""
    for field in dataclasses.fields(defaults):
        value = getattr(defaults, field.name)
        if isinstance(value, bool):
            continue
        several = {"nargs": "+"} if isinstance(value, tuple) else {}
        kind = str if several else type(value)
        name = f"--{field.name.replace('_', '-')}"
        group.add_argument(name, type=kind, metavar=kind.__name__.upper(), help=f"default {value}", **several)


def _changed(defaults: Any, asked: argparse.Namespace) -> Any:
    """Returns `defaults` with the options of the command line."""
    given = {field.name: getattr(asked, field.name, None) for field in dataclasses.fields(defaults)}
    changes = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return dataclasses.replace(defaults, **{name: value for name, value in changes.items() if value is not None})


def measure(arguments: list[str]) -> int:
    """Runs the test with the virtual environment's Python. Returns its exit code."""
    from shapeworld import learning
    from shapeworld.comfy_graphs import MODELS, Recipe
    from shapeworld.concept import load_concept
    from world import TINY_PACK

    parser = options()
    asked = parser.parse_args(arguments)
    if asked.write_docs and asked.short:
        parser.error("--write-docs writes the full form; leave --short out")
    if asked.models:
        os.environ["WAN_TRAINER_DEMO_MODELS"] = str(asked.models.resolve())
    models = list(MODELS.values()) if asked.model == "all" else [MODELS[asked.model]]
    if absent := [sentence for model in models if (sentence := learning.missing_models(model))]:
        say(absent[0])
        return 1
    try:
        concept = load_concept(asked.concept)
    except (OSError, ValueError) as problem:
        say(str(problem))
        return 2
    plan: Plan = _changed(learning.SHORT if asked.short else learning.FULL, asked)
    recipe = _changed(Recipe(**(learning.SHORT_RECIPE if asked.short else {})), asked)
    out = (asked.out or ROOT / "demo_output" / time.strftime("learning_%Y-%m-%d_%H-%M-%S")).resolve()

    began = time.monotonic()
    base = make_base(out / "comfyui", [TINY_PACK])
    for model in models:
        learning.fill_models(base, model)
    tree = Path(os.environ["COMFYUI_PATH"])
    say(f"Starting {environment.comfyui_version(tree)}")
    findings: list[Findings] = []
    with ComfyServer(base, comfyui=tree, python=sys.executable, flags=learning.SERVER_FLAGS) as comfy:
        say(f"It answers after {time.monotonic() - began:.1f} s.")
        for model in models:
            say(f"\n==== {model.name}: {', '.join(model.files)}")
            findings.append(learning.teach_and_measure(comfy, model, concept, recipe, plan, say))
    return report(findings, out, time.monotonic() - began, asked.write_docs)


def report(findings: list[Findings], out: Path, seconds: float, write_docs: bool) -> int:
    """Prints the tables, writes result.json and the pictures. Returns 1 where a limit was missed."""
    from shapeworld.learning_report import document, document_name, save_pictures, tables

    for found in findings:
        say(f"\n==== {found.model.name}\n{tables(found)}")
        save_pictures(found, out)
        if write_docs:
            save_pictures(found, ROOT / "docs" / "images")
            (ROOT / "benchmarks" / "results" / document_name(found)).write_text(document(found), encoding="utf-8")
    result = {"seconds": round(seconds, 1), "models": [found.as_dict() for found in findings]}
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    missed = [f"{found.model.name}: {check.name}" for found in findings for check in found.failed()]
    shown = out.relative_to(ROOT) if out.is_relative_to(ROOT) else out
    say(f"\nThe learning test took {seconds:.0f} s. result.json and pictures are in {shown}")
    say(f"MISSED: {'; '.join(missed)}" if missed else "Every limit is met.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
