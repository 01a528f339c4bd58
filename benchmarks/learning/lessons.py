"""What the training shift of each expert of the tiny pair does: pairs of lessons, judged on new and old captions.

The experts of a pair never meet in a step, so what one learns does not depend on the other (docs/adr/0017): each lesson
is trained once, and every high noise lesson is sampled with every low noise one (benchmarks/learning/shifts.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from learning.study import Study, Trial, studied
from safetensors.torch import load_file, save_file
from shapeworld.comfy_graphs import MODELS, SAMPLING, Recipe, switch_step
from shapeworld.concept import Concept
from shapeworld.files import Frames
from shapeworld.judge import judge, matches, matches_concept
from shapeworld.scenes import all_words
from shapeworld.scores import ConceptScore, WordScore
from torch import Tensor

from wan_core.cache import pad_text
from wan_core.flow import draw_noise, seeded_generator, simple_sigmas
from wan_core.lora import LoraWeights
from wan_core.model import WanTransformer

EXPERTS = ("high", "low")
_BATCH = 24
_SHAPE = (16, (SAMPLING.frames - 1) // 4 + 1, SAMPLING.size // 8, SAMPLING.size // 8)


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What one expert is taught; all else is the demo's recipe."""

    expert: str
    shift: float
    learning_rate: float = Recipe().learning_rate
    steps: int = Recipe().steps // 2
    seed: int = 0
    concept: str = "hopping_bar"
    prior_preservation: float = 0.0
    """0: the old world's clips are trained as clips, else towards what the base model predicts"""
    caption_dropout: float = 0.0

    @property
    def name(self) -> str:
        """Returns a file name that no other lesson has."""
        return "_".join(str(value) for value in asdict(self).values())

    def told(self) -> dict[str, Any]:
        """Returns what a line of results says of it: later settings only where they say something."""
        later = ("prior_preservation", "caption_dropout")
        return {name: value for name, value in asdict(self).items() if value or name not in later}

    def trial(self) -> Trial:
        """Returns the lesson as a trial: eight clips of the concept beside 96 of the old world."""
        recipe = Recipe()
        same = ("timestep_sampling", "batch_size", "rank", "alpha", "lr_scheduler", "lr_warmup_steps", "clips")
        return Trial(
            concept=self.concept,
            model="pair",
            learning_rate=self.learning_rate,
            shift=self.shift,
            seed=self.seed,
            steps=self.steps,
            repeats=recipe.concept_repeats,
            prior_clips=recipe.prior_clips,
            held_out=4,
            prior_preservation=self.prior_preservation,
            caption_dropout=self.caption_dropout,
            **{name: getattr(recipe, name) for name in same},
        )


class PairStudy(Study):
    """The tiny pair, what its experts were taught, and what the two make together."""

    _at_boundary: tuple[tuple[Lesson | None, str], Tensor] | None = None
    """of the newest high noise lesson: the latents that it hands over"""

    def ready(self, concept: Concept) -> None:
        """Encodes every caption of the world, and the concept's."""
        self.read_texts([*(words.caption for words in all_words()), concept.caption, ""])

    def expert(self, expert: str, lesson: Lesson | None) -> WanTransformer:
        """Returns an expert as it is, or with what a lesson taught it; each lesson is trained once and kept."""
        file = MODELS["pair"].files[EXPERTS.index(expert)]
        if lesson is None:
            return self.model(file, None).train(False)
        assert lesson.expert == expert
        trial = lesson.trial()
        kept = self._work / "lessons" / f"{lesson.name}.safetensors"
        if kept.is_file():
            model = self.model(file, trial.lora_config(), trial.seed).train(False)
            LoraWeights(load_file(kept)).load_into(model, "The lesson")
            return model
        model, _ = self._trained(trial, file, self.data_of(trial, studied(lesson.concept)))
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in LoraWeights.of(model).tensors.items()}, kept)
        return model

    def scores(
        self, high: Lesson | None, low: Lesson | None, name: str, seeds: int, clips: int
    ) -> tuple[ConceptScore, WordScore]:
        """Returns what the pair makes of the concept, and of every caption of the old world from `seeds` noises.

        `clips`: of the concept. Noise is the same for every pair.
        """
        concept, words = studied(name), [one for one in all_words() for _ in range(seeds)]
        captions = [concept.caption] * clips + [one.caption for one in words]
        switch = switch_step()
        levels = simple_sigmas(SAMPLING.steps, SAMPLING.shift).tolist()
        if self._at_boundary is None or self._at_boundary[0] != (high, name):
            noise = torch.stack([draw_noise(_SHAPE, seeded_generator("clip", n)) for n in range(len(captions))])
            handed = self._walk(self.expert("high", high), noise, captions, levels[: switch + 1])
            self._at_boundary = (high, name), handed
        latent = self._walk(self.expert("low", low), self._at_boundary[1], captions, levels[switch:])
        shown = self._frames(latent)
        new, old = shown[:clips], shown[clips:]
        return (
            ConceptScore.over([matches_concept(judge(clip, [concept]), concept) for clip in new]),
            WordScore.over([matches(judge(clip, [concept]), one) for one, clip in zip(words, old, strict=True)]),
        )

    @torch.no_grad()
    def _walk(self, model: WanTransformer, latents: Tensor, captions: Sequence[str], levels: Sequence[float]) -> Tensor:
        """Returns latents (N, 16, F, h, w) after euler steps along `levels`, with their captions and the demo's cfg."""
        done = []
        nothing = pad_text(self.text(""))
        for first in range(0, len(captions), _BATCH):
            latent = latents[first : first + _BATCH]
            text = torch.stack([pad_text(self.text(said)) for said in captions[first : first + _BATCH]])
            for here, there in itertools.pairwise(levels):
                timestep = torch.full((len(latent),), 1000 * here)
                without = model(latent, timestep, nothing.expand_as(text))
                velocity = without + SAMPLING.cfg * (model(latent, timestep, text) - without)
                latent = latent + (there - here) * velocity
            done.append(latent)
        return torch.cat(done)

    @torch.no_grad()
    def _frames(self, latents: Tensor) -> list[Frames]:
        videos = torch.cat([self._vae.decode(some) for some in latents.split(4)])
        return list(((videos.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).numpy())
