"""The learning test: does a LoRA trained through the queue of a real ComfyUI make core nodes draw what it was shown?

Sample the base model, judge; train on clips of a concept it does not know; sample again with and without the LoRA.
benchmarks/learning/concept_test.py, scripts/demo.py and tests/learning run this; the graphs are in comfy_graphs.py.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from comfy_server import ComfyError, ComfyServer
from PIL import Image

from .comfy_graphs import (
    SAMPLING,
    VAE,
    Graph,
    Model,
    Recipe,
    Sampling,
    Shot,
    reconstruction_graph,
    sampling_graph,
    training_graph,
)
from .concept import Concept, concept_scene
from .draw import Scene
from .files import Frames, balanced_words, drawn, write_concept, write_world
from .judge import judge, matches, matches_concept
from .scenes import Words, all_words, captioned_scene
from .scores import Check, ConceptScore, WordScore
from .sheet import Strip

ROOT = Path(__file__).resolve().parents[2]
CONCEPTS = Path(__file__).resolve().parent / "concepts"
DEFAULT_CONCEPT = "hopping_bar"
SERVER_FLAGS = ("--disable-metadata",)  # hundreds of frames, and each would carry the whole graph
SHOTS_PER_GRAPH = 12
CLIPS_PER_SHOT = 8
PRIOR_SEED = 1_000  # clips of the old world beside the concept's
FIRST_SEED = 1  # of the sampler
IMAGE_SEED = 9_000  # of the scenes whose first frames are shown to a model that starts from an image

LEAST_COLOUR, LEAST_SHAPE, LEAST_DIRECTION = 0.95, 0.85, 0.95
MOST_BEFORE, LEAST_AFTER, LEAST_KEPT = 0.10, 0.80, 0.90
LEAST_KEPT_PRESERVED = 0.98  # of all old captions, with prior preservation
MOST_LOSS_LEFT = 0.75  # 37 to 45 % were left in every trial: benchmarks/results/learning_recipes_CPU_2026-11.md
MOST_TRAINING_S = 180.0
LEAST_FIRST_FRAME_DB = 30.0

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is sampled."""

    captions: int
    """of the 96, for the base model"""
    caption_seeds: int
    concept_seeds: int
    """clips of the concept, without and with the LoRA"""
    old_captions: int
    """of the base model's captions, sampled again with the LoRA"""
    sampling_steps: int = SAMPLING.steps
    exact: bool
    """the limits are those of the issue; otherwise what a model exactly at them still reaches in so few clips"""

    @property
    def sampling(self) -> Sampling:
        return replace(SAMPLING, steps=self.sampling_steps)

    def words(self) -> list[Words]:
        return all_words() if self.captions >= len(all_words()) else balanced_words(self.captions, seed=0)


FULL = Plan(captions=96, caption_seeds=2, concept_seeds=24, old_captions=96, exact=True)
SHORT = Plan(captions=2, caption_seeds=1, concept_seeds=5, old_captions=2, sampling_steps=8, exact=False)
SHORT_RECIPE: dict[str, Any] = {"steps": 280, "batch_size": 2, "prior_clips": 16, "concept_repeats": 9}
"""what the short form changes in a Recipe"""


def concept_checks(before: ConceptScore, after: ConceptScore, *, exact: bool) -> list[Check]:
    """A new concept stays unknown without the LoRA and is there with it."""
    return [
        Check.most("concept recognised without the LoRA", before.all, MOST_BEFORE, exact=exact),
        Check.least("concept recognised with the LoRA", after.all, LEAST_AFTER, exact=exact),
    ]


@dataclass
class Findings:
    """What one model showed."""

    model: Model
    concept: Concept
    recipe: Recipe
    plan: Plan
    base: WordScore
    before: ConceptScore
    after: ConceptScore
    old: WordScore
    """old captions without the LoRA, judged by judges who know the concept"""
    old_after: WordScore
    run: dict[str, Any]
    """what TrainLoRA reported"""
    seconds: dict[str, float]
    clips_sampled: int
    first_frame_db: list[float]
    """for a model that starts from an image: PSNR of each first frame against the VAE's own reconstruction of it"""
    base_strips: list[Strip] = field(repr=False)
    concept_groups: list[list[Strip]] = field(repr=False)

    def checks(self) -> list[Check]:
        training = self.seconds["training"]
        return [
            *(self._base() if self.base.all.of else []),
            *self._first_frames(),
            Check("seconds in the training queue", f"{training:.0f}", "<= 180", training <= MOST_TRAINING_S),
            *concept_checks(self.before, self.after, exact=self.plan.exact),
            *(self._kept() if self.old.all.of else []),
        ]

    def _base(self) -> list[Check]:
        limits = {"colour": LEAST_COLOUR, "shape": LEAST_SHAPE, "direction": LEAST_DIRECTION}
        parts = ((part, getattr(self.base, part), share) for part, share in limits.items())
        return [Check.least(f"{part} right", count, share, exact=self.plan.exact) for part, count, share in parts]

    def _first_frames(self) -> list[Check]:
        if not self.first_frame_db:
            return []
        mean, least = sum(self.first_frame_db) / len(self.first_frame_db), min(self.first_frame_db)
        return [
            Check(
                "first frame kept, against the VAE's own reconstruction",
                f"mean {mean:.1f} dB, least {least:.1f} dB",
                f"mean >= {LEAST_FIRST_FRAME_DB:g} dB",
                mean >= LEAST_FIRST_FRAME_DB,
            )
        ]

    def _kept(self) -> list[Check]:
        checks: list[Check] = []
        for part, kept in self.old_after.kept(self.old).items():
            name = f"old captions kept: {part}"
            preserved = part == "all" and self.recipe.prior_preservation > 0
            least = LEAST_KEPT_PRESERVED if preserved else LEAST_KEPT
            was, now = getattr(self.old, part), getattr(self.old_after, part)
            if self.plan.exact:
                checks.append(
                    Check(name, f"{kept:.0%} ({now.right} of {was.right})", f">= {least:.0%}", kept >= least - 1e-9)
                )
            else:
                checks.append(Check.least(name, now, least * was.share, exact=False))
        return checks

    def failed(self) -> list[Check]:
        return [check for check in self.checks() if not check.holds]

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file: every figure, no pictures."""
        parts = ("plan", "recipe", "base", "before", "after", "old", "old_after")
        return {
            "model": self.model.name,
            "files": list(self.model.files),
            "concept": self.concept.name,
            "caption": self.concept.caption,
            "sampling": asdict(self.plan.sampling),
            **{part: asdict(getattr(self, part)) for part in parts},
            "kept": self.old_after.kept(self.old),
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
            "clips_sampled": self.clips_sampled,
            "first_frame_db": [round(value, 2) for value in self.first_frame_db],
            "seconds_per_step": self.run["seconds_per_step"],
            "checks": [check.as_dict() for check in self.checks()],
        }


# ---- demo models -----------------------------------------------------------------------------


def models_folder() -> Path:
    """Where the demo models lie: tests/assets/demo, or the folder WAN_TRAINER_DEMO_MODELS names."""
    return Path(os.environ.get("WAN_TRAINER_DEMO_MODELS") or ROOT / "tests" / "assets" / "demo")


def missing_models(model: Model) -> str:
    """What is not there, in a sentence; empty when all is."""
    absent = [name for name in (*model.files, VAE) if not (models_folder() / name).is_file()]
    if not absent:
        return ""
    where = "the folder WAN_TRAINER_DEMO_MODELS" if "WAN_TRAINER_DEMO_MODELS" in os.environ else "tests/assets/demo"
    return f"no demo model: {', '.join(absent)} not in {where}; scripts/generators/train_demo_models.py makes them."


def fill_models(base: Path, model: Model) -> None:
    """Copy the files of a model into a base directory."""
    for kind, names in (("diffusion_models", model.files), ("vae", (VAE,))):
        for name in names:
            target = base / "models" / kind / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(models_folder() / name, target)


# ---- talking to the server -------------------------------------------------------------------


def follow(comfy: ComfyServer, graph: Graph, say: Say) -> dict[str, Any]:
    """Queue, and show which node runs and how far it is."""
    with comfy.events() as seen:
        prompt_id = comfy.queue(graph)
        shown, last = 0, 0.0
        while comfy.history(prompt_id) is None:
            time.sleep(0.25)
            for kind, data in seen.messages[shown:]:
                shown += 1
                if kind == "executing" and data.get("node") in graph:
                    say(f"  {graph[data['node']]['class_type']}")
                elif kind == "progress" and (time.monotonic() - last > 5 or data["value"] == data["max"]):
                    last = time.monotonic()
                    say(f"    {data['value']:.0f} of {data['max']:.0f}")
            if comfy.process is None or comfy.process.poll() is not None:
                break
    return comfy.wait(prompt_id, timeout=60)


def run_of(entry: dict[str, Any]) -> dict[str, Any]:
    """What TrainLoRA reported about its run."""
    for shown in entry["outputs"].values():
        if shown.get("wan_run"):
            return dict(shown["wan_run"][0])
    raise ComfyError("No node of the graph reported a training run (`wan_run`).")


def sample(
    comfy: ComfyServer,
    model: Model,
    shots: Sequence[Shot],
    prefix: str,
    loras: Sequence[str] = (),
    sampling: Sampling = SAMPLING,
    timeout: float = 1800,
) -> list[list[Frames]]:
    """The clips of every shot, (T, H, W, 3) uint8, through core nodes."""
    clips: list[list[Frames]] = []
    for first in range(0, len(shots), SHOTS_PER_GRAPH):
        part = shots[first : first + SHOTS_PER_GRAPH]
        entry = comfy.run(sampling_graph(model, part, f"{prefix}_{first}", loras, sampling), timeout=timeout)
        for index, shot in enumerate(part):
            files = comfy.outputs(entry, f"save{index}")["images"]
            frames = np.stack([_pixels(comfy.base, file) for file in files])
            clips.append(list(frames.reshape(shot.count, -1, *frames.shape[1:])))
    return clips


def _pixels(base: Path, file: dict[str, str]) -> Frames:
    with Image.open(base / file["type"] / file["subfolder"] / file["filename"]) as picture:
        return np.asarray(picture.convert("RGB"))


def draw_dataset(base: Path, concept: Concept, recipe: Recipe) -> tuple[str, str]:
    """Write the clips of a recipe into input/; names of the concept's folder and of the old world's ("" for none)."""
    folder = base / "input" / concept.name
    count = recipe.clips + recipe.held_out
    for index, clip in enumerate(write_concept(folder, concept, count, recipe.seed, SAMPLING.frames)):
        caption = recipe.concept_captions[index % len(recipe.concept_captions)].replace("{caption}", concept.caption)
        clip.with_suffix(".txt").write_text(caption + "\n", encoding="utf-8")
    if not recipe.prior_clips:
        return concept.name, ""
    prior = f"{concept.name}_old_world"
    write_world(base / "input" / prior, recipe.prior_clips, PRIOR_SEED + recipe.seed, SAMPLING.frames)
    return concept.name, prior


def held_out_files(base: Path, folder: str, recipe: Recipe) -> list[str]:
    """The last clips of the concept, by name: as many as the recipe holds out."""
    files = sorted(file.name for file in (base / "input" / folder).glob("*.mp4"))
    return files[len(files) - recipe.held_out :]


def evaluation_check(run: dict[str, Any]) -> Check:
    """Clips of the concept that were never trained fit the model with the LoRA far better than without."""
    first, last = run["eval_loss_first"], run["eval_loss_last"]
    return Check(
        "loss on held-out clips of the concept",
        f"{first:.4f} before -> {last:.4f} after",
        f"<= {MOST_LOSS_LEFT:.0%} of it",
        run["eval_held_out"] is True and last <= MOST_LOSS_LEFT * first,
    )


def train(
    comfy: ComfyServer, model: Model, concept: Concept, recipe: Recipe, say: Say, folders: tuple[str, str] | None = None
) -> dict[str, Any]:
    """One run, with a LoRA for every file of the model; what TrainLoRA reported. `folders`: of clips drawn before."""
    folder, prior = folders or draw_dataset(comfy.base, concept, recipe)
    # Settings alike under the same name are the same run, which would only be read from disk.
    name = f"{concept.name}_{Path(model.files[0]).stem}" + (f"_in_{recipe.pieces}" if recipe.pieces > 1 else "")
    graph = training_graph(model, recipe, name, folder, prior, held_out_files(comfy.base, folder, recipe))
    for _ in range(recipe.pieces - 1):
        follow(comfy, graph, say)
    return run_of(follow(comfy, graph, say))


def loras_of(run: dict[str, Any]) -> list[str]:
    """Its LoRAs, in the order of the files of the model."""
    return [one["lora"] for one in run["use"]]


# ---- the test --------------------------------------------------------------------------------


def teach_and_measure(
    comfy: ComfyServer, model: Model, concept: Concept, recipe: Recipe, plan: Plan, say: Say
) -> Findings:
    """Everything, on a running server whose base directory has the models."""
    words = plan.words()
    seconds: dict[str, float] = {}
    old_words = words[: plan.old_captions]
    shots, concept_shots = _shots(comfy.base, model, concept, plan, words)
    loras: list[str] = []

    def timed(name: str, work: Callable[[], T]) -> T:
        say(f"\n{name[0].upper()}{name[1:]}")
        began = time.monotonic()
        done = work()
        seconds[name] = time.monotonic() - began
        say(f"  {seconds[name]:.1f} s")
        return done

    def sampled(wanted: Sequence[Shot], prefix: str) -> list[list[Frames]]:
        return sample(comfy, model, wanted, prefix, loras, plan.sampling)

    base = timed("sampling captions of the world", lambda: sampled(shots, "base"))
    kept = first_frames_kept(comfy, shots, base) if model.starts_from_image else []
    before = timed("sampling the concept without the LoRA", lambda: sampled(concept_shots, "before"))
    run = timed("training", lambda: train(comfy, model, concept, recipe, say))
    loras += loras_of(run)
    after = timed("sampling the concept with the LoRA", lambda: sampled(concept_shots, "after"))
    old_after = timed("sampling captions with the LoRA", lambda: sampled(shots[: len(old_words)], "old_after"))
    return Findings(
        model=model,
        concept=concept,
        recipe=recipe,
        plan=plan,
        base=word_score(words, base),
        before=concept_score(concept, before),
        after=concept_score(concept, after),
        old=word_score(old_words, base[: len(old_words)], [concept]),
        old_after=word_score(old_words, old_after, [concept]),
        run=run,
        seconds=seconds,
        clips_sampled=sum(len(clips) for several in (base, before, after, old_after) for clips in several),
        first_frame_db=kept,
        base_strips=[Strip(one.caption, clips[0]) for one, clips in zip(words, base, strict=True)],
        concept_groups=concept_strips(before, after),
    )


def _shots(
    base: Path, model: Model, concept: Concept, plan: Plan, words: Sequence[Words]
) -> tuple[list[Shot], list[Shot]]:
    """Of the captions and of the concept, with images to start from where the model wants them."""
    # A seed for each: with one seed for all, two noises would decide over 192 clips.
    shots = [Shot(one.caption, FIRST_SEED + number, plan.caption_seeds) for number, one in enumerate(words)]
    if not model.starts_from_image:
        return shots, shots_of(concept, plan.concept_seeds)
    frames, own = plan.sampling.frames, shots_of(concept, plan.concept_seeds, per_shot=1)
    old_scenes = [captioned_scene(one, IMAGE_SEED, frames) for one in words]
    new_scenes = [concept_scene(concept, IMAGE_SEED + number, frames) for number in range(len(own))]
    return write_first_frames(base, shots, old_scenes, "old"), write_first_frames(base, own, new_scenes, concept.name)


def shots_of(concept: Concept, clips: int, per_shot: int = CLIPS_PER_SHOT) -> list[Shot]:
    """`clips` clips of the concept's caption, in batches."""
    return [
        Shot(concept.caption, FIRST_SEED + number, min(per_shot, clips - done))
        for number, done in enumerate(range(0, clips, per_shot))
    ]


def write_first_frames(base: Path, shots: Sequence[Shot], scenes: Sequence[Scene], name: str) -> list[Shot]:
    """The shots with images to start from: the first frames of the scenes, written into input/."""
    folder = base / "input" / "first_frames"
    folder.mkdir(parents=True, exist_ok=True)
    started: list[Shot] = []
    for number, (shot, scene) in enumerate(zip(shots, scenes, strict=True)):
        file = folder / f"{name}_{number}.png"
        Image.fromarray(drawn(scene)[0]).save(file)
        started.append(replace(shot, image=f"{folder.name}/{file.name}"))
    return started


def first_frames_kept(comfy: ComfyServer, shots: Sequence[Shot], clips: Sequence[Sequence[Frames]]) -> list[float]:
    """PSNR in dB of every clip's first frame against what the VAE alone makes of the image it started from."""
    entry = comfy.run(reconstruction_graph([shot.image for shot in shots], "first_frames"), timeout=600)
    found: list[float] = []
    for index, several in enumerate(clips):
        (file,) = comfy.outputs(entry, f"save{index}")["images"]
        wanted = _pixels(comfy.base, file).astype(float)
        errors = [float(np.mean((clip[0].astype(float) - wanted) ** 2)) for clip in several]
        found += [10 * float(np.log10(255**2 / max(error, 1e-3))) for error in errors]
    return found


def word_score(
    words: Sequence[Words], clips: Sequence[Sequence[Frames]], concepts: Sequence[Concept] = ()
) -> WordScore:
    """Judge every clip against its caption."""
    pairs = zip(words, clips, strict=True)
    return WordScore.over([matches(judge(clip, concepts), one) for one, several in pairs for clip in several])


def concept_score(concept: Concept, clips: Sequence[Sequence[Frames]]) -> ConceptScore:
    """Judge every clip against the concept."""
    return ConceptScore.over(
        [matches_concept(judge(clip, [concept]), concept) for several in clips for clip in several]
    )


def concept_strips(before: Sequence[Sequence[Frames]], after: Sequence[Sequence[Frames]]) -> list[list[Strip]]:
    """For every seed a group: without the LoRA above, with it below."""
    flat_before, flat_after = ([clip for several in clips for clip in several] for clips in (before, after))
    pairs = zip(flat_before, flat_after, strict=True)
    return [[Strip(f"{n}: base", old), Strip(f"{n}: LoRA", new)] for n, (old, new) in enumerate(pairs, 1)]
