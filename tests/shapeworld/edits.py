"""Edits of the small world: the shape of a reference image takes the path of a source video.

And the base that is taught them: the demo text-to-video model, trained further until it reads context as Bernini-R
does. It knows two other tasks: a source in the colour of the reference, and a caption with the shape of the reference.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from wan_core.flow import add_noise, draw_sigma, velocity_loss, velocity_target
from wan_core.model import Conditioning, WanShape
from wan_core.model.transformer import WanTransformer

from .concept import Concept, concept_scene
from .draw import COLOURS, SHAPES, SIZE, Scene
from .files import Frames, drawn, write_clip
from .judge import ConceptMatch, WordMatch, judge, matches, matches_concept
from .scenes import Words, all_words, captioned_scene, wide_scene
from .training.clips import as_video
from .training.transformer import CompactText, optimizers_of, read_compact
from .wan_vae import TrainableVae

CAPTION = "moving"
"""of every pair: what to draw is in the files"""
DEMO_SHAPE = WanShape(dim=256, ffn_dim=256, num_heads=2, num_layers=4)
VAE_DIM = 16
_SHIFT = 3.0


@dataclass(frozen=True)
class Edit:
    """One pair: what is shown, and what is wanted."""

    source: Scene
    reference: Scene
    """of one frame"""
    wanted: Scene
    shown: Words | Concept
    """what a judge must find: the outline and colour of the reference on the path of the source"""

    @property
    def picture(self) -> np.ndarray:
        """The reference image, (64, 64, 3) uint8."""
        return drawn(self.reference)[0]

    def found_in(self, frames: Frames) -> WordMatch | ConceptMatch:
        """Judges a clip (T, 64, 64, 3) uint8."""
        if isinstance(self.shown, Words):
            return matches(judge(frames), self.shown)
        return matches_concept(judge(frames, [self.shown]), self.shown)


def still_of(scene: Scene, rng: random.Random) -> Scene:
    """The scene's shape as one frame, anywhere in the picture and on a background of its own."""
    room = SIZE / 2 - scene.radius - 2
    centre = (rng.uniform(-room, room), rng.uniform(-room, room))
    return replace(scene, centres=(centre,), background=tuple(rng.uniform(8, 64) for _ in range(3)))


def as_reference_says(source: Scene, reference: Scene) -> Scene:
    """Returns the source with the shape and the colour of the reference."""
    return replace(source, outline=reference.outline, colour=reference.colour, turn=reference.turn)


def drawn_edit(seed: int) -> Edit:
    """A pair of the world's own shapes, colours and directions; source and reference share none of the first two."""
    rng = random.Random(f"edit {seed}")
    one, other = rng.choice(all_words()), rng.choice(all_words())
    while other.shape == one.shape or other.colour == one.colour:
        other = rng.choice(all_words())
    source = captioned_scene(one, rng.randrange(1 << 30))
    reference = still_of(captioned_scene(other, rng.randrange(1 << 30)), rng)
    words = Words(other.colour, other.shape, one.direction)
    return Edit(source, reference, as_reference_says(source, reference), words)


def concept_edit(concept: Concept, seed: int) -> Edit:
    """The concept's outline as reference, and another shape of the world on the concept's path as source."""
    rng = random.Random(f"edit {concept.name} {seed}")
    scene = concept_scene(concept, seed)
    shape, (red, green, blue) = rng.choice(list(SHAPES.values())), rng.choice(list(COLOURS.values()))
    other = replace(scene, outline=shape, colour=(float(red), float(green), float(blue)))
    reference = still_of(scene, rng)
    return Edit(other, reference, as_reference_says(scene, reference), concept)


def write_edits(folder: Path, edits: Sequence[Edit]) -> None:
    """Writes pairs as a folder that Wan Video Dataset reads: clip, caption, `_source.mp4`, `_ref1.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, edit in enumerate(edits):
        _write(folder / f"{number:04d}.mp4", edit.wanted)
        write_clip(folder / f"{number:04d}_source.mp4", drawn(edit.source))
        Image.fromarray(edit.picture).save(folder / f"{number:04d}_ref1.png")


def write_questions(sources: Path, references: Path, edits: Sequence[Edit]) -> None:
    """Writes sources with captions, and references, into two folders for ComfyUI's own loaders."""
    references.mkdir(parents=True, exist_ok=True)
    for number, edit in enumerate(edits):
        _write(sources / f"{number:04d}.mp4", edit.source)
        Image.fromarray(edit.picture).save(references / f"{number:04d}.png")


def _write(clip: Path, scene: Scene) -> None:
    clip.parent.mkdir(parents=True, exist_ok=True)
    write_clip(clip, drawn(scene))
    clip.with_suffix(".txt").write_text(CAPTION + "\n", encoding="utf-8")


# ---- the base ----------------------------------------------------------------------------------


@torch.no_grad()
def _encoded(vae: TrainableVae, scenes: list[Scene]) -> Tensor:
    clips = as_video(scenes)
    return torch.cat([vae.encode(some) for some in clips.split(8)]).float()


def train_base(demo: Path, texts: CompactText, file: Path, *, pairs: int, steps: int, batch: int = 8) -> None:
    """Trains the demo model of the folder `demo` on context and writes it to `file`.

    `texts`: the 96 captions, then the empty one. `pairs`: drawn for each of the two tasks.
    """
    vae = TrainableVae(VAE_DIM)
    vae.load_state_dict({name: value.float() for name, value in load_file(demo / "wan_demo_vae.safetensors").items()})
    model = WanTransformer(DEMO_SHAPE)
    weights = load_file(demo / "wan_demo_t2v.safetensors")
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    read_compact(model)
    rng, words = random.Random("edits of the base"), all_words()
    sources = [wide_scene(rng) for _ in range(pairs)]
    coloured = [still_of(wide_scene(rng), rng) for _ in range(pairs)]
    recoloured = [replace(source, colour=other.colour) for source, other in zip(sources, coloured, strict=True)]
    said = [rng.randrange(len(words)) for _ in range(pairs)]
    called = [captioned_scene(words[number], 50_000 + place) for place, number in enumerate(said)]
    shown = [still_of(scene, rng) for scene in called]
    clean = torch.stack([_encoded(vae, recoloured), _encoded(vae, called)])
    source, references = _encoded(vae, sources), torch.stack([_encoded(vae, coloured), _encoded(vae, shown)])
    captions = torch.tensor([[len(words)] * pairs, said])
    generator, optimizers = torch.Generator().manual_seed(0), optimizers_of(model, 1e-3)
    for step in range(steps):
        task, chosen = step % 2, torch.randint(pairs, (batch,), generator=generator)
        context = (references[task, chosen],) if task else (source[chosen], references[task, chosen])
        sigma = draw_sigma(batch, generator, sampling="uniform", shift=_SHIFT)
        wanted, text = clean[task, chosen], texts[captions[task, chosen]]
        noise = torch.randn(wanted.shape, generator=generator)
        for block in model.blocks:
            block.cross_attn.bias = text.bias
        guess = model(add_noise(wanted, noise, sigma), 1000 * sigma, text.rows, Conditioning(context=context))
        loss = velocity_loss(guess, velocity_target(wanted, noise))
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * min(1.0, (step + 1) / 50, (1 - step / steps) / 0.5)
            optimizer.step()
        if step % 50 < 2:
            print(f"step {step}: task {task}, loss {float(loss.detach()):.4f}", flush=True)  # noqa: T201
    save_file({name: value.detach().bfloat16().contiguous() for name, value in model.state_dict().items()}, file)
