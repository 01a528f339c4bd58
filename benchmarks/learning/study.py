"""One trial of a training recipe, in this process: train a LoRA on the tiny Wan, sample its concept, judge the clips.

What the engine would do in a worker, without a server, files of runs or previews: `materialize`, `Trainer` and
`generate` are the engine's own. Clips and texts are encoded once into a latent cache, with the demo VAE and the tests'
text encoder. benchmarks/learning/recipes.py runs many trials; a trial is a line of its results.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file, save_file
from shapeworld.comfy_graphs import BOUNDARY, MODELS, SAMPLING, VAE, Sampling
from shapeworld.concept import Concept, concept_scene, load_concept
from shapeworld.draw import Scene
from shapeworld.files import SEEDS_APART, Frames, balanced_words, drawn
from shapeworld.judge import judge, matches_concept
from shapeworld.learning import CONCEPTS, PRIOR_SEED, models_folder
from shapeworld.scenes import captioned_scene
from shapeworld.scores import ConceptScore
from shapeworld.training.texts import encode_texts
from shapeworld.training.transformer import attend_compactly
from shapeworld.wan_vae import TrainableVae
from torch import Tensor

from wan_core.cache import Batches, CacheItem, CacheSet, LatentCache, pad_text
from wan_core.control import SignalControl
from wan_core.events import StepDone
from wan_core.files import Roots
from wan_core.flow import draw_noise, seeded_generator, simple_sigmas
from wan_core.load import ModelPlan, inspect_model, materialize
from wan_core.lora import LoraConfig, LoraWeights
from wan_core.model import Conditioning, Passage, WanTransformer
from wan_core.sampler.config import PRESETS
from wan_core.train import TrainConfig, Trainer, true_velocity
from wan_core.train.objective import NoisedBatch, Objective

_BLOCK = r"blocks\.\d+\."
TARGETS = {
    "default": LoraConfig().targets,
    "attention": (_BLOCK + r"(self_attn|cross_attn)\.(q|k|v|o)",),
    "self attention": (_BLOCK + r"self_attn\.(q|k|v|o)",),
    "self attention and ffn": (_BLOCK + r"self_attn\.(q|k|v|o)", _BLOCK + r"ffn\.(0|2)"),
}
"""sets of adapted layers by name"""

TEMPLATE_SHIFT = PRESETS["ComfyUI template"].shift

WEIGHTINGS = ("none", "sigma", "x0")
"""none: every noise level alike. sigma: times sigma. x0: times sigma squared, which is the error of the clean latent"""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training and what it is judged by."""

    concept: str
    model: str = "t2v"
    learning_rate: float
    timestep_sampling: str
    shift: float
    sigmoid_scale: float = 1.0
    weighting: str = "none"
    alpha: float = 0.0
    """0 = rank"""
    targets: str = "default"
    seed: int = 0
    steps: int = 400
    """of every expert"""
    batch_size: int = 1
    rank: int = 8
    lr_scheduler: str = "constant"
    lr_warmup_steps: int = 0
    clips: int = 8
    """of the concept"""
    repeats: int = 1
    prior_clips: int = 0
    """of the old world, trained beside them"""
    held_out: int = 0
    """clips of the concept that are only evaluated"""
    tread_routes: str = ""
    prior_preservation: float = 0.0
    """of the old world's clips"""
    caption_dropout: float = 0.0

    def train_config(self) -> TrainConfig:
        return TrainConfig(
            steps=self.steps,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            lr_scheduler=self.lr_scheduler,
            lr_warmup_steps=self.lr_warmup_steps,
            timestep_sampling=self.timestep_sampling,
            discrete_flow_shift=self.shift,
            sigmoid_scale=self.sigmoid_scale,
            gradient_checkpointing=False,
            tread_routes=self.tread_routes,
            caption_dropout=self.caption_dropout,
            seed=self.seed,
            prefetch_batches=0,
        )

    def lora_config(self) -> LoraConfig:
        return LoraConfig(rank=self.rank, alpha=self.alpha, targets=TARGETS[self.targets])


def _weighted(weighting: str, batch: NoisedBatch, velocity: Tensor) -> Tensor:
    """A velocity times the root of its clip's weight: the loss then counts noise levels as `weighting` says."""
    if weighting == "none":
        return velocity
    weight = batch.sigma if weighting == "sigma" else batch.sigma.square()
    return weight.sqrt().view(-1, 1, 1, 1, 1) * velocity.float()


def studied(name: str) -> Concept:
    """A concept by its name: a shipped one, or one of the study's own, whose paths are those of shipped ones."""
    file = CONCEPTS / f"{name}.json"
    return load_concept(file if file.is_file() else CONCEPTS / "studied" / file.name)


class Study:
    """The tiny models with their encoded clips and texts, kept in a folder between trials."""

    conditioning = "none"
    """of every item: ConditionKind.name"""

    def __init__(
        self, work: Path, comfyui: Path, texts: dict[str, Tensor] | None = None, sampling: Sampling = SAMPLING
    ) -> None:
        """`work` holds the cache; `comfyui` is the tree whose text encoder reads captions nobody has read before.

        Clips are sampled as `sampling` says, in the size of the demo.
        """
        self._work, self._comfyui, self._sampling = work, comfyui, sampling
        self._cache = LatentCache(work / "cache")
        self._roots = Roots({"diffusion_models": (str(models_folder()),), "cache": (str(work / "cache"),)})
        self._vae = TrainableVae(16).requires_grad_(False)
        self._vae.load_state_dict({k: v.float() for k, v in load_file(models_folder() / VAE).items()})
        self._texts = dict(texts or {})

    # ---- data ----

    def text(self, caption: str) -> Tensor:
        """(n, 4096): a caption as the tests' text encoder reads it, without its padding."""
        self.read_texts([caption])
        return self._texts[caption]

    def read_texts(self, captions: Sequence[str]) -> None:
        """Encodes captions at once: the text encoder takes longer to build than to read."""
        if all(caption in self._texts for caption in captions):
            return
        file = self._work / "texts.safetensors"
        if file.is_file():
            self._texts |= {caption: text.float() for caption, text in load_file(file).items()}  # bfloat16 travels too
        if absent := [caption for caption in captions if caption not in self._texts]:
            encoded = encode_texts(self._comfyui, absent)
            self._texts |= {caption: text.contiguous() for caption, text in zip(absent, encoded, strict=True)}
            file.parent.mkdir(parents=True, exist_ok=True)
            written = file.with_name(f"texts_{os.getpid()}.safetensors")  # other processes may read the file meanwhile
            save_file(self._texts, written)
            written.replace(file)

    @torch.no_grad()
    def _latent(self, scene: Scene) -> Tensor:
        pixels = torch.from_numpy(drawn(scene)).float() / 127.5 - 1
        return self._vae.encode(pixels.permute(3, 0, 1, 2)[None])[0].to(torch.bfloat16)

    def _item(self, name: str, scene: Scene, caption: str, repeats: int = 1) -> CacheItem:
        key = seeded_generator("study", name).initial_seed().to_bytes(8, "little").hex() * 4
        if not self._cache.has("latent", key):
            self._cache.write_latent(key, self._latent(scene))
        return CacheItem(
            latent_key=key,
            text_key=self._text_key(caption),
            num_frames=len(scene.centres),
            height=SAMPLING.size,
            width=SAMPLING.size,
            repeats=repeats,
            name=name,
            caption=caption,
        )

    def _text_key(self, caption: str) -> str:
        key = seeded_generator("study text", caption).initial_seed().to_bytes(8, "little").hex() * 4
        if not self._cache.has("text", key):
            self._cache.write_text(key, self.text(caption).to(torch.bfloat16))
        return key

    def concept_items(self, concept: Concept, first: int, count: int, repeats: int = 1) -> tuple[CacheItem, ...]:
        """Clips of a concept; those of a LoRA test are 0 to 7."""
        return tuple(
            self._item(f"{concept.name} {n}", concept_scene(concept, n, SAMPLING.frames), concept.caption, repeats)
            for n in range(first, first + count)
        )

    def latents(self, items: Sequence[CacheItem]) -> Tensor:
        """(N, 16, F, h, w) float32, normalised."""
        return torch.stack([self._cache.read_latent(item.latent_key).float() for item in items])

    def data_of(self, trial: Trial, concept: Concept) -> CacheSet:
        """What a trial trains on, and what it is evaluated on."""
        old = tuple(
            self._item(
                f"old {n}", captioned_scene(words, PRIOR_SEED * SEEDS_APART + n, SAMPLING.frames), words.caption, 1
            )
            for n, words in enumerate(balanced_words(trial.prior_clips, PRIOR_SEED))
        )
        return self.cache_set(
            self.concept_items(concept, 0, trial.clips, trial.repeats)
            + tuple(replace(item, prior=trial.prior_preservation) for item in old),
            self.concept_items(concept, trial.clips, trial.held_out),
        )

    def cache_set(self, items: tuple[CacheItem, ...], held_out: tuple[CacheItem, ...]) -> CacheSet:
        """Encoded clips as a training takes them, and those that are only evaluated."""
        return CacheSet(
            items=items,
            held_out=held_out,
            empty_text_key=self._text_key(""),
            negative_text_key=self._text_key(""),
            latent_space="wan2.1",
            fps=16.0,
            vae_identity="demo",
            text_identity="tiny",
            conditioning=self.conditioning,
        )

    # ---- training ----

    def run(self, trial: Trial, clips: int, templates: bool = False) -> dict[str, Any]:
        """Train, sample `clips` clips of the concept, judge them: what a line of the results says.

        `templates`: judge clips with the sampling shift of ComfyUI's templates too.
        """
        concept = studied(trial.concept)
        began = time.monotonic()
        experts, facts = self.train(trial, concept)
        trained = time.monotonic()
        scores = self.scores(experts, concept, clips, templates)
        seconds = {"train_s": round(trained - began, 1), "sample_s": round(time.monotonic() - trained, 1)}
        return {**scores, **facts, **seconds}

    def scores(
        self, experts: Sequence[WanTransformer], concept: Concept, clips: int, templates: bool = False
    ) -> dict[str, Any]:
        """What judges see in clips sampled as the demo does, and `at_shift_8` with the shift of the templates."""
        found: dict[str, Any] = {**self.judged(concept, self.sample(experts, concept, clips))}
        if templates:
            shifted = replace(self._sampling, shift=TEMPLATE_SHIFT)
            found[f"at_shift_{TEMPLATE_SHIFT:g}"] = self.judged(concept, self.sample(experts, concept, clips, shifted))
        return found

    def train(self, trial: Trial, concept: Concept) -> tuple[list[WanTransformer], dict[str, Any]]:
        """The adapted experts, noisiest first, and the losses of the last."""
        data = self.data_of(trial, concept)
        experts, facts = [], {}
        for file in MODELS[trial.model].files:
            model, facts = self._trained(trial, file, data)
            experts.append(model)
        return experts, facts

    def model(self, file: str, lora: LoraConfig | None, seed: int = 0) -> WanTransformer:
        """One demo model in float32, with fresh adapters if any; it skips the zero rows of its texts."""
        plan = ModelPlan(base_file=f"diffusion_models:{file}", base_precision="fp32")
        return attend_compactly(materialize(plan, self._roots, lora, seed=seed))

    def _trained(
        self,
        trial: Trial,
        file: str,
        data: CacheSet,
        after_step: Callable[[Trainer, int], None] | None = None,
        losses: list[float] | None = None,
    ) -> tuple[WanTransformer, dict[str, Any]]:
        """The adapted model and its held-out losses. `losses` gets the training loss of each step."""

        def emit(event: object) -> None:
            if losses is not None and isinstance(event, StepDone):
                losses.append(event.loss)

        model = self.model(file, trial.lora_config(), trial.seed)
        variant = inspect_model(ModelPlan(base_file=f"diffusion_models:{file}"), self._roots).variant
        sigma_range = variant.sigma_range()
        if MODELS[trial.model].is_pair:
            sigma_range = (BOUNDARY, 1.0) if "high" in file else (0.0, BOUNDARY)

        class Weighted(Objective):
            def _predicted(self, batch: NoisedBatch, passages: tuple[Passage, ...] = ()) -> Tensor:
                return _weighted(trial.weighting, batch, super()._predicted(batch, passages))

        def target(batch: NoisedBatch) -> Tensor:
            return _weighted(trial.weighting, batch, true_velocity(batch))

        patched = mock.patch("wan_core.train.objective.true_velocity", target)
        with mock.patch("wan_core.train.trainer.Objective", Weighted), patched:
            trainer = Trainer(
                model,
                Batches(data, self._cache, seed=trial.seed, batch_size=trial.batch_size),
                pad_text(self.text("")),
                trial.train_config(),
                sigma_range=sigma_range,
                emit=emit,
                control=SignalControl(),
            )
            before = trainer.evaluate()
            trainer.run(trial.steps, partial(after_step, trainer) if after_step else lambda step: None)
            after = trainer.evaluate()
            with trainer.optimizer.evaluated_weights():  # an average, where the settings keep one
                saved = {name: value.clone() for name, value in LoraWeights.of(model).tensors.items()}
        LoraWeights(saved).load_into(model, "The trial")
        if before is None or after is None:  # a slider has no clips
            return model.train(False), {}
        losses = {"eval_before": round(before.eval_loss, 4), "eval_after": round(after.eval_loss, 4)}
        return model.train(False), losses

    # ---- sampling ----

    def sample(
        self, experts: Sequence[WanTransformer], concept: Concept, clips: int, sampling: Sampling | None = None
    ) -> list[Frames]:
        """Clips of the concept from fixed noise, (T, H, W, 3) uint8 each. A pair changes hands at its boundary."""
        return self.sampled(experts, [concept.caption] * clips, sampling)

    @torch.no_grad()
    def sampled(
        self,
        experts: Sequence[WanTransformer],
        captions: Sequence[str],
        sampling: Sampling | None = None,
        channels: Tensor | None = None,
    ) -> list[Frames]:
        """A clip of each caption from fixed noise, (T, H, W, 3) uint8; `channels` (N, 20, F, h, w): its first frame."""
        sampling = sampling or self._sampling
        shape = (16, (SAMPLING.frames - 1) // 4 + 1, SAMPLING.size // 8, SAMPLING.size // 8)
        clips = len(captions)
        latent = torch.stack([draw_noise(shape, seeded_generator("clip", number)) for number in range(clips)])
        text = torch.stack([pad_text(self.text(caption)) for caption in captions])
        nothing = pad_text(self.text("")).expand(clips, -1, -1)
        given = None if channels is None else Conditioning(channels=channels)
        for here, there in itertools.pairwise(simple_sigmas(sampling.steps, sampling.shift).tolist()):
            model = experts[0] if len(experts) == 1 or here >= BOUNDARY - 1e-6 else experts[1]
            timestep = torch.full((clips,), 1000 * here)
            without = model(latent, timestep, nothing, given)
            velocity = without + sampling.cfg * (model(latent, timestep, text, given) - without)
            latent = latent + (there - here) * velocity
        videos = torch.cat([self._vae.decode(some) for some in latent.split(4)])
        return list(((videos.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).numpy())

    @staticmethod
    def judged(concept: Concept, clips: Sequence[Frames]) -> dict[str, int]:
        """Of how many clips, how many show the concept's shape, path, colour, and all three."""
        score = ConceptScore.over([matches_concept(judge(clip, [concept]), concept) for clip in clips])
        parts = {name: getattr(score, name).right for name in ("shape", "path", "colour", "all")}
        return {"clips_judged": len(clips), **parts}
