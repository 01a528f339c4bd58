"""Edits of the small world: the shape of a reference image takes the path of a source video.

And the base that is taught them: the demo text-to-video model, trained further until it reads context as Bernini-R
does. It knows two other edits: the outline of the reference in the colour that a caption names, and, without such a
caption, the source's own outline in the colour of the reference.
"""

from __future__ import annotations

import os
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
from .draw import COLOURS, SHAPES, Scene
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
STILL_RADIUS = 24.0
_SHIFT = 3.0
_RATE = 2e-3


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
    """The scene's shape as one frame: large, in the middle of the picture and on a background of its own.

    A token is 16 pixels wide, a shape that moves about 22: from one so small the model does not learn outlines.
    """
    background = tuple(rng.uniform(8, 64) for _ in range(3))
    return replace(scene, radius=STILL_RADIUS, centres=((0.0, 0.0),), tilt=(0.0, 0.0), background=background)


def as_reference_says(source: Scene, reference: Scene) -> Scene:
    """Returns the source with the shape and the colour of the reference."""
    return replace(source, outline=reference.outline, colour=reference.colour, turn=reference.turn)


def drawn_edit(seed: int, shapes: Sequence[str] = tuple(SHAPES)) -> Edit:
    """A pair of the world's own shapes, colours and directions; source and reference share none of the first two.

    `shapes`: those that the reference may show. A source shows one of them too if they are several.
    """
    rng = random.Random(f"edit {seed}")
    words = [word for word in all_words() if word.shape in shapes]
    other = rng.choice(words)
    one = rng.choice(words if len(shapes) > 1 else all_words())
    while other.shape == one.shape or other.colour == one.colour:
        one = rng.choice(words if len(shapes) > 1 else all_words())
    source = captioned_scene(one, rng.randrange(1 << 30))
    reference = still_of(captioned_scene(other, rng.randrange(1 << 30)), rng)
    words = Words(other.colour, other.shape, one.direction)
    return Edit(source, reference, as_reference_says(source, reference), words)


def concept_edit(concept: Concept, seed: int) -> Edit:
    """The concept's outline as reference, and another shape of the world on the concept's path as source."""
    rng = random.Random(f"edit {concept.name} {seed}")
    scene = concept_scene(concept, seed)
    other = _in_colour(replace(scene, outline=rng.choice(list(SHAPES.values()))), rng.choice(all_words()))
    reference = still_of(scene, rng)
    return Edit(other, reference, as_reference_says(scene, reference), concept)


def write_edits(folder: Path, edits: Sequence[Edit]) -> None:
    """Writes pairs as a folder that Wan Video Dataset reads: clip, caption, `_source.mp4`, `_ref1.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, edit in enumerate(edits):
        _write(folder / f"{number:04d}.mp4", edit.wanted)
        write_clip(folder / f"{number:04d}_source.mp4", drawn(edit.source))
        Image.fromarray(edit.picture).save(folder / f"{number:04d}_ref1.png")


def write_questions(sources: Path, references: Path, edits: Sequence[Edit]) -> list[Edit]:
    """Writes sources with captions, and references, into two folders for ComfyUI's own loaders.

    Returns the edits in the order of the loaders: videos come by name, images as the disk lists them.
    """
    references.mkdir(parents=True, exist_ok=True)
    for number, edit in enumerate(edits):
        Image.fromarray(edit.picture).save(references / f"{number:04d}.png")
    listed = [edits[int(Path(file).stem)] for file in os.listdir(references)]
    for number, edit in enumerate(listed):
        _write(sources / f"{number:04d}.mp4", edit.source)
    return listed


def _write(clip: Path, scene: Scene) -> None:
    clip.parent.mkdir(parents=True, exist_ok=True)
    write_clip(clip, drawn(scene))
    clip.with_suffix(".txt").write_text(CAPTION + "\n", encoding="utf-8")


# ---- the base ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Lessons:
    """Encoded: what is wanted, the number of its caption, source and reference."""

    clean: Tensor
    said: Tensor
    source: Tensor
    reference: Tensor


def train_base(
    demo: Path,
    texts: CompactText,
    file: Path,
    *,
    stills: int = 3500,
    still_steps: int = 1950,
    clips: int = 1200,
    clip_steps: int = 1750,
) -> None:
    """Trains the demo model of the folder `demo` on context and writes it to `file`.

    First one frame at a time, which teaches outlines at half the cost; then clips. `texts`: the 96 captions, the empty
    one, CAPTION. `stills`, `clips`: how many are drawn. About 45 minutes of one core.
    """
    vae = TrainableVae(VAE_DIM)
    vae.load_state_dict({name: value.float() for name, value in load_file(demo / "wan_demo_vae.safetensors").items()})
    model = WanTransformer(DEMO_SHAPE)
    weights = load_file(demo / "wan_demo_t2v.safetensors")
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    read_compact(model)
    rng, generator = random.Random("edits of the base"), torch.Generator().manual_seed(0)
    optimizers = optimizers_of(model, _RATE)
    for lessons, steps, batch in (
        (_lessons(vae, rng, stills, frames=1), still_steps, 24),
        (_lessons(vae, rng, clips, frames=9), clip_steps, 16),
    ):
        last = lessons.clean.shape[2] > 1
        for step in range(steps):
            rate = min(1.0, (step + 1) / 50, (1 - step / steps) / 0.6 if last else 1.0)
            loss = _train_step(model, lessons, texts, batch, generator)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = rate * _RATE
                optimizer.step()
            if step % 50 == 0:
                print(f"step {step} of {steps}: loss {loss:.4f}", flush=True)  # noqa: T201
    save_file({name: value.detach().bfloat16().contiguous() for name, value in model.state_dict().items()}, file)


def _lessons(vae: TrainableVae, rng: random.Random, count: int, *, frames: int) -> _Lessons:
    """Draws and encodes `count` sources with references: the outline is learned, and from some of the clips the colour.

    What a caption says of outline and path is true only by chance.
    """
    words = all_words()
    sources = [_often_known(wide_scene(rng, frames), rng) for _ in range(count)]
    references = [still_of(_often_known(wide_scene(rng, 1), rng), rng) for _ in range(count)]
    said = [rng.randrange(len(words)) for _ in range(count)]
    called = [_in_colour(source, words[number]) for source, number in zip(sources, said, strict=True)]
    pairs = list(zip(called, references, strict=True))
    wanted = [replace(source, outline=other.outline, turn=other.turn) for source, other in pairs]
    recoloured = count // 7 if frames > 1 else 0
    wanted += [replace(source, colour=other.colour) for source, other in pairs[:recoloured]]
    said += [len(words) + number % 2 for number in range(recoloured)]
    source, reference = _encoded(vae, sources), _encoded(vae, references)
    return _Lessons(
        _encoded(vae, wanted),
        torch.tensor(said),
        torch.cat([source, source[:recoloured]]),
        torch.cat([reference, reference[:recoloured]]),
    )


def _in_colour(scene: Scene, words: Words) -> Scene:
    red, green, blue = COLOURS[words.colour]
    return replace(scene, colour=(float(red), float(green), float(blue)))


def _often_known(scene: Scene, rng: random.Random) -> Scene:
    """Returns the scene, two times in five with an outline of the captions."""
    return replace(scene, outline=rng.choice(list(SHAPES.values()))) if rng.random() < 0.4 else scene


@torch.no_grad()
def _encoded(vae: TrainableVae, scenes: Sequence[Scene]) -> Tensor:
    parts = [as_video(scenes[first : first + 8]) for first in range(0, len(scenes), 8)]
    with torch.autocast("cpu", torch.bfloat16):
        return torch.cat([vae.encode(clips) for clips in parts]).float()


def _train_step(
    model: WanTransformer, lessons: _Lessons, texts: CompactText, batch: int, generator: torch.Generator
) -> float:
    chosen = torch.randint(len(lessons.clean), (batch,), generator=generator)
    clean, text = lessons.clean[chosen], texts[lessons.said[chosen]]
    context = (lessons.source[chosen], lessons.reference[chosen])
    sigma = draw_sigma(batch, generator, sampling="uniform", shift=_SHIFT)
    noise = torch.randn(clean.shape, generator=generator)
    for block in model.blocks:
        block.cross_attn.bias = text.bias
    guess = model(add_noise(clean, noise, sigma), 1000 * sigma, text.rows, Conditioning(context=context))
    loss = velocity_loss(guess, velocity_target(clean, noise))
    model.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return float(loss.detach())
