"""The cache set of a job: the list of cache entries that the encoding nodes give to the worker.

The fingerprint of a set is the data part of the job's identity, and the name of the set's file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from ..config import Config
from ..dataset import nothing_trained
from ..dataset.bucket import Bucket, is_frame_count
from ..errors import CacheError, ConfigError
from ..model import LATENT_SPACES, ConditionKind, LatentSpace, condition_named

_SET_VERSION = 1

_SPACES = {space.name: space for space in LATENT_SPACES}


def latent_space(name: str) -> LatentSpace:
    """Returns the latent space named "wan2.1" or "wan2.2"."""
    if name not in _SPACES:
        raise ConfigError(f'Latent space "{name}" is unknown. Known: {", ".join(_SPACES)}.')
    return _SPACES[name]


@dataclass(frozen=True, kw_only=True)
class CacheItem(Config):
    """One clip or still with its caption; keys name cache entries."""

    latent_key: str
    text_key: str
    num_frames: int
    """4n+1"""
    height: int
    width: int
    repeats: int = 1
    """how often an epoch has the item"""
    name: str = ""
    caption: str = ""
    """shown with previews"""
    condition_key: str = ""
    """key of a conditioning; empty for text-only models"""
    turn: int = 0
    turns: int = 1
    """number of items that take turns; this one is trained in epochs with epoch % turns == turn"""
    weight: float = 1.0
    """factor of the item's appearances; 0.5: every second epoch"""
    mask_key: str = ""
    """key of loss weights; empty without a mask"""
    evaluation_key: str = ""
    """key of the noise and timesteps of a held-out clip"""
    prior: float = 0.0
    """above 0: prior preservation, with this weight in the loss"""
    class_weight: float = 0.0
    """above 0: prior preservation for the caption with the class word, with this weight in the loss"""
    class_key: str = ""
    """key in texts/: the caption with the class word in place of the trigger word"""
    class_caption: str = ""
    slider: float = 0.0
    """for a slider: factor of the difference that its target adds to the base model's prediction; 0: no slider"""
    slider_keys: tuple[str, ...] = ()
    """keys in texts/: the positive and the negative prompt of a slider"""
    slider_prompts: tuple[str, ...] = ()
    context: tuple[tuple[int, ...], ...] = ()
    """latent frames, height and width of each context stream (Bernini-R), or of the tokens behind the video (S2V)"""
    references: int = 0
    """number of reference images (SCAIL)"""

    def __post_init__(self) -> None:
        if not is_frame_count(self.num_frames) or min(self.height, self.width, self.repeats, self.turns) < 1:
            raise ConfigError(
                f"{self.name or self.latent_key} has impossible sizes: {self.width}x{self.height}, "
                f"{self.num_frames} frames, {self.repeats} repeats. Run Cache Latents + Captions again."
            )
        if not (0 <= self.turn < self.turns and 1e-4 <= self.weight <= 1e4 and 0 <= self.prior <= 1e4):
            raise ConfigError(
                f"{self.name or self.latent_key} would never train correctly: turn {self.turn} of {self.turns}, "
                f"weight {self.weight:g}, prior preservation {self.prior:g}. Set its weight between 0.0001 and 10000, "
                "and prior_preservation to 0 or more."
            )

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.num_frames, self.height, self.width)

    @property
    def clip_keys(self) -> tuple[str, ...]:
        """Keys of the entries encoded from the item's files."""
        return tuple(filter(None, (self.latent_key, self.condition_key, self.mask_key)))


class Entry(NamedTuple):
    """An entry of a set."""

    kind: str
    """a key of KINDS"""

    key: str
    shape: tuple[int, ...] | None
    """shape of the mask for a mask, of the clip's latent for other kinds; None for a text"""


@dataclass(frozen=True, kw_only=True)
class CacheSet(Config):
    """The data of a job: items, two prompts, and the identities of the encoders."""

    version: int = _SET_VERSION
    items: tuple[CacheItem, ...]
    empty_text_key: str
    """key of the empty prompt, for caption dropout"""
    negative_text_key: str
    """key of the default negative prompt, for previews"""
    latent_space: str
    """"wan2.1" (16 channels) or "wan2.2" (48 channels, TI2V-5B)"""
    fps: float
    vae_identity: str
    text_identity: str
    conditioning: str = "none"
    """ConditionKind.name"""
    vision_identity: str = ""
    """identity of the CLIP vision encoder; "" without image tokens"""
    held_out: tuple[CacheItem, ...] = ()
    """items that are evaluated and not trained on"""
    trigger_words: tuple[str, ...] = ()
    """trigger words of the datasets, in order; the captions contain them already"""

    def __post_init__(self) -> None:
        if self.version != _SET_VERSION:
            raise ConfigError(
                f"This cache set has version {self.version}; this pack reads {_SET_VERSION}. Run Cache Latents + "
                "Captions again."
            )
        latent_space(self.latent_space)
        if bare := [item.name for item in self.all_items if bool(item.condition_key) != bool(self.kind.tensors)]:
            raise ConfigError(
                f'{bare[0] or "An item"} does not match conditioning "{self.conditioning}" of its cache set. '
                "Run Cache Latents + Captions again."
            )

    def __repr__(self) -> str:
        return f"CacheSet({len(self.items)} items, {self.latent_space}, {self.fps:g} fps)"

    @property
    def all_items(self) -> tuple[CacheItem, ...]:
        """Trained and held-out items."""
        return self.items + self.held_out

    @property
    def kind(self) -> ConditionKind:
        """The conditioning of every item."""
        return condition_named(self.conditioning)

    @property
    def given_whole(self) -> bool:
        """True if the model is given every frame of every item, so there is nothing to predict."""
        return bool(self.items) and all(self.kind.given_whole(item.num_frames) for item in self.items)

    @property
    def space(self) -> LatentSpace:
        return latent_space(self.latent_space)

    def latent_shape(self, item: CacheItem) -> tuple[int, int, int, int]:
        """Returns the shape (C, F, h, w) of the latent that is trained, with the frames of a reference image."""
        channels, frames, height, width = self.stored_shape(item)
        return channels, frames + self.kind.leading_frames, height, width

    def stored_shape(self, item: CacheItem) -> tuple[int, int, int, int]:
        """Returns the shape (C, F, h, w) of the cached latent, without the frames of a reference image."""
        space = self.space
        stride = space.spatial_stride
        frames = space.latent_frames(item.num_frames)
        return (space.channels, frames, item.height // stride, item.width // stride)

    def tokens(self, item: CacheItem) -> int:
        """Returns the number of tokens of an item, context streams included."""
        sizes = (self.latent_shape(item)[1:], *item.context)
        return sum(frames * (height // 2) * (width // 2) for frames, height, width in sizes)

    def mask_shape(self, item: CacheItem) -> tuple[int, int, int, int]:
        """Returns the required shape (1, F, h, w) of loss weights."""
        return (1, *self.stored_shape(item)[1:])

    def fingerprint(self) -> str:
        """Returns a SHA-256, in hex, of the training data.

        It does not depend on names (so renaming files keeps the job), on captions and trigger words (the text keys
        cover them), on the order of items, or on default values.
        """
        data = self.to_dict()
        del data["trigger_words"]
        if not self.kind.tensors:
            del data["conditioning"], data["vision_identity"]
        if not self.held_out:
            del data["held_out"]
        uncounted = ("name", "caption", "class_caption", "slider_prompts")
        # Without defaults (but that of repeats), a new field does not change the fingerprints of stored sets.
        usual = {one.name: [] if one.default == () else one.default for one in fields(CacheItem)} | {"repeats": None}
        for group in data.keys() & {"items", "held_out"}:
            kept = [
                {name: value for name, value in item.items() if name not in uncounted and value != usual[name]}
                for item in data[group]
            ]
            data[group] = sorted(kept, key=lambda item: json.dumps(item, sort_keys=True))
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def require_fit(self, model: str, space: LatentSpace, kind: ConditionKind) -> None:
        """Raises CacheError if the model's latent space or conditioning differs."""
        if self.latent_space != space.name:
            raise CacheError(
                "The cache holds {latent_space} latents, {model} needs {name}. Choose the VAE that belongs to the "
                "model in Load VAE.",
                latent_space=self.latent_space,
                model=model,
                name=space.name,
            )
        if self.conditioning not in (kind.name, kind.masked or kind.name, *kind.fits):
            raise CacheError(
                'The cache was made for a model whose conditioning is "{conditioning}", but {model} needs '
                '"{name}". Connect the model to train to Wan Video Dataset, and run Cache Latents + Captions again.',
                conditioning=self.conditioning,
                model=model,
                name=kind.name,
            )

    def entries(self) -> Iterator[Entry]:
        """Yields every entry of the set once."""
        seen: set[tuple[str, str]] = set()
        for item in self.all_items:
            shape = self.stored_shape(item)
            for entry in (
                Entry("latent", item.latent_key, shape),
                Entry("condition", item.condition_key, shape),
                Entry("mask", item.mask_key, self.mask_shape(item)),
                Entry("evaluation", item.evaluation_key, self.latent_shape(item)),
            ):
                if entry.key and (entry.kind, entry.key) not in seen:
                    seen.add((entry.kind, entry.key))
                    yield entry
        captions = (key for item in self.all_items for key in (item.text_key, item.class_key, *item.slider_keys))
        texts = (self.empty_text_key, self.negative_text_key, *captions)
        yield from (Entry("text", key, None) for key in dict.fromkeys(texts) if key)

    def entry_keys(self) -> set[str]:
        """Returns the keys of all entries."""
        return {entry.key for entry in self.entries()}

    def without(self, failed: Collection[str]) -> CacheSet:
        """Returns the set without items that have a `failed` key; raises DatasetError if no item for training is
        left."""
        if not failed:
            return self

        def kept(items: tuple[CacheItem, ...]) -> tuple[CacheItem, ...]:
            return tuple(item for item in items if not any(key in failed for key in item.clip_keys))

        items, held_out = kept(self.items), kept(self.held_out)
        if not items:
            raise nothing_trained(len(held_out))
        return replace(self, items=items, held_out=held_out)

    def require_items(self) -> None:
        """Raises CacheError if the set has no item to train on."""
        if not self.items:
            raise CacheError("The cache set has no clips. Connect a dataset and run Cache Latents + Captions again.")

    @property
    def prior_share(self) -> float:
        """The share (0 to 1) of prior preservation clips in an average epoch."""
        return self._share(lambda item: item.prior > 0)

    @property
    def class_share(self) -> float:
        """The share (0 to 1) of clips with a class word in an average epoch."""
        return self._share(lambda item: item.class_weight > 0)

    @property
    def slider_share(self) -> float:
        """The share (0 to 1) of sliders in an average epoch."""
        return self._share(lambda item: item.slider != 0)

    def _share(self, counts: Callable[[CacheItem], bool]) -> float:
        seen = [(item.repeats * item.weight / item.turns, counts(item)) for item in self.items]
        return sum(count for count, counted in seen if counted) / sum(count for count, _ in seen)


def context_note(cache_set: CacheSet) -> str:
    """Returns the note that a text-to-video model trained on these clips becomes a Bernini-R model; "" without context
    streams."""
    counts = sorted({len(item.context) for item in cache_set.items if item.context})
    if not counts or not cache_set.kind.in_context:
        return ""
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        f"Trained as Bernini-R: each clip has {many} context stream{'s' if counts[-1] > 1 else ''} (source video, "
        "references). Use the LoRA with Bernini Conditioning."
    )
