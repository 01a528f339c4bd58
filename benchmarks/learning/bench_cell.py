"""One cell of the learning bench, in this process: train, sample, judge. ComfyUI's trainer runs in its own.

CPU seconds, not wall seconds, are what a cell costs: they hardly change with what else the machine does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from learning.bench_candidates import recipe_of
from learning.bench_recipes import BenchRecipe
from learning.bench_tricks import tricks
from learning.study import Study, Trial
from safetensors import safe_open
from safetensors.torch import save_file
from shapeworld.comfy_graphs import MODELS, SAMPLING
from shapeworld.concept import Concept, concept_scene
from shapeworld.draw import Scene
from shapeworld.drawn_concepts import Drawn, drawn_concept
from shapeworld.files import Frames, balanced_words
from shapeworld.judge import judge, matches, matches_concept
from shapeworld.learning import models_folder
from shapeworld.training.clips import as_video, first_frame_channels
from shapeworld.wan_vae import latent_shift_and_scale

from wan_core.cache import CacheItem, CacheSet, pad_text
from wan_core.files import Roots
from wan_core.flow import seeded_generator
from wan_core.lora import LoraConfig
from wan_core.model import WanTransformer
from wan_core.train import TrainConfig, Trainer

ROOT = Path(__file__).resolve().parents[2]
CLIPS = 12
"""judged a cell"""
OLD = tuple(balanced_words(12, 20))
"""captions of the old world that a LoRA is to leave as they are"""
LOOKED_AT = (0.25, 0.5, 0.75, 1.0)
"""shares of a run at which `steps_cell` looks"""
RECENT = 50
"""steps before one, whose mean loss is its training loss"""
HELD_OUT, FIRST_HELD_OUT = 4, 2_000
FIRST_STILL = 1_000
PARTS = ("shape", "path", "colour", "size", "speed", "all")
FIRST_SAMPLED = 3_000
"""scene of the first frame that an image-to-video model continues"""
SHIFT = 3.0
"""what discrete_flow_shift 0 means for the tiny model"""


def trial_of(recipe: BenchRecipe, rate: float, seed: int, steps: int) -> Trial:
    """A trial with all of a recipe's settings, of `steps` times its share; a warm-up is cut to the run."""
    steps = max(1, round(steps * recipe.share))
    settings: dict[str, Any] = {"discrete_flow_shift": SHIFT, **recipe.train}
    settings["lr_warmup_steps"] = min(settings.get("lr_warmup_steps", 0), steps - 1)
    config = TrainConfig(
        steps=steps, learning_rate=rate, seed=seed, gradient_checkpointing=False, prefetch_batches=0, **settings
    )

    class Set(Trial):
        def train_config(self) -> TrainConfig:
            return config

        def lora_config(self) -> LoraConfig:
            return LoraConfig(**recipe.lora)

    return Set(
        concept="",
        learning_rate=rate,
        timestep_sampling=config.timestep_sampling,
        shift=config.discrete_flow_shift,
        seed=seed,
        steps=steps,
        batch_size=config.batch_size,
    )


class BenchStudy(Study):
    """The tiny model and encoded clips of drawn concepts, kept between cells."""

    def __init__(
        self, work: Path, comfyui: Path, trainer: Path, python: str, base: str | Path = "t2v", **study: Any
    ) -> None:
        """`python` runs the tree `trainer`, for the recipe ComfyUI. `base`: a key of MODELS, or a file of a T2V."""
        super().__init__(work, comfyui, **study)
        self._trainer, self._python = trainer, python
        self._from_image = base in MODELS and MODELS[str(base)].starts_from_image
        self.conditioning = "first" if self._from_image else "none"
        self._base = models_folder() / MODELS[str(base)].files[0] if base in MODELS else Path(base)
        self._roots = Roots({**self._roots.folders, "diffusion_models": (str(self._base.parent),)})
        self._kept_before = 0

    def read_captions(self, concepts: Sequence[int]) -> None:
        """Encodes the captions of drawn concepts, and those of `OLD`, at once."""
        seen = (drawn_concept(seed).concept.caption for seed in concepts)
        self.read_texts([*seen, "", *(words.caption for words in OLD)])

    def cell(self, cell: dict[str, Any]) -> dict[str, Any]:
        """What the judges see after a training, its losses, a digest of its LoRA, and what it cost."""
        recipe, drawn = recipe_of(cell["recipe"]), drawn_concept(cell["concept"])
        data = self.data_of_drawn(drawn)
        began, wall = time.process_time(), time.monotonic()
        if recipe.trainer == "comfyui":
            model, facts = self._comfyui_trained(recipe, cell, drawn, data)
        else:
            trial = trial_of(recipe, cell["rate"], cell["seed"], cell["steps"])
            with self._tricks(recipe):
                model, facts = self._trained(trial, self._base.name, data)
            facts["train_cpu_s"] = round(time.process_time() - began, 1)
        trained = time.process_time()
        facts |= {"train_wall_s": round(time.monotonic() - wall, 1), "weights": digest(model)}
        shown = judged(drawn, self._clips_of(model, drawn))
        return shown | facts | {"sample_cpu_s": round(time.process_time() - trained, 1)}

    def _clips_of(self, model: WanTransformer, drawn: Drawn) -> list[Frames]:
        """Clips of the concept's caption; those of an image-to-video model start from frames never trained on."""
        scenes = [concept_scene(drawn.concept, FIRST_SAMPLED + n, SAMPLING.frames) for n in range(CLIPS)]
        channels = first_frame_channels(self._vae, as_video(scenes)) if self._from_image else None
        return self.sampled([model], [drawn.concept.caption] * CLIPS, None, channels)

    def _tricks(self, recipe: BenchRecipe) -> contextlib.AbstractContextManager[None]:
        return tricks(pad_text(self.text("")), **recipe.trick) if recipe.trick else contextlib.nullcontext()

    def steps_cell(self, cell: dict[str, Any]) -> dict[str, Any]:
        """A training that is judged while it goes on: its clips, old captions and losses at `LOOKED_AT` shares."""
        recipe, drawn = recipe_of(cell["recipe"]), drawn_concept(cell["concept"])
        data, seen, losses = self.data_of_drawn(drawn), dict[str, Any](), list[float]()
        trial = trial_of(recipe, cell["rate"], cell["seed"], cell["steps"])
        steps = {round(share * trial.steps) for share in LOOKED_AT}
        began = time.process_time()

        def look(trainer: Trainer, step: int) -> None:
            if step not in steps:
                return
            measured = trainer.evaluate()
            assert measured is not None
            trainer.model.train(False)
            with trainer.optimizer.evaluated_weights():
                shown = judged(drawn, self._clips_of(trainer.model, drawn))
                kept = self.kept(trainer.model)
            trainer.model.train(True)
            held = {"eval": round(measured.eval_loss, 5), "eval_clips": [round(one, 5) for one in measured.per_clip]}
            seen[str(step)] = shown | kept | held

        with self._tricks(recipe):
            _, facts = self._trained(trial, self._base.name, data, look, losses)
        for step, one in seen.items():
            recent = losses[max(0, int(step) - RECENT) : int(step)]
            one["train_loss"] = round(sum(recent) / len(recent), 5)
        facts |= {"at": seen, "cpu_s": round(time.process_time() - began, 1)}
        self._kept_before = self._kept_before or self.kept(self.model(self._base.name, None))["kept"]
        return facts | {"kept_before": self._kept_before}

    def kept(self, model: WanTransformer) -> dict[str, int]:
        """Of `OLD` captions that the LoRA was not trained on, how many clips show what they say."""
        clips = self.sampled([model], [words.caption for words in OLD])
        right = [matches(judge(clip), words).all for clip, words in zip(clips, OLD, strict=True)]
        return {"old": len(right), "kept": sum(right)}

    @torch.no_grad()
    def through_vae(self, clip: Frames) -> Frames:
        """What the model's VAE keeps of a clip (T, H, W, 3) uint8: the best that any training can show."""
        pixels = torch.from_numpy(clip).float().permute(3, 0, 1, 2)[None] / 127.5 - 1
        video = self._vae.decode(self._vae.encode(pixels))[0]
        return ((video.clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 3, 0).numpy()

    # ---- data ----

    def data_of_drawn(self, drawn: Drawn) -> CacheSet:
        """Clips and stills of a concept, and clips that are only evaluated."""
        return self.cache_set(
            self._items(drawn.concept, 0, drawn.clips) + self._stills(drawn.concept, drawn.stills),
            self._items(drawn.concept, FIRST_HELD_OUT, HELD_OUT),
        )

    def _items(self, concept: Concept, first: int, count: int) -> tuple[CacheItem, ...]:
        scenes = (concept_scene(concept, n, SAMPLING.frames) for n in range(first, first + count))
        return tuple(self._drawn_item(scene, concept.caption) for scene in scenes)

    def _stills(self, concept: Concept, count: int) -> tuple[CacheItem, ...]:
        return tuple(self._drawn_item(still_of(concept, n), concept.caption) for n in range(count))

    def _drawn_item(self, scene: Scene, caption: str) -> CacheItem:
        """Named by what it shows, so that a changed generator never meets an old cache."""
        name = hashlib.sha256(repr(scene).encode()).hexdigest()[:16]
        item = self._item(name, scene, caption)
        if not self._from_image:
            return item
        key = seeded_generator("first frame", name).initial_seed().to_bytes(8, "little").hex() * 4
        if not self._cache.has("condition", key):
            self._cache.write_condition(key, {"channels": first_frame_channels(self._vae, as_video([scene]))[0]})
        return replace(item, condition_key=key)

    # ---- ComfyUI's trainer ----

    def _comfyui_trained(
        self, recipe: BenchRecipe, cell: dict[str, Any], drawn: Drawn, data: CacheSet
    ) -> tuple[WanTransformer, dict[str, Any]]:
        """The base model with the LoRA that the node TrainLoraNode made of the same latents and caption."""
        from comfyui_trainer import adapted

        folder = self._work / "comfyui_trainer"
        folder.mkdir(parents=True, exist_ok=True)
        name = "_".join(str(cell[key]) for key in ("recipe", "rate", "concept", "seed", "steps"))
        inputs, out, jobs = (folder / f"{name}{end}" for end in ("_in.safetensors", ".safetensors", ".json"))
        mean, std = latent_shift_and_scale()
        tensors = {"text": self.text(drawn.concept.caption)}
        for size in {item.num_frames for item in data.items}:
            alike = [item for item in data.items if item.num_frames == size]
            tensors[f"latents{size}"] = (self.latents(alike) * std + mean).contiguous()
        save_file(tensors, inputs)
        out.unlink(missing_ok=True)
        kept = {"steps": cell["steps"], "seed": cell["seed"], "learning_rate": cell["rate"], "settings": recipe.node}
        job = kept | {"inputs": str(inputs.resolve()), "out": str(out.resolve())}
        asked = {"comfyui": str(self._trainer.resolve()), "model": str(self._base), "jobs": [job]}
        jobs.write_text(json.dumps(asked), encoding="utf-8")
        threads = str(torch.get_num_threads())
        subprocess.run(
            [self._python, str(ROOT / "tests" / "tiny" / "comfy_train.py"), str(jobs)],
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )
        with safe_open(out, "pt") as file:
            facts = file.metadata()
        trained = adapted(self, out)
        inputs.unlink()
        out.unlink()
        return trained, {
            "train_cpu_s": float(facts["train_cpu_s"]),
            "version": facts["version"],
            "eval_before": None,
            "eval_after": None,
        }


def still_of(concept: Concept, number: int) -> Scene:
    """One frame of a scene of its own."""
    scene = concept_scene(concept, FIRST_STILL + number, SAMPLING.frames)
    centre = random.Random(f"still {concept.caption} {number}").choice(scene.centres)
    return replace(scene, centres=(centre,))


def judged(drawn: Drawn, clips: Sequence[Frames]) -> dict[str, Any]:
    """Of how many clips, how many show each part of the concept; `each`: 1 for a clip that shows all, in order."""
    found = [matches_concept(judge(clip, drawn.candidates), drawn.concept) for clip in clips]
    counts = {part: sum(getattr(one, part) for one in found) for part in PARTS}
    return {"clips": len(clips), **counts, "each": "".join(str(int(one.all)) for one in found)}


def digest(model: WanTransformer) -> str:
    """Of every weight of a model, adapters included: equal where all values are."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]
