"""What the learning test found, for people: tables, contact sheets, and the page of results."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from PIL import Image

from .comfy_graphs import BOUNDARY, SAMPLING, Recipe, switch_step
from .concept import Concept
from .learning import DEFAULT_CONCEPT, FULL, Findings
from .scores import markdown_table
from .sheet import Strip, contact_sheet, save_sheet

TITLES = {
    "t2v": "",
    "pair": " on a pair of experts, as Wan 2.2 T2V-A14B",
    "i2v": " on an image-to-video model, as Wan 2.2 I2V",
}


def tables(found: Findings) -> str:
    """What was asked for and measured, then every part of the scores."""
    checks = markdown_table(
        ("what", "measured", "wanted", ""),
        [(c.name, c.measured, c.wanted, "ok" if c.holds else "MISSED") for c in found.checks()],
    )
    words = (
        ("base model, captions of the world", found.base),
        ("the same clips, judged beside the concept", found.old),
        ("the same captions with the LoRA", found.old_after),
    )
    concept = (("concept without the LoRA", found.before), ("concept with the LoRA", found.after))
    rows = [(name, score.colour, score.shape, score.direction, score.all) for name, score in words if score.all.of]
    rows += [(name, score.colour, score.shape, score.path, score.all) for name, score in concept]
    return checks + "\n\n" + markdown_table(("clips", "colour", "shape", "direction or path", "all three"), rows)


def learning_sheet(concept: Concept, groups: Sequence[Sequence[Strip]], clips: int = 8) -> Image.Image:
    """The concept: baseline above, LoRA below, same seeds. `groups` come from `concept_strips`."""
    return contact_sheet(f'"{concept.caption}": above without, below with the LoRA, same seed', groups[:clips])


def base_sheet(found: Findings, clips: int = 12) -> Image.Image:
    """Captions of the old world as the base model draws them, spread over all that were sampled."""
    strips = found.base_strips
    shown = [strips[index * len(strips) // clips] for index in range(clips)] if len(strips) > clips else strips
    return contact_sheet("The base model, one clip per caption", [[strip] for strip in shown])


def save_pictures(found: Findings, folder: Path) -> None:
    """learning_test.jpg and demo_models.jpg; a model other than t2v puts its name at the end."""
    save_sheet(learning_sheet(found.concept, found.concept_groups), folder / f"learning_test{_suffix(found)}.jpg")
    if found.base_strips:
        save_sheet(base_sheet(found), folder / f"demo_models{_suffix(found)}.jpg")


def _suffix(found: Findings) -> str:
    return "" if found.model.name == "t2v" else f"_{found.model.name}"


def document_name(found: Findings) -> str:
    """The file below benchmarks/results/."""
    return f"learning_test{_suffix(found)}_CPU_2026-11.md"


def document(found: Findings) -> str:
    """The text of that file."""
    recipe = found.recipe
    parts = [
        "# The learning test" + TITLES[found.model.name],
        "Written by this command, in a real ComfyUI on a CPU; no figure in here is typed by hand:\n\n"
        f"    {command(found)}",
        'The demo models know 96 captions, "a <colour> <shape> moving <direction>". A LoRA of rank '
        f'{recipe.rank} is shown {recipe.clips} clips of what they do not know, "{found.concept.caption}", '
        f"through the queue, beside {recipe.prior_clips} clips of the old world. Core nodes sample every clip: "
        f"{SAMPLING.steps} steps of {SAMPLING.sampler}, cfg {SAMPLING.cfg:g}, shift {SAMPLING.shift:g}, "
        f"{SAMPLING.size}x{SAMPLING.size}, {SAMPLING.frames} frames. Judges without a network "
        "(`tests/shapeworld/judge.py`) say what a clip shows.",
        '"Recognised" means: the concept\'s shape on its path in its colour. A concept nobody trained on here is tried '
        "with `--concept FILE`; `tests/shapeworld/concepts/` has two to copy.",
        *_measured(found),
        "## Settings",
        markdown_table(("setting", "value"), asdict(recipe).items()),
    ]
    return "\n\n".join(parts) + "\n"


def command(found: Findings) -> str:
    """The call that measures the same again."""
    given = ["--model", found.model.name]
    if found.concept.name != DEFAULT_CONCEPT:
        given += ["--concept", f"{found.concept.name}.json"]
    for used, default in ((found.plan, FULL), (found.recipe, Recipe())):
        for field in fields(default):
            value = getattr(used, field.name)
            if value != getattr(default, field.name):
                values = value if isinstance(value, tuple) else (value,)
                given += [f"--{field.name.replace('_', '-')}", *(shlex.quote(str(one)) for one in values)]
    return " ".join(["python3 benchmarks/learning/concept_test.py", *given, "--write-docs"])


def _measured(found: Findings) -> list[str]:
    suffix, seconds = _suffix(found), found.seconds
    parts: list[str] = []
    if found.model.starts_from_image:
        parts.append("Every clip starts from an image: the first frame of a drawn scene that no training saw.")
    if found.model.is_pair:
        parts.append(
            f"One run, a LoRA for each expert; two KSamplerAdvanced nodes, the second from step {switch_step()} on, "
            f"where sigma falls below {BOUNDARY}."
        )
    parts += [tables(found), f"![baseline above, LoRA below](../../docs/images/learning_test{suffix}.jpg)"]
    if found.base_strips:
        parts.append(f"![the base model](../../docs/images/demo_models{suffix}.jpg)")
    sampling = sum(value for name, value in seconds.items() if name.startswith("sampling"))
    parts.append(
        f"Training took {seconds['training']:.0f} s in the queue, {found.run['seconds_per_step']:.3f} s per step; "
        f"sampling {found.clips_sampled} clips took {sampling:.0f} s."
    )
    return parts
