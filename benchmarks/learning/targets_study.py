"""The tiny text-to-video model of the demo in the trials of targets.py: over frozen LoRAs, quantized, distilled."""

from __future__ import annotations

import fcntl
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from learning.study import Study, Trial, studied
from safetensors.torch import save_file
from shapeworld.comfy_graphs import MODELS, SAMPLING, Recipe, Sampling
from shapeworld.concept import Concept
from shapeworld.files import Frames
from shapeworld.judge import judge, matches, matches_concept
from shapeworld.scenes import Words, all_words
from shapeworld.scores import ConceptScore, WordScore
from shapeworld.training.transformer import attend_compactly
from torch import Tensor
from torch.nn import functional

from wan_core.cache import CacheItem, CacheSet, pad_text
from wan_core.cache.synthetic import synthetic_key
from wan_core.dataset.captions import class_caption
from wan_core.files import Roots
from wan_core.flow import draw_noise, seeded_generator, simple_sigmas
from wan_core.load import ModelPlan, materialize
from wan_core.lora import FrozenLora, LoraConfig, LoraWeights
from wan_core.model import WanTransformer
from wan_core.precision import QuantizeConfig
from wan_core.train import TrainConfig

CONCEPT, TRIGGER = "hopping_bar", "pink bar hopping"
CLASSES = {"word": "red square moving up"}
FEW = replace(SAMPLING, steps=4, cfg=1.0)
CLIPS, BATCH, FILE = 8, 16, MODELS["t2v"].files[0]
OLD = [one for number, one in enumerate(all_words()) if (number + number // 4) % 4 == 0]
"""a quarter of the old captions, with every word"""
MANY = replace(SAMPLING, steps=12)
STEPS = 150
NEGATIVE, COLOUR, POSITIVE, SLIDER_SCALE, SLIDER_STEPS = "blue", "purple", "red", 0.8, 150
SPEED, ADAPTER = "speed", "training_adapter"


def slider_trial(seed: int) -> TargetTrial:
    return trial_of(seed, steps=SLIDER_STEPS, learning_rate=2e-3, batch_size=2)


@dataclass(frozen=True, kw_only=True)
class TargetTrial(Trial):
    """A training of the demo's recipe with the settings of targets."""

    guidance_target: float = 1.0
    class_word: str | None = None
    under: str = ""
    """frozen LoRAs in training, joined by +"""
    bits: str = ""
    """a scheme of QuantizeConfig: the base is quantized at load; "" = not quantized"""
    base_precision: str = "fp32"

    def train_config(self) -> TrainConfig:
        return replace(super().train_config(), guidance_target=self.guidance_target)


def trial_of(seed: int, **changes: Any) -> TargetTrial:
    recipe = Recipe()
    same = ("timestep_sampling", "learning_rate", "batch_size", "rank", "lr_scheduler", "lr_warmup_steps", "clips")
    values = (
        {name: getattr(recipe, name) for name in same} | {"steps": STEPS, "batch_size": 2, "prior_clips": 0} | changes
    )
    return TargetTrial(concept=CONCEPT, shift=SAMPLING.shift, seed=seed, **values)


class TargetStudy(Study):
    """The tiny model over frozen LoRAs of the study."""

    under, bits, base_precision = "", "", "fp32"

    @property
    def loras(self) -> Path:
        return self._work / "loras"

    def ready(self, concept: Concept) -> None:
        """Encodes every caption of the study at once."""
        classes = [class_caption(concept.caption, TRIGGER, word) for word in CLASSES.values()]
        self.read_texts([*(words.caption for words in all_words()), concept.caption, *classes, ""])
        self.loras.mkdir(parents=True, exist_ok=True)
        self._roots = Roots({**self._roots.folders, "loras": (str(self.loras),)})

    def model(self, file: str, lora: LoraConfig | None, seed: int = 0) -> WanTransformer:
        frozen = tuple(FrozenLora(file=f"loras:{name}.safetensors") for name in self.under.split("+") if name)
        plan = ModelPlan(
            base_file=f"diffusion_models:{file}",
            base_precision=self.base_precision,
            quantize=QuantizeConfig(scheme=self.bits) if self.bits else None,
            loras=frozen,
        )
        return attend_compactly(materialize(plan, self._roots, lora, seed=seed))

    def data_of(self, trial: Trial, concept: Concept) -> CacheSet:
        data = super().data_of(trial, concept)
        if not isinstance(trial, TargetTrial) or trial.class_word is None:
            return data
        caption = class_caption(concept.caption, TRIGGER, trial.class_word)
        of_class = {"class_weight": 1.0, "class_key": self._text_key(caption), "class_caption": caption}
        return replace(data, items=tuple(replace(item, **of_class) for item in data.items))

    def taught(self, trial: TargetTrial) -> dict[str, Tensor]:
        """Returns the LoRA of a trial."""
        self.under, self.bits, self.base_precision = trial.under, trial.bits, trial.base_precision
        data = self.data_of(trial, studied(trial.concept))
        model, _ = self._trained(replace(trial, held_out=0), FILE, data)
        self.bits, self.base_precision = "", "fp32"
        return LoraWeights.of(model).tensors

    def scores(  # type: ignore[override]
        self, lora: dict[str, Tensor] | None, rank: int, under: str, sampling: Sampling
    ) -> dict[str, Any]:
        """Returns what judges see in clips of the concept and of the old captions, from equal noise in every row."""
        self.under, concept = under, studied(CONCEPT)
        model = self.model(FILE, None if lora is None else LoraConfig(rank=rank)).train(False)
        if lora is not None:
            LoraWeights(lora).load_into(model, "The trial")
        words = OLD
        shown = self.shown(model, [concept.caption] * CLIPS + [one.caption for one in words], sampling)
        new = [matches_concept(judge(clip, [concept]), concept) for clip in shown[:CLIPS]]
        old = [matches(judge(clip, [concept]), one) for one, clip in zip(words, shown[CLIPS:], strict=True)]
        return {"new": asdict(ConceptScore.over(new)), "old": asdict(WordScore.over(old))}

    @torch.no_grad()
    def walked(self, model: WanTransformer, captions: Sequence[str], sampling: Sampling) -> list[Tensor]:
        """Returns the latents (N, 16, F, h, w) at each noise level of a sampling."""
        shape = (16, (SAMPLING.frames - 1) // 4 + 1, SAMPLING.size // 8, SAMPLING.size // 8)
        path: list[list[Tensor]] = []
        for first in range(0, len(captions), BATCH):
            some = captions[first : first + BATCH]
            numbers = range(first, first + len(some))
            latent = torch.stack([draw_noise(shape, seeded_generator("clip", number)) for number in numbers])
            text = torch.stack([pad_text(self.text(caption)) for caption in some])
            nothing = pad_text(self.text("")).expand(len(some), -1, -1)
            here_all = [latent]
            for here, there in itertools.pairwise(simple_sigmas(sampling.steps, sampling.shift).tolist()):
                timestep = torch.full((len(some),), 1000 * here)
                velocity = model(latent, timestep, text)
                if sampling.cfg != 1:
                    without = model(latent, timestep, nothing)
                    velocity = without + sampling.cfg * (velocity - without)
                latent = latent + (there - here) * velocity
                here_all.append(latent)
            path.append(here_all)
        return [torch.cat(level) for level in zip(*path, strict=True)]

    @torch.no_grad()
    def shown(self, model: WanTransformer, captions: Sequence[str], sampling: Sampling) -> list[Frames]:
        latents = self.walked(model, captions, sampling)[-1]
        videos = torch.cat([self._vae.decode(some) for some in latents.split(4)])
        return list(((videos.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).numpy())

    def slid(self, seed: int, words: Sequence[Words]) -> WanTransformer:
        """Returns the model with a slider of `words` from NEGATIVE to POSITIVE, trained without clips."""
        self.under, trial = "", slider_trial(seed)
        latent = synthetic_key("latent", (16, (SAMPLING.frames - 1) // 4 + 1, *[SAMPLING.size // 8] * 2), endless=False)
        moved = {one: [replace(one, colour=colour).caption for colour in (POSITIVE, NEGATIVE)] for one in words}
        items = [
            CacheItem(
                latent_key=latent,
                text_key=self._text_key(one.caption),
                num_frames=SAMPLING.frames,
                height=SAMPLING.size,
                width=SAMPLING.size,
                name=one.caption,
                slider=SLIDER_SCALE,
                slider_keys=tuple(map(self._text_key, moved[one])),
                slider_prompts=tuple(moved[one]),
            )
            for one in words
        ]
        data = self.cache_set(tuple(items), ())
        return self._trained(trial, FILE, data)[0]

    def distil(self) -> None:
        """Trains the speed LoRA (4 steps, cfg 1) and a training adapter that undoes it, each once.

        The speed LoRA learns the straight line between two noise levels of the 4 on the paths of 12 guided steps. The
        training adapter learns the plain objective on the ends of these paths, over the speed LoRA.
        """
        with (self.loras / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other processes wait for the files
            if not (self.loras / f"{ADAPTER}.safetensors").is_file():
                self._distil()

    def _distil(self) -> None:
        captions = [words.caption for words in all_words()]
        self.under = ""
        path = self.walked(self.model(FILE, None).train(False), captions, MANY)[::3]
        texts = {caption: pad_text(self.text(caption)) for caption in captions}
        sigmas = simple_sigmas(FEW.steps, FEW.shift)
        empty = pad_text(self.text(""))

        def pairs(number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            draw = torch.Generator().manual_seed(number)
            clips = torch.randint(len(captions), (4,), generator=draw).tolist()
            steps = torch.randint(FEW.steps, (4,), generator=draw).tolist()
            start, end = (
                torch.stack([path[k + more][c] for c, k in zip(clips, steps, strict=True)]) for more in (0, 1)
            )
            gaps = torch.tensor([float(sigmas[k + 1] - sigmas[k]) for k in steps]).view(-1, 1, 1, 1, 1)
            return start, sigmas[steps], torch.stack([texts[captions[c]] for c in clips]), (end - start) / gaps

        def noised(number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            draw = torch.Generator().manual_seed(number)
            clips = torch.randint(len(captions), (4,), generator=draw).tolist()
            latent = torch.stack([path[-1][c] for c in clips])
            logits = torch.sigmoid(torch.randn(4, generator=draw))
            sigma = SAMPLING.shift * logits / (1 + (SAMPLING.shift - 1) * logits)
            noise = torch.randn(latent.shape, generator=draw)
            at = sigma.view(-1, 1, 1, 1, 1)
            text = [empty if torch.rand((), generator=draw) < 0.1 else texts[captions[c]] for c in clips]
            return (1 - at) * latent + at * noise, sigma, torch.stack(text), noise - latent

        for name, under, batch_of, steps in ((SPEED, "", pairs, 500), (ADAPTER, SPEED, noised, 250)):
            self.under = under
            model = self.model(FILE, LoraConfig(rank=32), 0)
            trained = [p for p in model.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=3e-3, weight_decay=0.0)
            rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.05)
            for number in range(steps):
                latent, sigma, text, velocity = batch_of(number)
                loss = functional.mse_loss(model(latent, 1000 * sigma, text), velocity)
                loss.backward()
                optimizer.step()
                rate.step()
                optimizer.zero_grad()
                if number % 100 == 0:
                    print(f"{name} {number}: {loss.item():.4f}", flush=True)
            tensors = {f"diffusion_model.{k}": v.contiguous() for k, v in LoraWeights.of(model).tensors.items()}
            save_file(tensors, self.loras / f"{name}.safetensors")
