"""One cell of the learning bench, in this process: train, sample, judge. ComfyUI's trainer runs in its own.

CPU seconds, not wall seconds, are what a cell costs: they hardly change with what else the machine does.
"""

from __future__ import annotations

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
from learning.bench_recipes import RECIPES, BenchRecipe
from learning.study import Study, Trial
from safetensors import safe_open
from safetensors.torch import save_file
from shapeworld.comfy_graphs import MODELS, SAMPLING
from shapeworld.concept import Concept, concept_scene
from shapeworld.draw import Scene
from shapeworld.drawn_concepts import Drawn, drawn_concept
from shapeworld.files import Frames
from shapeworld.judge import judge, matches_concept
from shapeworld.learning import models_folder
from shapeworld.wan_vae import latent_shift_and_scale

from wan_core.cache import CacheItem, CacheSet
from wan_core.lora import LoraConfig
from wan_core.model import WanTransformer
from wan_core.train import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
CLIPS = 12
"""judged a cell"""
HELD_OUT, FIRST_HELD_OUT = 4, 2_000
FIRST_STILL = 1_000
PARTS = ("shape", "path", "colour", "size", "speed", "all")
FILE = MODELS["t2v"].files[0]
SHIFT = 3.0
"""what discrete_flow_shift 0 means for the tiny model"""


def trial_of(recipe: BenchRecipe, rate: float, seed: int, steps: int) -> Trial:
    """A trial with all of a recipe's settings; a warm-up is cut to the run."""
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

    def __init__(self, work: Path, comfyui: Path, trainer: Path, python: str, **study: Any) -> None:
        """`python` runs the tree `trainer`, for the recipe ComfyUI."""
        super().__init__(work, comfyui, **study)
        self._trainer, self._python = trainer, python

    def read_captions(self, concepts: Sequence[int]) -> None:
        """Encodes the captions of drawn concepts at once."""
        self.read_texts([*(drawn_concept(seed).concept.caption for seed in concepts), ""])

    def cell(self, cell: dict[str, Any]) -> dict[str, Any]:
        """What the judges see after a training, its losses, a digest of its LoRA, and what it cost."""
        recipe, drawn = RECIPES[cell["recipe"]], drawn_concept(cell["concept"])
        data = self.data_of_drawn(drawn)
        began, wall = time.process_time(), time.monotonic()
        if recipe.trainer == "comfyui":
            model, facts = self._comfyui_trained(recipe, cell, drawn, data)
        else:
            model, facts = self._trained(trial_of(recipe, cell["rate"], cell["seed"], cell["steps"]), FILE, data)
            facts["train_cpu_s"] = round(time.process_time() - began, 1)
        trained = time.process_time()
        facts |= {"train_wall_s": round(time.monotonic() - wall, 1), "weights": digest(model)}
        shown = judged(drawn, self.sample([model], drawn.concept, CLIPS))
        return shown | facts | {"sample_cpu_s": round(time.process_time() - trained, 1)}

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
        return self._item(hashlib.sha256(repr(scene).encode()).hexdigest()[:16], scene, caption)

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
        asked = {"comfyui": str(self._trainer.resolve()), "model": str(models_folder() / FILE), "jobs": [job]}
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
