"""The latent cache on disk: latents, text features, conditioning, masks, evaluation noise and sets.

A key covers the media file, the transform, the encoder's weights and `CODE_VERSION`, so an entry is never outdated: an
edited clip has another key. Nodes write entries. Workers read them, and record unreadable ones in `doubts/`. Layout:

    latents/<2 hex>/<key>.safetensors       texts/<2 hex>/<key>.safetensors
    conditions/<2 hex>/<key>.safetensors    evaluations/<2 hex>/<key>.safetensors
    masks/<2 hex>/<key>.safetensors         sets/<fingerprint>.json
    doubts/<kind>-<key>                     files.json, entries.json
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Generator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..dataset import KnownFiles
from ..dataset.conditioning import CONDITION_TENSORS, condition_misfits
from ..errors import CacheError, ConfigError
from ..files import FileError, atomic_write_bytes, atomic_write_json, mark_of, read_json, shown_folder
from ..model import TEXT_LENGTH
from .cache_set import CacheSet
from .entry import pack_entry, read_entry, unpack_entry
from .keys import AGAIN, KEY, KINDS, STORED_DTYPES, TEXT_WIDTH, Stored, entry_name
from .known_entries import KnownEntries
from .synthetic import draw_entry, is_synthetic
from .unpack import require_unpacked


class LatentCache:
    """The cache folder. Nothing is created before the first write."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.entries = KnownEntries(self.root)

    @functools.cached_property
    def files(self) -> KnownFiles:
        """The memo of media files."""
        return KnownFiles(self.root)

    def has(self, kind: str, key: str) -> bool:
        """Returns whether an entry exists, without checking its content."""
        return is_synthetic(key) or os.path.isfile(entry_name(self.root, kind, key))

    def read_latent(self, key: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Returns the latent (C, F, h, w); CacheError if it is damaged or not of `shape`."""
        return self.read("latent", key, shape)["latent"]

    def read_text(self, key: str) -> Tensor:
        """Returns the features (L, 4096) of one prompt without padding: 1 <= L <= 512."""
        return self.read("text", key)["text"]

    def read_condition(self, key: str, latent_shape: tuple[int, ...] | None = None) -> dict[str, Tensor]:
        """Returns Conditioning field -> tensor without batch axis; CacheError if it is damaged or of another size."""
        return self.read("condition", key, latent_shape)

    def read_mask(self, key: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Returns loss weights (1, F, h, w) in [0, 1]; CacheError if damaged or not of `shape`."""
        return self.read("mask", key, shape)["mask"]

    def read_evaluation(self, key: str, latent_shape: tuple[int, ...] | None = None) -> dict[float, Tensor]:
        """Returns timestep -> noise (C, F, h, w) float32 of a held-out clip; CacheError if damaged."""
        tensors = self.read("evaluation", key, latent_shape)
        return dict(zip(tensors["timesteps"].tolist(), tensors["noise"], strict=True))

    def read(self, kind: str, key: str, shape: tuple[int, ...] | None = None) -> dict[str, Tensor]:
        """Returns the verified tensors of an entry by name; CacheError if it does not fit `shape` (as in `Entry`)."""
        tensors = self.read_tensors(kind, key)
        if misfits := _misfits(kind, tensors, shape):
            raise self._unusable(kind, key, misfits)
        return tensors

    def write_mask(self, key: str, tensor: Tensor, name: str = "") -> None:
        """Write loss weights (1, F, h, w) in [0, 1]."""
        self.write_tensors("mask", key, {"mask": tensor}, name)

    def write_latent(self, key: str, tensor: Tensor, name: str = "", stored: Stored | None = None) -> None:
        """Write a normalised latent (C, F, h, w). `name` is for messages."""
        if tensor.ndim != 4 or tensor.numel() == 0:
            raise CacheError(
                f"The VAE returned shape {list(tensor.shape)} for {name or key}; "
                "(channels, frames, height, width) was expected. Choose the VAE that belongs to the model."
            )
        self.write_tensors("latent", key, {"latent": tensor}, name, stored)

    def write_text(self, key: str, tensor: Tensor, name: str = "", stored: Stored | None = None) -> None:
        """Write the features (L, 4096) of a prompt without padding."""
        # Texts are stored in bfloat16, also of a float32 encoder: the transformer casts its text input to the compute
        # dtype.
        if _misfits("text", {"text": tensor}, None):
            raise CacheError(
                f"The text encoder returned shape {list(tensor.shape)} for {name or key!r}; "
                f"at most {TEXT_LENGTH} rows of {TEXT_WIDTH} were expected. Choose the umt5 "
                "encoder (Load CLIP type wan) and shorten the caption."
            )
        self.write_tensors("text", key, {"text": tensor}, name, stored)

    def write_condition(
        self, key: str, tensors: Mapping[str, Tensor], name: str = "", stored: Stored | None = None
    ) -> None:
        """Write Conditioning fields without batch axis; latents are normalised."""
        unknown = sorted(set(tensors) - set(CONDITION_TENSORS))
        if unknown or not tensors:
            raise CacheError(
                f"A condition of {name or key} holds {unknown or 'nothing'}; it must hold some of: "
                f"{', '.join(CONDITION_TENSORS)}."
            )
        if misfits := condition_misfits(tensors, None):
            raise CacheError(f"The condition of {name or key} cannot be used: {misfits}.")
        self.write_tensors("condition", key, tensors, name, stored)

    def is_sound(self, kind: str, key: str, shape: tuple[int, ...] | None = None) -> bool:
        """Returns whether the entry can be read and verified; `shape`: as in `Entry`."""
        if not self.has(kind, key):
            return False
        try:
            self.read(kind, key, shape)
        except CacheError:
            return False
        return True

    def holds(self, kind: str, key: str, shape: tuple[int, ...] | None = None) -> bool | None:
        """Returns `is_sound`, from the memo if the file is unchanged; None without an entry. Call `save_known`
        later."""
        if is_synthetic(key):
            return True
        mark, name = mark_of(entry_name(self.root, kind, key)), f"{kind}-{key}"
        if mark is None:
            return None
        if self.entries.is_sound(name, mark):
            return True
        if not self.is_sound(kind, key, shape):
            return False
        self.entries.note_sound(name, mark)
        return True

    def save_known(self) -> None:
        """Write the memos of media files and entries."""
        self.files.save()
        self.entries.save()

    def write_set(self, cache_set: CacheSet) -> str:
        """Write a set; returns its fingerprint."""
        fingerprint = cache_set.fingerprint()
        with self._writing():
            atomic_write_json(self.set_file(fingerprint), cache_set.to_dict(), self.root)
        return fingerprint

    def read_set(self, fingerprint: str) -> CacheSet:
        """Read a set and verify its fingerprint; CacheError with the remedy."""
        path = self.set_file(fingerprint)
        if not path.is_file():
            require_unpacked(self.root)
            raise CacheError(f"The cache holds no set {fingerprint[:12]}. {AGAIN}")
        try:
            cache_set = CacheSet.from_dict(read_json(path), path.name)
        except (FileError, ConfigError, CacheError) as error:
            raise CacheError(f"Cache set {fingerprint[:12]} is damaged: {error} {AGAIN}") from error
        if cache_set.fingerprint() != fingerprint:
            raise CacheError(f"Cache set {fingerprint[:12]} was changed after it was written. {AGAIN}")
        return cache_set

    def set_file(self, fingerprint: str) -> Path:
        """Returns the file of a set, which need not exist; CacheError if `fingerprint` is not one."""
        if not KEY.match(fingerprint):
            raise CacheError(f"{fingerprint[:100]!r} is not a cache fingerprint. {AGAIN}")
        return self.root / "sets" / f"{fingerprint}.json"

    def entry_path(self, kind: str, key: str) -> Path:
        """Returns the file of an entry, which need not exist."""
        return Path(entry_name(self.root, kind, key))

    def read_tensors(self, kind: str, key: str) -> dict[str, Tensor]:
        """Returns the verified tensors of an entry by name; shapes are not checked."""
        if is_synthetic(key):
            return draw_entry(kind, key)
        try:
            data = self._bytes_of(kind, key)
            return unpack_entry(data, allowed=KINDS[kind].tensors, key=key, dtypes=KINDS[kind].dtypes)
        except (FileError, OSError, ValueError) as error:
            raise self._unusable(kind, key, str(error)) from error

    def _bytes_of(self, kind: str, key: str) -> bytearray:
        path = self.entry_path(kind, key)
        if path.is_file():
            return read_entry(path)
        require_unpacked(self.root)
        self.entries.doubt(f"{kind}-{key}")  # changes `removals_seen`, so the caching node runs again
        raise CacheError(f"The cache holds no {kind} {key[:12]}. {AGAIN}")

    def write_tensors(
        self, kind: str, key: str, tensors: Mapping[str, Tensor], name: str = "", stored: Stored | None = None
    ) -> None:
        """Writes an entry of any kind, in bfloat16 by default. `name`: clip or prompt, for messages."""
        stored = stored or Stored(dtype=KINDS[kind].dtypes[0])
        kept = {part: tensor.detach().to(STORED_DTYPES[stored.dtype]) for part, tensor in tensors.items()}
        if not all(bool(torch.isfinite(tensor).all()) for tensor in kept.values()):
            raise CacheError(
                "Encoding {what} gave NaN or infinity. Load the encoder in a wider dtype (for example start "
                "ComfyUI with --fp32-vae), then press Run again.{or_bf16}",
                what=name or key,
                or_bf16=" Or set the cache's dtype to bf16, whose range is wider." if stored.dtype == "fp16" else "",
            )
        path = self.entry_path(kind, key)
        with self._writing():
            atomic_write_bytes(path, pack_entry(kept, key=key, stored=stored), self.root)
        self.entries.note_sound(f"{kind}-{key}", mark_of(path))

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        """Converts an OSError of a write to a refusal."""
        try:
            yield
        except OSError as error:
            raise CacheError(
                "The cache folder {root} cannot be written: {strerror}. Free disk space or make it writable, then "
                "press Run again; finished entries are kept.",
                root=shown_folder(self.root),
                strerror=error.strerror,
            ) from error

    def _unusable(self, kind: str, key: str, why: str) -> CacheError:
        self.entries.doubt(f"{kind}-{key}")
        return CacheError(f"Cached {kind} {key[:12]} cannot be used: {why}. {AGAIN}")


def _misfits(kind: str, tensors: Mapping[str, Tensor], shape: tuple[int, ...] | None) -> str:
    """Returns why the tensors of an entry cannot be used; "" if they can. `shape`: as in `Entry`."""
    if kind == "condition":
        return condition_misfits(tensors, shape)
    if kind == "evaluation":
        noise, timesteps = tensors.get("noise"), tensors.get("timesteps")
        alike = noise is not None and timesteps is not None and len(noise) == len(timesteps)
        fits = alike and noise is not None and shape in (None, tuple(noise.shape[1:]))
        return "" if fits else f"it does not fit a latent of shape {shape}"
    own = tuple(tensors[kind].shape)
    if kind == "text":
        fits = len(own) == 2 and 1 <= own[0] <= TEXT_LENGTH and own[1] == TEXT_WIDTH
        return "" if fits else f"its shape is {list(own)}"
    return "" if len(own) == 4 and shape in (None, own) else f"its shape is {list(own)}, not {shape}"
